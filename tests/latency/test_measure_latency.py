"""A model's latency by batch size: the numbers, what is restored, and what is refused."""

from __future__ import annotations

import json
import random
import time
from collections import UserDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import perfkit
from perfkit.latency.results import BatchLatency, Latency
from perfkit.latency.timers import CudaTimer

ROW = torch.zeros(1, 4)


class Planted(nn.Module):
    """Takes a given time, on perfkit's clock."""

    def __init__(self, clock: Any, *ms_per_call: float, per_sample_ms: float = 0.0) -> None:
        super().__init__()
        self.clock, self.ms, self.per_sample_ms = clock, ms_per_call, per_sample_ms
        self.calls = 0
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ms = self.ms[min(self.calls, len(self.ms) - 1)]
        self.calls += 1
        self.clock.pass_ms(ms + self.per_sample_ms * len(x))
        return x


def test_medians_throughput_and_the_knee_follow_the_planted_times(clock: Any) -> None:
    model = Planted(clock, 4.0, per_sample_ms=1.0)

    found = perfkit.measure_latency(model, ROW, (64, 1, 8, 256))

    assert [(b.batch_size, b.p50_ns, b.p99_ns) for b in found.batches] == [
        (1, 5_000_000, 5_000_000),
        (8, 12_000_000, 12_000_000),
        (64, 68_000_000, 68_000_000),
        (256, 260_000_000, None),  # half a minute is too short for a hundred of them
    ]
    assert found.batches[1].samples_per_s == pytest.approx(8 / 0.012)
    assert found.knee == 64
    assert found.verdict == (
        "batch size 64 is the largest that is worth it: from 64 to 256 throughput changes by +2% per doubling "
        "(worth it from 10%)"
    )


def test_a_slow_start_is_not_sampled(clock: Any) -> None:
    (one,) = perfkit.measure_latency(Planted(clock, 900, 300, 200, 100, 50, 10.0), ROW, (1,)).batches

    assert one.first_call_ns == 900_000_000
    assert one.min_ns == one.p99_ns == 10_000_000
    assert one.stable


def test_a_latency_that_never_settles_is_reported_as_not_stable_with_the_likely_cause(clock: Any) -> None:
    rising = [1 + 0.004 * i for i in range(40_000)]

    found = perfkit.measure_latency(Planted(clock, *rising), ROW, (1,), budget_s=5)

    (one,) = found.batches
    assert not one.stable
    assert not found.stable
    assert one.drift is not None
    assert one.drift > 0.10
    assert "steadily slower" in (one.cause or "")
    assert "NOT STABLE" in str(found)
    assert "?1" in str(found)
    assert found.knee is None


def test_an_unstable_trial_is_repeated_while_there_is_time(clock: Any) -> None:
    warm, noisy, calm = [10.0] * 20, [10.0, 30.0] * 100, [10.0]

    (one,) = perfkit.measure_latency(Planted(clock, *warm, *noisy, *calm), ROW, (1,)).batches

    assert one.stable
    assert one.p99_ns == 10_000_000


def test_one_call_longer_than_the_budget_is_reported_as_one_call(clock: Any) -> None:
    found = perfkit.measure_latency(Planted(clock, 60_000.0), ROW, (1, 8), budget_s=2)

    assert [(b.samples, b.p50_ns, b.p90_ns, b.stable) for b in found.batches] == [(1, 60_000_000_000, None, False)] * 2
    assert "only 1 call in the time budget" in (found.batches[0].cause or "")


def test_real_sleeps_have_the_planted_ratio() -> None:
    def model(x: torch.Tensor) -> None:
        time.sleep(0.008 * len(x))

    found = perfkit.measure_latency(model, ROW, (1, 4), budget_s=3)

    # The quickest of each: a busy machine wakes a sleeper late.
    small, large = (batch.min_ns or 0 for batch in found.batches)
    assert 3 < large / small < 5


