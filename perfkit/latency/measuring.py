"""Measures one batch size after the other within a time budget: warm-up, samples, and whether they are stable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from perfkit import _clock
from perfkit.latency.inputs import call_with, make_inputs, tensors_in
from perfkit.latency.results import BatchLatency
from perfkit.latency.stability import Conditions, drift, likely_cause, median, percentile, settled, spread, stable
from perfkit.latency.timers import CallTime, CudaTimer, HostTimer, PreemptionCounter, Timer
from perfkit.record.triggers.failure import is_out_of_memory
from perfkit.record.watchers.step_memory import resident_bytes

#: Minimum length of a window of the warm-up, much longer than a scheduler's time slice (a few ms), and of its calls.
_WINDOW_NS, _WINDOW_CALLS = 50_000_000, 3
#: Minimum number of samples of a measurement, of which two lie beyond p99; its minimum length, in which other processes
#: show; and the maximum number of samples, for calls of microseconds.
_SAMPLES, _SAMPLING_NS, _MAX_SAMPLES = 200, 500_000_000, 20_000
#: The maximum share of a batch size's time for its warm-up.
_WARMUP_SHARE = 0.5
#: Maximum number of attempts at a stable measurement, while there is time; the default of perf_analyzer.
_TRIALS = 10
#: Minimum time between two progress reports: drawing a bar takes time from the measured cores.
_REPORT_NS = 200_000_000

#: Called with (batch size, share of the work that is done).
SizeProgress = Callable[[int, float], None]


def measure_sizes(
    model: Callable[..., Any],
    example: Any,
    sizes: Sequence[int],
    *,
    device: torch.device | None,
    budget_ns: int,
    progress: SizeProgress,
) -> tuple[list[BatchLatency], torch.device, BaseException | None]:
    """Measure these batch sizes, smallest first; the results, the device that was used, and the first error."""
    results: list[BatchLatency] = []
    used = device or torch.device("cpu")
    first_error: BaseException | None = None
    ends = _clock.now_ns() + budget_ns
    out_of_memory_size: int | None = None
    for position, size in enumerate(sizes):
        if out_of_memory_size is not None:
            problem = f"not tried: {out_of_memory_size} already ran out of memory"
            results.append(BatchLatency(batch_size=size, problem=problem))
            continue
        now = _clock.now_ns()
        share_ns = max(0, ends - now) // (len(sizes) - position)

        def report(part: float, position: int = position, size: int = size) -> None:
            progress(size, (position + min(1.0, part)) / len(sizes))

        one = _SizeMeasurement(size, now + share_ns, share_ns, report)
        try:
            results.append(one.measure(model, example, device))
            used = one.device
        except Exception as error:  # noqa: BLE001 - reported, and the other sizes are measured
            first_error = first_error or error.with_traceback(None)
            out_of_memory_size = size if is_out_of_memory(error) else None
            results.append(BatchLatency(batch_size=size, problem=_problem(error)))
    return results, used, first_error


class _SizeMeasurement:
    """Measures one batch size until ``ends_ns``."""

    def __init__(self, size: int, ends_ns: int, share_ns: int, report: Callable[[float], None]) -> None:
        self._size = size
        self._ends_ns = ends_ns
        self._share_ns = share_ns
        self._report = report
        self._reported_ns = _clock.now_ns()
        self._largest_rss: int | None = None
        self.device = torch.device("cpu")

    def measure(self, model: Callable[..., Any], example: Any, device: torch.device | None) -> BatchLatency:
        inputs = make_inputs(example, self._size, device)
        call = call_with(model, inputs)
        before_rss, before_peak = resident_bytes(), _device_peak(device)
        first, timer = self._first_call(call, inputs, device)
        before_peak = before_peak if before_peak is not None else _device_peak(self.device)
        warmup = self._warm_up(call, timer)
        samples, conditions = self._sample(call, timer)
        times = [sample.ns for sample in samples]
        ordered = sorted(times)
        is_stable = stable(times)
        hosts = [sample.host_ns for sample in samples if sample.host_ns is not None]
        peak = _device_peak(self.device)
        middle = percentile(ordered, 50) or 0
        return BatchLatency(
            batch_size=self._size,
            samples=len(times),
            warmup_calls=warmup + 1,
            first_call_ns=first.ns,
            mean_ns=round(sum(times) / len(times)),
            min_ns=ordered[0],
            p50_ns=middle,
            p90_ns=percentile(ordered, 90),
            p99_ns=percentile(ordered, 99),
            host_ns=median(hosts) if hosts else None,
            samples_per_s=self._size * 1e9 / middle if middle else None,
            stable=is_stable,
            drift=drift(times),
            spread=spread(times),
            cause=None if is_stable else likely_cause(times, conditions),
            # The peak is that of the whole process and is not reset: if it did not rise, this size's peak is unknown.
            device_peak_bytes=peak if peak is not None and before_peak is not None and peak > before_peak else None,
            rss_growth_bytes=(
                self._largest_rss - before_rss if self._largest_rss is not None and before_rss is not None else None
            ),
        )

    def _first_call(self, call: Callable[[], Any], inputs: Any, device: torch.device | None) -> tuple[CallTime, Timer]:
        """The first call, and the timer of the device that it used: the model's, the inputs' or the result's."""
        devices = [device] if device is not None else [tensor.device for tensor in tensors_in(inputs)]
        on_cuda = next((one for one in devices if one.type == "cuda"), None)
        timer: Timer = CudaTimer(on_cuda) if on_cuda is not None else HostTimer()
        result_devices: list[torch.device] = []

        def call_and_inspect() -> None:
            result_devices.extend(tensor.device for tensor in tensors_in(call()))

        first = timer.time(call_and_inspect)
        if on_cuda is None:
            # A function may move its inputs to a device itself, where its result then is.
            on_cuda = next((one for one in result_devices if one.type == "cuda"), None)
            timer = CudaTimer(on_cuda) if on_cuda is not None else timer
        self.device = on_cuda or torch.device("cpu")
        return first, timer

    def _warm_up(self, call: Callable[[], Any], timer: Timer) -> int:
        """Call until three consecutive windows agree, for at most half of the time; the number of calls."""
        until = self._ends_ns - round(self._share_ns * (1 - _WARMUP_SHARE))
        windows: list[int] = []
        calls = 0
        while not settled(windows) and _clock.now_ns() < until:
            times: list[int] = []
            total_ns = 0
            while len(times) < _WINDOW_CALLS or total_ns < _WINDOW_NS:
                times.append(timer.time(call).ns)
                total_ns += times[-1]
                if _clock.now_ns() >= until:
                    break
            calls += len(times)
            windows.append(median(times))
            self._report_progress()
        return calls

    def _sample(self, call: Callable[[], Any], timer: Timer) -> tuple[list[CallTime], Conditions]:
        """The samples of the first stable measurement, or of the last one within the time, and its conditions."""
        for _ in range(_TRIALS):
            preemptions = PreemptionCounter()
            began = now = _clock.now_ns()
            samples: list[CallTime] = []
            while len(samples) < _MAX_SAMPLES and (len(samples) < _SAMPLES or now - began < _SAMPLING_NS):
                samples.append(timer.time(call))
                now = _clock.now_ns()
                if now >= self._ends_ns:
                    break
                if now - self._reported_ns > _REPORT_NS:
                    self._report_progress()
            self._report_progress()
            took = now - began
            # Another trial would be cut short by the time limit, and have fewer samples than this one.
            if stable([sample.ns for sample in samples]) or now + took > self._ends_ns:
                break
        return samples, preemptions.conditions(on_device=isinstance(timer, CudaTimer))

    def _report_progress(self) -> None:
        self._reported_ns = now = _clock.now_ns()
        rss = resident_bytes()
        self._largest_rss = max(filter(None, (self._largest_rss, rss)), default=None)
        self._report(1 - (self._ends_ns - now) / self._share_ns if self._share_ns else 1.0)


def _device_peak(device: torch.device | None) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device is not None and device.type == "cuda" else None


def _problem(error: Exception) -> str:
    line = next(iter(str(error).strip().splitlines()), "")
    return f"out of memory: {line}" if is_out_of_memory(error) else f"{type(error).__name__}: {line}".rstrip(": ")
