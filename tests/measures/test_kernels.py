from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfkit.measures.device.kernels import OF_EACH, measure_kernels
from perfkit.measures.gathering import measure
from perfkit.measures.results.kernels import ApiCall, Kernels, OsCall
from perfkit.trace import Trace, read_trace

GEMM = "ampere_fp16_s16816gemm_fp16_128x128_nn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"

Work = list[tuple[str, int, dict[str, Any]]]


@pytest.fixture
def measured(tmp_path: Path) -> Callable[..., Kernels]:
    """Measures device work given as (name, duration in us, arguments), on a device of capability 8.0 with 100 SMs."""

    def build(work: Work, *, capability: tuple[int, int] = (8, 0)) -> Kernels:
        device = {"id": 0, "name": "x", "numSms": 100, "computeMajor": capability[0], "computeMinor": capability[1]}
        events = [
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1000 * i, "dur": duration,
             "args": {"device": 0, "stream": 7, **args}}
            for i, (name, duration, args) in enumerate(work)
        ]  # fmt: skip
        for event in events:
            event["cat"] = (
                "gpu_memcpy" if "Memcpy" in event["name"] else "gpu_memset" if "Memset" in event["name"] else "kernel"
            )
        (tmp_path / "t.json").write_text(json.dumps({"deviceProperties": [device], "traceEvents": events}))
        found = measure_kernels(read_trace(tmp_path / "t.json"))
        assert found is not None
        return found

    return build


def launch(blocks: int, occupancy: float = 50.0, **more: Any) -> dict[str, Any]:
    args = {"grid": [blocks, 1, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 0}
    return {**args, "est. achieved occupancy %": occupancy, **more}


def test_kernels_are_counted_by_name_and_summed_by_class_and_precision(measured: Callable[..., Kernels]) -> None:
    found = measured([(GEMM, 10, {}), (ADD, 4, {}), (GEMM, 30, {}), ("mystery", 5, {})])

    gemm, mystery, add = found.rows
    assert (gemm.name, gemm.count, gemm.total_ns, gemm.mean_ns) == (GEMM, 2, 40_000, 20_000)
    assert (gemm.min_ns, gemm.max_ns) == (10_000, 30_000)
    assert gemm.deviation_ns == pytest.approx(10_000 * 2**0.5)
    assert (gemm.kernel_class, gemm.precision, gemm.tensor_cores) == ("matmul", "float16", True)
    assert (mystery.kernel_class, mystery.precision, add.kernel_class) == ("other", None, "elementwise")
    assert found.classes_ns == {"matmul": 40_000, "other": 5_000, "elementwise": 4_000}
    assert found.precisions_ns == {"float16": 40_000, "unknown": 5_000, "float32": 4_000}


def test_the_tensor_core_share_is_that_of_kernels_that_multiply_matrices(measured: Callable[..., Kernels]) -> None:
    found = measured(
        [(GEMM, 10, {}), ("ampere_sgemm_128x64_nn", 20, {}), ("triton_tem_fused_mm_0", 40, {}), (ADD, 80, {})]
    )

    assert (found.product_ns, found.tensor_core_ns, found.tensor_core_unknown_ns) == (70_000, 10_000, 40_000)


def test_the_multiprocessors_that_have_a_block_are_a_mean_by_time(
    measured: Callable[..., Kernels],
) -> None:
    found = measured([(GEMM, 30, launch(80)), (GEMM, 10, launch(100)), (ADD, 60, launch(5000, occupancy=100.0))])

    add, gemm = found.rows
    assert (gemm.sm_efficiency, add.sm_efficiency, found.sm_efficiency) == (0.85, 1, pytest.approx(0.94))
    assert (gemm.occupancy, add.occupancy, found.occupancy) == (0.5, 1, pytest.approx(0.8))
    assert (gemm.grid, gemm.block, gemm.registers) == ((80, 1, 1), (128, 1, 1), 32)


def test_an_occupancy_of_zero_which_kineto_writes_for_much_shared_memory_is_worked_out(
    measured: Callable[..., Kernels],
) -> None:
    much = launch(1000, occupancy=0, **{"shared memory": 80 << 10})  # 2 blocks of 4 warps of 64

    assert measured([(GEMM, 10, much)]).occupancy == 0.125
    assert measured([(GEMM, 10, much)], capability=(99, 0)).occupancy is None


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"grid": "x", "block": [1, 2], "registers per thread": -5, "est. achieved occupancy %": "inf"},
        {"grid": [0, 0, 0], "block": [2**40, 1, 1], "registers per thread": 10**30, "shared memory": "inf"},
        {"grid": [1.5, 1, None], "block": None, "blocks per SM": "N/A", "est. achieved occupancy %": float("nan")},
    ],
)
def test_arguments_that_are_missing_or_senseless_are_not_known(
    measured: Callable[..., Kernels], args: dict[str, Any]
) -> None:
    found = measured([(GEMM, 10, args)])

    assert (found.occupancy, found.sm_efficiency, found.rows[0].grid, found.rows[0].registers) == (None,) * 4


def test_copies_are_summed_by_direction_whatever_their_memory(measured: Callable[..., Kernels]) -> None:
    found = measured(
        [
            ("Memcpy HtoD (Pageable -> Device)", 3, {}),
            ("Memcpy HtoD (Pinned -> Device)", 2, {}),
            ("Memcpy PtoP (Device -> Device)", 1, {}),
            ("Memset (Device)", 4, {}),
        ]
    )

    assert {copy.name: (copy.count, copy.total_ns) for copy in found.copies} == {
        "Memcpy HtoD": (2, 5_000),
        "Memset": (1, 4_000),
        "Memcpy other": (1, 1_000),
    }
    assert (found.rows, found.total_ns, found.occupancy) == ((), 0, None)


def test_few_launches_of_each_name_are_read(measured: Callable[..., Kernels], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    fields = Trace.fields
    monkeypatch.setattr(Trace, "fields", lambda trace, rows, keys: (asked.extend(rows), fields(trace, rows, keys))[1])

    measured([(GEMM, 10, launch(80)), (ADD, 1, {})] * 500)

    assert len(asked) == 2 * OF_EACH
    assert max(asked) - min(asked) < 4 * OF_EACH  # side by side: few parts of the file are read


def test_classes_and_precisions_sum_to_the_time_of_all_kernels(shared_trace: Trace) -> None:
    found = measure_kernels(shared_trace)

    if found is None:
        assert not shared_trace.device_rows.size
        return
    assert sum(found.classes_ns.values()) == sum(found.precisions_ns.values()) == found.total_ns
    assert found.total_ns == sum(row.total_ns for row in found.rows)
    assert found.tensor_core_ns + found.tensor_core_unknown_ns <= found.product_ns <= found.total_ns
    assert all(row.min_ns <= row.mean_ns <= row.max_ns for row in (*found.rows, *found.copies))
    assert found.occupancy is None or 0 < found.occupancy <= 1


def test_a_path_is_measured_with_its_kernels_and_api_calls(build: Any) -> None:
    build.launch(0, 500, 900, GEMM)
    trace = build.read()

    found = measure(trace.path)

    (kernels,) = found.all(Kernels)
    assert [row.name for row in kernels.rows] == [GEMM]
    assert [call.name for call in found.all(ApiCall)] == ["cudaLaunchKernel"]
    assert found.all(OsCall) == ()
