"""cuda-graph-candidate: a launch-bound step that is the same every time; one that differs or waits is not reported."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit.measures.results.device import Distribution, Launches
from perfkit.measures.results.host import SyncCall
from perfkit.rules.device import cuda_graph_candidate

MS = 1_000_000


def launches(*per_step: int) -> Launches:
    spread = Distribution(mean=1, p50=1, p90=1, p99=1, max=1)
    count = sum(per_step)
    return Launches(
        device=0, steps=len(per_step), count=count, work=count, per_step=per_step, call_ns=1, latency_ns=spread,
        kernels=count, short_kernels=0, drained=count, starved_ns=0, depth=spread, depth_over_time=(),
    )  # fmt: skip


def test_equal_steps_that_wait_for_launches_could_be_one_graph(build: Any) -> None:
    device = build.device(1000, compute=600, causes={"operators": 300, "data loading": 100})

    [finding] = build.findings(cuda_graph_candidate, build.traced_step(100), device, launches(50, 50, 50))

    assert (finding.cost_ns, finding.saving_low_ns, finding.saving_high_ns) == (30 * MS, 0, 30 * MS)
    assert "the same 50 launches" in finding.message


@pytest.mark.parametrize(
    ("per_step", "causes", "syncs", "graph_launches"),
    [
        ((50, 50, 60), {"operators": 300}, 0, 0),
        ((50, 50), {"operators": 300}, 0, 0),
        ((50, 50, 50), {"operators": 100}, 0, 0),
        ((50, 50, 50), {"operators": 300, "allocation": 1}, 0, 0),
        ((50, 50, 50), {"operators": 300}, 3, 0),
        ((50, 50, 50), {"operators": 300}, 0, 1),
    ],
    ids=["steps differ", "too few steps", "little waiting", "allocates", "syncs", "has a graph"],
)
def test_a_step_that_cannot_be_one_graph_is_not_reported(
    per_step: tuple[int, ...], causes: dict[str, float], syncs: int, graph_launches: int, build: Any
) -> None:
    device = build.device(1000, compute=1000 - sum(causes.values()), causes=causes)
    device = msgspec.structs.replace(device, graph_launches=graph_launches)
    call = SyncCall(name="cudaStreamSynchronize", op=None, range=None, count=syncs, blocked_ns=1)

    assert build.findings(cuda_graph_candidate, build.traced_step(100), device, launches(*per_step), call) == []
