from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from perfkit.diagnosis import diagnose
from perfkit.limits.device_peaks import PEAKS
from perfkit.measures.device.roofline import measure_roofline
from perfkit.measures.ops._op_work import FORMULAS, work_of
from perfkit.measures.results.kernels import Roofline
from perfkit.trace import Kind, Trace, read_trace

if TYPE_CHECKING:
    from .conftest import TraceBuilder

BF16 = "c10::BFloat16"


def test_a_product_counts_two_flops_for_each_pair_and_each_matrix_once() -> None:
    work = work_of("aten::mm", [[8944, 1024], [1024, 2816]], [BF16, BF16], None)

    assert work is not None
    assert work.flops == 2 * 8944 * 1024 * 2816  # 51.58 GFLOP
    assert work.bytes == 2 * (8944 * 1024 + 1024 * 2816 + 8944 * 2816)
    assert work.flops / work.bytes == pytest.approx(692.8, abs=0.1)


@pytest.mark.parametrize(
    ("name", "dims", "types", "moved"),
    [
        ("aten::add", [[8, 1], [4]], ["float", "float"], 4 * (8 + 4 + 32)),
        ("aten::add_", [[100], [100], []], ["float", "float", "Scalar"], 4 * 300),
        ("aten::copy_", [[10], [10], []], ["float", BF16, "Scalar"], 2 * 10 + 4 * 10),
        ("aten::fill_", [[10], []], ["float", "Scalar"], 40),
        ("aten::eq", [[10], [10]], ["double", "double"], 8 * 20 + 10),
        ("aten::sum", [[10, 10]], ["float"], 400),
        ("aten::native_layer_norm", [[4, 8], [], [8], [8], []], [BF16, "ScalarList", BF16, BF16, "Scalar"], 2 * 80),
        ("aten::_foreach_add_", [[[4], [6]], [[4], [6]], []], ["TensorList", "TensorList", "Scalar"], 4 * 30),
        ("aten::_fused_adamw_", [[[5]], [[5]], [[5]], [[5]], [], [[]]], ["TensorList"] * 6, 4 * 5 * 7),
        ("aten::cat", [[[2, 3], [4, 3]], []], ["TensorList", "Scalar"], 2 * 4 * 18),
    ],
)
def test_bytes_are_what_is_read_and_written_once(name: str, dims: Any, types: list[str], moved: int) -> None:
    work = work_of(name, dims, types, None)

    assert work is not None
    assert work.bytes == moved
    assert work.certain == ("TensorList" not in types)


def test_flops_of_recorded_ops_are_those_that_torch_counts(tmp_path: Path) -> None:
    torch.manual_seed(0)
    image = torch.randn(2, 4, 15, 17, requires_grad=True)
    layers = [
        torch.nn.Conv2d(4, 6, (3, 5), stride=2, padding=(1, 2), dilation=(1, 2), groups=2),
        torch.nn.ConvTranspose2d(6, 8, 3, stride=2, groups=2),
    ]
    batched = torch.randn(3, 4, 5, requires_grad=True)

    def compute() -> None:
        hidden = image
        for layer in layers:
            hidden = layer(hidden)
        rows = torch.nn.functional.linear(hidden.flatten(1), torch.ones(7, hidden[0].numel()), torch.ones(7))
        (rows.sum() + torch.bmm(batched, batched.mT).sum()).backward()

    with FlopCounterMode(display=False) as counter:
        compute()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        compute()
    profiler.export_chrome_trace(str(tmp_path / "t.json"))
    trace = read_trace(tmp_path / "t.json")

    found = dict.fromkeys(("convolution", "convolution_backward", "mm", "addmm", "bmm"), 0)
    for row in (trace.is_kind(Kind.OP)).nonzero()[0].tolist():
        name = trace.names[trace.name[row]].removeprefix("aten::")
        if name in found:
            args = trace.args([row])[0]
            work = work_of(f"aten::{name}", args["Input Dims"], args["Input type"], args["Concrete Inputs"])
            assert work is not None
            found[name] += work.flops

    counted = {str(op).removeprefix("aten."): flops for op, flops in counter.get_flop_counts()["Global"].items()}
    # Of grouped convolutions torch counts the gradient of the weights as if they were not grouped.
    assert found.pop("convolution_backward") == 2 * counted["convolution"]
    assert found == {name: counted[name] for name in found}