class FakeCuda:
    """A device on which a test decides how much time passes between two events."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.now_ms = 0.0
        monkeypatch.setattr(torch.cuda, "Event", self.event)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: self.done.append("wait for the device"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")

    def event(self, *, enable_timing: bool) -> Any:
        cuda, name = self, "end" if "made" in self.done else "begin"
        self.done.append("made")

        class Event:
            at_ms = -1.0

            def record(self, stream: Any) -> None:
                assert stream == "stream of cuda:1"
                self.at_ms = cuda.now_ms
                cuda.done.append(name)

            def synchronize(self) -> None:
                cuda.done.append(f"wait for {name}")

            def elapsed_time(self, other: Any) -> float:
                return float(other.at_ms - self.at_ms)

        return Event()


def test_on_a_gpu_a_call_is_between_two_events_and_nothing_is_queued_before_it(
    clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda(monkeypatch)
    timer = CudaTimer(torch.device("cuda:1"))

    def call() -> None:
        cuda.done.append("call")
        clock.pass_ms(0.5)  # the host only launches
        cuda.now_ms += 12.0

    times = [timer.time(call), timer.time(call)]

    one = ["begin", "call", "end", "wait for end"]
    assert cuda.done == ["made", "made", "wait for the device", *one, *one]
    assert times == [(12_000_000, 500_000)] * 2


def test_memory_is_measured_where_it_is_known_and_null_elsewhere() -> None:
    (one,) = perfkit.measure_latency(nn.Linear(4, 2), ROW, (1,), budget_s=0.5).batches

    assert one.device_peak_bytes is None
    assert one.host_ns is None
    assert one.rss_growth_bytes is not None


# -- inputs


def shapes_seen(example: Any, size: int) -> Any:
    seen: list[Any] = []

    def model(*positional: Any, **keywords: Any) -> None:
        shape = [tuple(value.shape) if isinstance(value, torch.Tensor) else value for value in positional]
        seen.append((shape, {name: tuple(value.shape) for name, value in keywords.items()}))

    perfkit.measure_latency(model, example, (size,), budget_s=0.05)
    return seen[0]


def test_examples_are_tensors_tuples_mappings_and_callables() -> None:
    x, mask = torch.zeros(2, 3), torch.zeros(7, 7)

    assert shapes_seen(x, 5) == ([(5, 3)], {})
    assert shapes_seen((x, mask, "a"), 5) == ([(5, 3), (7, 7), "a"], {})
    assert shapes_seen({"x": x, "mask": mask}, 1) == ([], {"x": (1, 3), "mask": (7, 7)})
    assert shapes_seen(UserDict(x=x), 3) == ([], {"x": (3, 3)})  # as tokenizers return
    assert shapes_seen(lambda size: (torch.zeros(size, 9), size), 4) == ([(4, 9), 4], {})


def test_rows_of_the_example_are_repeated_in_order_as_real_rows() -> None:
    seen: list[torch.Tensor] = []

    perfkit.measure_latency(seen.append, torch.tensor([[1.0], [2.0]]), (5,), budget_s=0.05)

    assert seen[0].flatten().tolist() == [1, 2, 1, 2, 1]
    assert seen[0].is_contiguous()


# -- what is restored


class Adapter(nn.Linear):
    """Merges on eval(), as adapters of low rank do: undoing the flag alone would leave it merged."""

    merged = False

    def train(self, mode: bool = True) -> Any:
        self.merged = not mode
        return super().train(mode)


def test_modes_of_all_modules_are_restored_even_mixed_ones() -> None:
    adapter, norm = Adapter(4, 4), nn.BatchNorm1d(4)
    model = nn.Sequential(adapter, nn.Sequential(nn.Dropout(0.5), norm))
    norm.eval()
    before = [module.training for module in model.modules()]
    inside: list[bool] = []
    model.register_forward_hook(lambda *_: inside.extend(module.training for module in model.modules()))

    perfkit.measure_latency(model, ROW, (2,), budget_s=0.1)

    assert not any(inside)
    assert [module.training for module in model.modules()] == before
    assert not adapter.merged
    assert norm.num_batches_tracked == 0


def test_a_model_that_raises_is_restored_too_and_its_error_is_the_cause() -> None:
    model = nn.Sequential(nn.Linear(3, 3))

    with pytest.raises(perfkit.UsageError, match=r"at no batch size: at 2, RuntimeError: .*mat1 and mat2") as caught:
        perfkit.measure_latency(model, ROW, (2, 4))

    assert isinstance(caught.value.__cause__, RuntimeError)
    assert model.training


def test_random_numbers_and_the_gradient_mode_are_restored() -> None:
    def model(x: torch.Tensor) -> tuple[torch.Tensor, float, Any]:
        modes.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        return torch.rand_like(x), random.random(), np.random.rand()

    def draw() -> list[float]:
        return [torch.rand(1).item(), random.random(), float(np.random.rand())]

    modes: list[tuple[bool, bool]] = []
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    expected = draw()
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    perfkit.measure_latency(model, ROW, (1,), budget_s=0.05)
    assert modes[-1] == (False, True)
    perfkit.measure_latency(model, ROW, (1,), budget_s=0.05, inference_mode=False)

    assert modes[-1] == (True, False)
    assert draw() == expected
    assert torch.is_grad_enabled()


# -- what cannot be measured


def test_a_batch_size_that_the_model_cannot_take_is_reported_and_the_rest_is_measured(clock: Any) -> None:
    inner = Planted(clock, 10.0)

    def model(x: torch.Tensor) -> Any:
        if len(x) == 8:
            raise ValueError("a batch of 8\nis odd")
        return inner(x)

    found = perfkit.measure_latency(model, ROW)

    assert [batch.problem for batch in found.batches] == [None, "ValueError: a batch of 8", None]
    assert found.batches[2].p50_ns == 10_000_000
    assert found.batches[1].p50_ns is None
    assert "batch size 8 was not measured: ValueError: a batch of 8" in str(found)


def test_after_out_of_memory_larger_sizes_are_not_tried(clock: Any) -> None:
    inner, tried = Planted(clock, 10.0), set()

    def model(x: torch.Tensor) -> Any:
        tried.add(len(x))
        if len(x) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return inner(x)

    found = perfkit.measure_latency(model, ROW, (1, 64, 128))

    assert tried == {1, 64}
    assert (found.batches[1].problem or "").startswith("out of memory: CUDA out of memory. Tried")
    assert found.batches[2].problem == "not tried: 64 already ran out of memory"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": 3}, "model must be a module or a callable, got int"),
        ({"example": "text"}, "example must hold a tensor whose first dimension is the batch"),
        ({"example": (torch.tensor(1.0),)}, "example must hold a tensor"),
        ({"example": torch.zeros(0, 3)}, "at least one sample"),
        ({"batch_sizes": ()}, "batch_sizes must be positive whole numbers"),
        ({"batch_sizes": 8}, "batch_sizes must be positive whole numbers"),
        ({"batch_sizes": "8"}, "batch_sizes must be positive whole numbers"),
        ({"batch_sizes": (1, 0)}, "batch_sizes must be positive whole numbers"),
        ({"batch_sizes": (1, True)}, "batch_sizes must be positive whole numbers"),
        ({"budget_s": 0}, "budget_s must be a positive number of seconds"),
        ({"budget_s": float("nan")}, "budget_s must be a positive number of seconds"),
        ({"model": nn.Linear(1, 1, device="meta")}, "measured on cpu and cuda, the model is on meta"),
    ],
)
def test_wrong_arguments_raise_before_the_model_is_called(arguments: dict[str, Any], words: str) -> None:
    called: list[Any] = []

    given: dict[str, Any] = {"model": called.append, "example": ROW} | arguments
    with pytest.raises(perfkit.UsageError, match=words):
        perfkit.measure_latency(**given)

    assert not called


def test_a_model_on_two_devices_is_refused() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, device="meta"))

    with pytest.raises(perfkit.UsageError, match="must be on one device, it is on cpu, meta"):
        perfkit.measure_latency(model, ROW)


@pytest.mark.parametrize(("budget_s", "shown"), [(0.5, False), (5, True)])
def test_a_progress_bar_is_shown_on_a_terminal_after_one_second(
    budget_s: float, shown: bool, clock: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setattr("perfkit.latency.progress_bar.time", SimpleNamespace(monotonic=lambda: clock.now / 1e9))

    perfkit.measure_latency(Planted(clock, 20.0), ROW, (1,), budget_s=budget_s)

    out, err = capsys.readouterr()
    assert ("latency at batch size 1" in err) is shown
    assert out == ""


# -- how it is shown


def latency(*batches: BatchLatency) -> Latency:
    return Latency(
        model="<b>Net</b>", device="cuda:0", device_name="A100", threads=4, inference_mode=True, batches=batches
    )


def batch(size: int, ms: float, **fields: Any) -> BatchLatency:
    p50 = round(ms * 1e6)
    return BatchLatency(
        batch_size=size,
        **({"samples": 200, "p50_ns": p50, "p90_ns": p50, "samples_per_s": size / ms * 1e3, "stable": True} | fields),
    )


def test_the_table_shows_times_throughput_and_memory() -> None:
    found = latency(batch(1, 2.0, p99_ns=3_000_000, device_peak_bytes=5_000_000), batch(8, 4.0, host_ns=3_900_000))

    assert str(found).splitlines() == [
        "latency of <b>Net</b> on cuda:0 (A100), 4 host threads, inference mode",
        "batch     p50     p90     p99  samples/s  memory",
        "    1  2.0 ms  2.0 ms  3.0 ms        500  5.0 MB",
        "    8  4.0 ms  4.0 ms       -      2,000       -",
        "throughput still rises at batch size 8, by 59% per doubling from 1: try larger sizes",
        "batch size 8: the host takes as long to launch as the device to compute",
    ]


def test_the_json_has_what_was_measured_and_null_for_the_rest() -> None:
    content = json.loads(latency(batch(1, 2.0), batch(8, 16.0), BatchLatency(batch_size=64, problem="no")).to_json())

    assert (content["schema"], content["knee"], content["stable"]) == (1, 1, True)
    assert content["batches"][0]["p99_ns"] is None
    assert content["batches"][2]["problem"] == "no"
    assert content["verdict"].startswith("batch size 1 is the largest that is worth it")


def test_a_call_too_short_for_the_clock_is_in_neither_the_verdict_nor_the_drawing() -> None:
    found = latency(batch(1, 1.0, p50_ns=0, p90_ns=0, samples_per_s=None), batch(8, 2.0), batch(64, 4.0))

    assert found.knee == 64
    assert found._repr_html_().count("<circle") == 2


def test_the_notebook_view_has_the_drawing_and_no_markup_of_the_models() -> None:
    html = latency(batch(1, 2.0), batch(8, 4.0, stable=False, drift=0.3, spread=0.1, cause="x"))._repr_html_()

    assert "<svg" in html
    assert html.count("<circle") == 2
    assert html.count("fill='none' stroke='#2a78d6'/>") == 1  # the one that is not stable is hollow
    assert "<b>Net" not in html
    assert "NOT STABLE (drift 30%, quartiles 10% apart); likely cause: x" in html
    assert "<svg" not in latency(batch(1, 2.0))._repr_html_()
