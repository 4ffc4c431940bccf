from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from perfkit.measures.device.communication import measure_communication
from perfkit.measures.results.device import Collective, Communication
from perfkit.trace import Trace

if TYPE_CHECKING:
    from .conftest import TraceBuilder

KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


def message(name: str, elements: int, out: int | None = None, dtype: str = "Float", group: int = 8) -> dict[str, Any]:
    return {
        "Collective name": name,
        "In msg nelems": elements,
        "Out msg nelems": elements if out is None else out,
        "Group size": group,
        "dtype": dtype,
    }


def measured(build: TraceBuilder) -> Communication:
    (found,) = measure_communication(build.read())
    return found


def only(build: TraceBuilder) -> Collective:
    (found,) = measured(build).collectives
    return found


def test_what_compute_hides_and_what_nothing_hides(build: TraceBuilder) -> None:
    build.work(KERNEL, 0, 10_000, 20, **message("allreduce", 1_000))
    build.work("gemm", 2_000, 5_000)
    build.work("Memcpy HtoD (Pinned -> Device)", 4_000, 7_000, 21)

    found = measured(build)

    assert (found.total_ns, found.overlap_ns, found.exposed_ns) == (10_000, 3_000, 5_000)
    assert found.collectives[0].exposed_ns == 5_000


@pytest.mark.parametrize(
    ("name", "sizes", "size", "factor"),
    [
        ("allreduce", (1_000, 1_000), 4_000, 2 * 7 / 8),
        ("_allgather_base", (1_000, 8_000), 32_000, 7 / 8),
        ("reduce_scatter_tensor_coalesced", (8_000, 1_000), 32_000, 7 / 8),
        ("all_to_all", (1_000, 1_000), 4_000, 7 / 8),
        ("broadcast", (1_000, 1_000), 4_000, 1),
    ],
)
def test_bandwidth_follows_from_the_message_as_in_nccl_tests(
    build: TraceBuilder, name: str, sizes: tuple[int, int], size: int, factor: float
) -> None:
    build.work(KERNEL, 0, 2_000, 20, **message(name, *sizes))

    found = only(build)

    assert found.bytes == size
    assert found.algorithm_bytes_per_s == pytest.approx(size / 2e-6)
    assert found.bus_bytes_per_s == pytest.approx(size / 2e-6 * factor)


def test_the_time_beyond_the_fastest_of_one_size_hints_at_ranks_that_came_late(build: TraceBuilder) -> None:
    for start, length, elements in ((0, 1_000, 500), (10_000, 4_000, 500), (20_000, 9_000, 2_000)):
        build.work(KERNEL, start, start + length, 20, **message("allreduce", elements, dtype="BFloat16"))

    found = only(build)

    assert (found.count, found.total_ns, found.bytes, found.waiting_ns) == (3, 14_000, 6_000, 3_000)
    assert found.best_bus_bytes_per_s == pytest.approx(1_000 / 1e-6 * 2 * 7 / 8)


def test_kernels_without_arguments_have_those_of_the_op_that_recorded_them(build: TraceBuilder) -> None:
    build.op("record_param_comms", 0, 1_000, **message("allreduce", 500))
    build.launch(100, 2_000, 3_000, KERNEL, stream=20)

    assert (only(build).name, only(build).bytes, only(build).group_size) == ("allreduce", 2_000, 8)


def test_old_traces_have_the_message_in_the_shapes_of_the_range(build: TraceBuilder) -> None:
    build.add("user_annotation", "nccl:all_to_all", 0, 1_000, **{"Input Dims": [[8, 100]], "Input type": ["float"]})
    build.launch(100, 2_000, 3_000, "ncclKernel_SendRecv_RING_SIMPLE", stream=20)

    found = only(build)

    assert (found.name, found.bytes, found.group_size) == ("alltoall", 3_200, None)
    assert found.algorithm_bytes_per_s == pytest.approx(3.2e9)
    assert found.bus_bytes_per_s is None  # the number of ranks is unknown


def test_a_collective_without_arguments_is_named_by_its_kernel(build: TraceBuilder) -> None:
    build.work("void deep_ep::intranode::dispatch<8>()", 0, 1_000, 20)

    found = only(build)

    assert found.name == "void deep_ep::intranode::dispatch<8>()"
    assert (found.bytes, found.algorithm_bytes_per_s, found.bus_bytes_per_s, found.waiting_ns) == (None,) * 4


def test_without_communication_there_is_nothing_to_hide(build: TraceBuilder) -> None:
    build.work("gemm", 0, 1_000)

    assert measure_communication(build.read()) == ()


def test_bandwidths_of_a_real_trace_are_those_of_a_link(shared: Callable[[str], Trace]) -> None:
    (found,) = measure_communication(shared("a100-2ranks-nccl.json.gz"))

    by_kind = {(one.name, one.dtype): one for one in found.collectives}
    assert {kind: one.count for kind, one in by_kind.items()} == {
        ("allreduce", "Float"): 15,
        ("broadcast", "Float"): 3,
        ("broadcast", "Long"): 3,
    }
    allreduce = by_kind["allreduce", "Float"]
    assert allreduce.bytes == 3 * 102_228_128  # the gradients of one model, every step
    assert allreduce.best_bus_bytes_per_s is not None
    assert (allreduce.bus_bytes_per_s or 0) < allreduce.best_bus_bytes_per_s < 300e9  # NVLink 3 of an A100


def test_beyond_the_first_thousands_a_kernel_is_what_others_of_its_name_were(
    build: TraceBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfkit.measures.device.communication.MAX_READ", 2)
    for i in range(5):
        build.work(KERNEL, 10_000 * i, 10_000 * i + 1_000, 20, **message("allreduce", 500))
    build.work("ncclDevKernel_SendRecv(ncclDevComm*)", 90_000, 91_000, 20, **message("send", 500))

    found = [(one.name, one.count, one.bytes) for one in measured(build).collectives]

    assert found == [("allreduce", 5, 4_000), ("ncclDevKernel_SendRecv(ncclDevComm*)", 1, None)]


@pytest.mark.parametrize("elements", [10**30, -1, 0, 1.5, "many", None, [3]])
def test_a_message_of_no_possible_size_has_no_bandwidth(build: TraceBuilder, elements: Any) -> None:
    args = {"Collective name": "allreduce", "In msg nelems": elements, "Group size": "two", "dtype": ["Float"]}
    build.work(KERNEL, 0, 1_000, 20, **args)

    found = only(build)

    assert (found.name, found.count, found.sized, found.algorithm_bytes_per_s) == ("allreduce", 1, 0, None)