def test_flops_of_attention_are_those_that_torch_counts() -> None:
    query, key = (2, 3, 32, 16), (2, 3, 48, 16)
    forward = work_of("aten::_scaled_dot_product_flash_attention", [query, key, key], [BF16] * 3, [""] * 4 + ["True"])
    backward = work_of(
        "aten::_scaled_dot_product_flash_attention_backward",
        [list(query), list(query), list(key), list(key)],
        [BF16] * 4,
        [""] * 11 + ["False"],
    )

    assert forward is not None
    assert forward.flops == sdpa_flop_count(query, key, key)  # torch does not know the mask; lengths differ here
    assert backward is not None
    assert backward.flops == sdpa_backward_flop_count(query, query, key, key)


def test_a_causal_mask_halves_the_work_of_equal_lengths() -> None:
    dims, types = [[1, 2, 64, 8]] * 3, [BF16] * 3
    whole, half = (
        work_of("aten::_scaled_dot_product_flash_attention", dims, types, ["", "", "", "0.", causal])
        for causal in ("False", "True")
    )

    assert whole is not None
    assert half is not None
    assert whole.flops == 2 * half.flops


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@given(
    st.sampled_from(sorted(FORMULAS)), JUNK, st.lists(st.sampled_from(["float", "TensorList", "Scalar", "", 3])), JUNK
)
def test_arguments_that_make_no_sense_have_no_work(name: str, dims: Any, types: Any, concrete: Any) -> None:
    work = work_of(name, dims, types, concrete)

    assert work is None or (0 <= work.flops < 2**60 and 0 <= work.bytes < 2**60)


def _device(build: TraceBuilder, name: str, **properties: int) -> Callable[[], Roofline]:
    def read() -> Roofline:
        file = build.folder / "built.json"
        head = json.dumps([{"id": 0, "name": name, **properties}])
        file.write_text(f'{{"deviceProperties": {head}, "traceEvents": [\n' + ",\n".join(build.events) + "\n]}")
        (found,) = measure_roofline(read_trace(file))
        return found

    return read


def test_each_kernel_is_bound_by_what_its_numbers_show(build: TraceBuilder) -> None:
    read = _device(build, "NVIDIA A100-SXM4-40GB")
    shapes = {"Input Dims": [[1024, 1024], [1024, 1024]], "Input type": [BF16, BF16]}
    build.op("aten::mm", 0, 1_000, **shapes)
    # 2 * 1024^3 FLOP at 312 TFLOP/s take 6.9 us: 10 us are 69 % of the peak.
    build.launch(100, 10_000, 20_000)
    build.op("aten::add", 2_000, 3_000, **shapes)
    # 3 * 2 MB at 1,555 GB/s take 4.05 us.
    build.launch(2_100, 30_000, 35_000)
    build.op("aten::add", 4_000, 5_000, **{**shapes, "Input Dims": [[8], [8]]})
    build.launch(4_100, 40_000, 42_000)
    build.op("my::op", 6_000, 7_000, **shapes)
    build.launch(6_100, 50_000, 50_500)

    found = read()

    assert found.time_ns == {"compute": 10_000, "memory": 5_000, "neither": 2_000, "unknown": 500}
    assert (found.device_ns, found.peaks_source, found.problem) == (17_500, "NVIDIA A100 data sheet", None)
    mm, add, small = found.points
    assert (mm.op, mm.shapes, mm.bound, mm.precision) == ("aten::mm", "1024x1024 1024x1024", "compute", "bfloat16")
    assert mm.compute_share == pytest.approx(2 * 1024**3 / 1e-5 / 312e12)
    assert (add.bound, add.memory_share) == ("memory", pytest.approx(3 * 2 * 1024**2 / 5e-6 / 1555e9))
    assert small.bound == "neither"
    assert mm.confidence == "high"


