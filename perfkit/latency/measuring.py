"""One batch size after the other: warm up until it is stable, sample, judge, within a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from perfkit import _clock
from perfkit.latency.inputs import call_with, make_inputs, tensors_in
from perfkit.latency.results import BatchLatency
from perfkit.latency.stability import drift, likely_cause, median, percentile, settled, spread, stable
from perfkit.latency.timers import CudaTimer, HostTimer, Timed, Timer, Watch
from perfkit.record.triggers.failure import is_out_of_memory
from perfkit.record.watchers.step_memory import resident_bytes

#: A window of the warm-up: so long that a scheduler's time slice (some ms) cannot decide it, three calls at least.
_WINDOW_NS, _WINDOW_CALLS = 50_000_000, 3
#: Samples of a measurement: two lie beyond p99. At least so long: a second neighbour is then seen. So many at most
#: of calls of microseconds.
_SAMPLES, _SAMPLING_NS, _MOST_SAMPLES = 200, 500_000_000, 20_000
#: Of a batch size's time the part that warming up may take.
_WARMUP_SHARE = 0.5
#: How often a measurement that is not stable is made again, while there is time: as perf_analyzer does by default.
_TRIALS = 10
#: Told no oftener than this: drawing a progress bar takes time from the cores that are measured.
_TOLD_NS = 200_000_000

#: Called with (batch size, share of the work that is done).
Progress = Callable[[int, float], None]


def measure_sizes(
    model: Callable[..., Any],
    example: Any,
    sizes: Sequence[int],
    *,
    device: torch.device | None,
    budget_ns: int,
    progress: Progress,
) -> tuple[list[BatchLatency], torch.device, BaseException | None]:
    """Measure these batch sizes, smallest first; what was measured, on which device, and the first error."""
    done: list[BatchLatency] = []
    used = device or torch.device("cpu")
    first_error: BaseException | None = None
    ends = _clock.now_ns() + budget_ns
    full: int | None = None
    for position, size in enumerate(sizes):
        if full is not None:
            done.append(BatchLatency(batch_size=size, problem=f"not tried: {full} already ran out of memory"))
            continue
        now = _clock.now_ns()
        share_ns = max(0, ends - now) // (len(sizes) - position)

        def report(part: float, position: int = position, size: int = size) -> None:
            progress(size, (position + min(1.0, part)) / len(sizes))

        one = _OneSize(size, now + share_ns, share_ns, report)
        try:
            done.append(one.measure(model, example, device))
            used = one.device
        except Exception as error:  # noqa: BLE001 - a size that a model cannot take is told, and the rest is measured
            first_error = first_error or error.with_traceback(None)
            full = size if is_out_of_memory(error) else None
            done.append(BatchLatency(batch_size=size, problem=_problem(error)))
    return done, used, first_error


class _OneSize:
    """Measures one batch size until ``ends_ns``."""

    def __init__(self, size: int, ends_ns: int, share_ns: int, report: Callable[[float], None]) -> None:
        self._size = size
        self._ends_ns = ends_ns
        self._share_ns = share_ns
        self._report = report
        self._told_ns = _clock.now_ns()
        self._largest_rss: int | None = None
        self.device = torch.device("cpu")

    def measure(self, model: Callable[..., Any], example: Any, device: torch.device | None) -> BatchLatency:
        inputs = make_inputs(example, self._size, device)
        call = call_with(model, inputs)
        before_rss, before_peak = resident_bytes(), _device_peak(device)
        first, timer = self._first_call(call, inputs, device)
        before_peak = before_peak if before_peak is not None else _device_peak(self.device)
        warmup = self._warm_up(call, timer)
        samples, surroundings = self._sample(call, timer)
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
            cause=None if is_stable else likely_cause(times, surroundings),
            # The process's peak is its own and is not reset: where it did not rise, this batch size's is not known.
            device_peak_bytes=peak if peak is not None and before_peak is not None and peak > before_peak else None,
            rss_growth_bytes=(
                self._largest_rss - before_rss if self._largest_rss is not None and before_rss is not None else None
            ),
        )

    def _first_call(self, call: Callable[[], Any], inputs: Any, device: torch.device | None) -> tuple[Timed, Timer]:
        """The first call, and the timer of the device that it used: the model's, the inputs' or the result's."""
        devices = [device] if device is not None else [tensor.device for tensor in tensors_in(inputs)]
        on_cuda = next((one for one in devices if one.type == "cuda"), None)
        timer: Timer = CudaTimer(on_cuda) if on_cuda is not None else HostTimer()
        seen: list[torch.device] = []

        def looking() -> None:
            seen.extend(tensor.device for tensor in tensors_in(call()))

        first = timer.time(looking)
        if on_cuda is None:
            # A function may move its inputs to a device itself: its result tells.
            on_cuda = next((one for one in seen if one.type == "cuda"), None)
            timer = CudaTimer(on_cuda) if on_cuda is not None else timer
        self.device = on_cuda or torch.device("cpu")
        return first, timer

    def _warm_up(self, call: Callable[[], Any], timer: Timer) -> int:
        """Call until three windows in a row agree, at most for half of the time; how many calls that took."""
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
            self._tell()
        return calls

    def _sample(self, call: Callable[[], Any], timer: Timer) -> tuple[list[Timed], Any]:
        """Samples of a measurement that is stable, or of the last one for which there was time."""
        for _ in range(_TRIALS):
            watch = Watch()
            began = now = _clock.now_ns()
            samples: list[Timed] = []
            while len(samples) < _MOST_SAMPLES and (len(samples) < _SAMPLES or now - began < _SAMPLING_NS):
                samples.append(timer.time(call))
                now = _clock.now_ns()
                if now >= self._ends_ns:
                    break
                if now - self._told_ns > _TOLD_NS:
                    self._tell()
            self._tell()
            took = now - began
            # Another trial that the time would cut short would tell less than this one.
            if stable([sample.ns for sample in samples]) or now + took > self._ends_ns:
                break
        return samples, watch.surroundings(on_device=isinstance(timer, CudaTimer))

    def _tell(self) -> None:
        self._told_ns = now = _clock.now_ns()
        rss = resident_bytes()
        self._largest_rss = max(filter(None, (self._largest_rss, rss)), default=None)
        self._report(1 - (self._ends_ns - now) / self._share_ns if self._share_ns else 1.0)


def _device_peak(device: torch.device | None) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device is not None and device.type == "cuda" else None


def _problem(error: Exception) -> str:
    line = next(iter(str(error).strip().splitlines()), "")
    return f"out of memory: {line}" if is_out_of_memory(error) else f"{type(error).__name__}: {line}".rstrip(": ")