def test_a_device_of_unknown_name_has_the_peaks_of_its_units_and_the_report_says_so(build: TraceBuilder) -> None:
    read = _device(build, "NVIDIA A100X", computeMajor=8, computeMinor=0, numSms=108)
    shapes = {"Input Dims": [[1024, 1024], [1024, 1024]], "Input type": [BF16, BF16]}
    build.op("aten::mm", 0, 1_000, **shapes)
    build.launch(100, 10_000, 20_000)
    build.op("aten::add", 2_000, 3_000, **shapes)
    build.launch(2_100, 30_000, 35_000)

    found = read()

    # What arithmetic limits is placed; whether memory limits the other cannot be told without its bandwidth.
    [mm] = found.points
    assert (mm.op, mm.bound, mm.memory_share, mm.confidence) == ("aten::mm", "compute", None, "low")
    assert mm.compute_share == pytest.approx(2 * 1024**3 / 1e-5 / 312e12, rel=0.01)
    assert found.time_ns == {"compute": 10_000, "memory": 0, "neither": 0, "unknown": 5_000}
    about = (
        "The peaks of NVIDIA A100X are not in perfkit's table; derived from 108 multiprocessors of compute capability "
        "8.0 at 1.41 GHz, usual for such chips; its memory bandwidth is not known"
    )
    assert about in diagnose(build.folder / "built.json").missing


def test_float32_is_compared_with_the_units_that_its_kernel_used(build: TraceBuilder) -> None:
    read = _device(build, "NVIDIA A100-SXM4-40GB")
    for at, name in ((0, "ampere_sgemm_128x64_nn"), (2_000, "cutlass_80_tensorop_s1688gemm_128x128")):
        build.op("aten::mm", at, at + 1_000, **{"Input Dims": [[512, 512], [512, 512]], "Input type": ["float"] * 2})
        build.launch(at + 100, 10 * at + 10_000, 10 * at + 30_000, name)

    found = read()

    assert {point.precision: point.compute_share for point in found.points} == {
        "float32": pytest.approx(2 * 512**3 / 2e-5 / 19.5e12),
        "tf32": pytest.approx(2 * 512**3 / 2e-5 / 156e12),
    }


def test_a_share_above_the_peak_is_not_believed(build: TraceBuilder) -> None:
    read = _device(build, "NVIDIA A100-SXM4-40GB")
    build.op("aten::mm", 0, 1_000, **{"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": [BF16, BF16]})
    build.launch(100, 10_000, 11_000)

    (point,) = read().points

    assert point.compute_share > 1
    assert point.confidence == "low"


@pytest.mark.parametrize(("device", "shapes"), [("My GPU", True), ("", True), ("NVIDIA H200", False)])
def test_what_cannot_be_placed_is_unknown_with_the_reason(build: TraceBuilder, device: str, shapes: bool) -> None:
    read = _device(build, device)
    args = {"Input Dims": [[8, 8], [8, 8]], "Input type": [BF16, BF16]} if shapes else {}
    build.op("aten::mm", 0, 1_000, **args)
    build.launch(100, 10_000, 20_000)

    found = read()

    assert found.time_ns == {"compute": 0, "memory": 0, "neither": 0, "unknown": 10_000}
    assert found.problem is not None


def test_of_a_long_trace_steps_in_the_middle_represent_all(
    build: TraceBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfkit.measures.device.roofline.MAX_CALLS", 8)
    read = _device(build, "NVIDIA H200")
    for number in range(9):
        at = 10_000 * number
        build.step(number, at, at + 10_000)
        for i in range(2):
            shapes = {"Input Dims": [[number + 1, 8], [8, 8]], "Input type": [BF16, BF16]}
            build.op("aten::mm", at + 1_000 * i, at + 1_000 * i + 900, **shapes)
            build.launch(at + 1_000 * i + 100, at + 1_000 * i + 300, at + 1_000 * i + 400)

    found = read()

    assert (found.steps, found.device_ns) == (3, 3 * 2 * 100)
    assert sorted(point.shapes for point in found.points) == ["4x8 8x8", "5x8 8x8", "6x8 8x8"]


def test_a_cpu_trace_has_no_roof(recorded: Trace) -> None:
    assert measure_roofline(recorded) == ()


def test_every_peak_has_a_source_and_ridges_lie_where_devices_have_them() -> None:
    for peaks in PEAKS.values():
        assert len(peaks.source) > 10
        for precision in peaks.tflops if not peaks.source.startswith("Apple") else ():
            assert 7 < (peaks.ridge(precision) or 0) < 1_200, (peaks.source, precision)
        assert peaks.ridge("int4") is None


def test_kernel_time_of_real_traces_is_split_completely(shared_trace: Trace) -> None:
    for found in measure_roofline(shared_trace):
        assert sum(found.time_ns.values()) == found.device_ns
        assert all(ns >= 0 for ns in found.time_ns.values())
        for point in found.points:
            # Nothing beats the device; what seems to by 5 % is marked.
            assert point.confidence == "low" or max(point.compute_share, point.memory_share or 0.0) <= 1.05
