"""node-slowed: steps that the node makes slow are reported; what is harmless or costs nothing is not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit.diagnosis import diagnose
from perfkit.findings import Finding
from perfkit.measures.results.steps import Ranks, RankSummary
from perfkit.rules.ranks import node_slowed
from perfkit.run.records import MinMedianMax, NodeHealth, NodeSample, Phases

MS = 1_000_000
HEAT = ("hw_slowdown", "hw_thermal_slowdown")


def node(*parts: tuple[int, float, dict[str, Any]], **fields: Any) -> NodeHealth:
    """A card sampled every ten seconds; each part is a number of samples, the step in ms, and the values read."""
    samples: list[NodeSample] = []
    step = 0.0
    reasons: dict[str, int] = {}
    for count, step_ms, values in parts:
        for _ in range(count):
            step += 10_000 / step_ms
            usual: dict[str, Any] = {"sm_mhz": 1700, "utilization": 95, "reasons": (), "others": 0}
            samples.append(NodeSample(at_ns=len(samples) * 10_000 * MS, step=round(step), **(usual | values)))
            for reason in samples[-1].reasons or ():
                reasons[reason] = reasons.get(reason, 0) + 1
    usual_fields: dict[str, Any] = {
        "name": "H200",
        "max_sm_mhz": 1980,
        "temperature_c": MinMedianMax(50, 60, 90),
        "power_limit_w": 700.0,
    }
    return NodeHealth(uuid="u", taken=len(samples), samples=tuple(samples), reasons=reasons, **(usual_fields | fields))


def findings(build: Any, health: NodeHealth | None, step_ms: float = 100) -> list[Finding]:
    rank = msgspec.structs.replace(build.rank(), node=health, host="node7")
    return build.findings(node_slowed, build.step(step_ms), rank)


def test_heat_costs_the_time_by_which_its_steps_are_longer(build: Any) -> None:
    [finding] = findings(build, node((20, 100, {}), (20, 200, {"reasons": HEAT, "sm_mhz": 800})), 133)

    assert finding.message.startswith("The node, not the program: H200 of node7 lowers its clocks:")
    assert "hw_thermal_slowdown in 50%" in finding.message
    assert "affected steps take 200 ms, others 100 ms" in finding.message
    assert "cooling" in finding.advice
    assert finding.cost_ns == pytest.approx(100 * MS / 3, rel=0.05)  # a third of the steps
    assert finding.cost_ns is not None
    assert (finding.saving_low_ns, finding.saving_high_ns) == (finding.cost_ns // 2, finding.cost_ns)
    assert (finding.severity, finding.confidence) == ("warning", "high")  # 19% are expected to be saved


def test_heat_during_which_steps_are_as_fast_is_not_reported(build: Any) -> None:
    assert not findings(build, node((20, 100, {}), (20, 102, {"reasons": HEAT})))


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("sw_thermal_slowdown", "cooling"),
        ("hw_thermal_slowdown", "cooling"),
        ("hw_power_brake_slowdown", "power supply"),
        ("hw_slowdown", "power supply"),
    ],
)
def test_a_slowdown_during_the_whole_run_is_reported_without_a_cost(build: Any, reason: str, words: str) -> None:
    [finding] = findings(build, node((10, 100, {"reasons": (reason,)})))

    assert words in finding.advice
    assert (finding.cost_ns, finding.severity, finding.confidence) == (None, "warning", "medium")
    assert [item.name for item in finding.evidence if item.value is None] == ["cost per step"]


@pytest.mark.parametrize("reason", ["gpu_idle", "applications_clocks_setting", "sw_power_cap", "sync_boost"])
def test_harmless_reasons_are_not_reported(build: Any, reason: str) -> None:
    low = {"reasons": (reason,), "sm_mhz": 1200}

    assert not findings(build, node((10, 100, {}), (30, 300, low)))


@pytest.mark.parametrize("reason", ["gpu_idle", "applications_clocks_setting"])
def test_low_clocks_that_were_set_are_not_reported(build: Any, reason: str) -> None:
    assert not findings(build, node((30, 100, {"reasons": (reason,), "sm_mhz": 345})))


def test_one_moment_of_heat_is_not_reported(build: Any) -> None:
    assert not findings(build, node((1, 100, {"reasons": HEAT}), (5, 100, {})))
    assert not findings(build, node((2, 100, {"reasons": HEAT}), (40, 100, {})))


def test_clocks_far_below_the_maximum_while_busy_are_reported_with_the_power_limit(build: Any) -> None:
    [finding] = findings(build, node((20, 100, {"sm_mhz": 600, "reasons": ("sw_power_cap",)}), power_limit_w=200.0))

    assert "clocks of 600 MHz, the maximum is 1980 MHz, in 20 of 20 samples" in finding.message
    assert "Have the power limit checked (power limit 200 W)" in finding.advice


def test_low_clocks_of_a_gpu_that_waits_are_not_reported(build: Any) -> None:
    assert not findings(build, node((20, 100, {"sm_mhz": 600, "utilization": 10})))
    assert not findings(build, node((20, 100, {"sm_mhz": 600}), max_sm_mhz=None))


def test_another_process_that_computes_is_reported_with_its_share(build: Any) -> None:
    busy = {"others": 1, "others_bytes": 3 * 10**9, "others_utilization": 40}
    [finding] = findings(build, node((20, 100, {}), (20, 150, busy)), 120)

    assert "H200 of node7 is shared: another process uses 40% of it in 20 of 40 samples" in finding.message
    assert finding.cost_ns == pytest.approx(20 * MS, rel=0.05)
    assert "nvidia-smi" in finding.advice


def test_another_process_that_only_holds_memory_is_not_reported(build: Any) -> None:
    assert not findings(build, node((20, 100, {"others": 1, "others_bytes": 10**9, "others_utilization": 0})))


def test_another_process_of_unknown_use_is_reported_as_information(build: Any) -> None:
    [finding] = findings(build, node((20, 100, {"others": 1})))

    assert (finding.severity, finding.confidence, finding.cost_ns) == ("info", "low", None)
    assert "how much it computes is unknown" in finding.message
    assert not findings(build, node((15, 100, {}), (5, 100, {"others": 1})))


def two_ranks(build: Any, share: float, *, mine: NodeHealth, other: NodeHealth | None) -> tuple[Any, ...]:
    """The folder of rank 0: rank 1 has more work of its own, and is the slowest in ``share`` of the steps."""

    def one(rank: int, forward: int, often: float, **more: Any) -> RankSummary:
        phases = Phases(forward=forward * MS, backward=(133 - forward) * MS)
        late = round(60 * often)
        return RankSummary(
            rank=rank, own_ns=forward * MS, phases_ns=phases, caused_share=often, late_steps=late, late_ns=0, **more
        )

    known = (one(0, 20, 1 - share), one(1, 60, share, host="node8", node=other))
    ranks = Ranks(steps=60, wall_ns=133 * MS, waiting_ns=20 * MS, ranks=known)
    rank = msgspec.structs.replace(build.rank(), node=mine, host="node7", devices=("H200",))
    return build.step(133, forward=20, backward=113), rank, ranks


def test_of_several_ranks_the_one_that_the_others_wait_for_is_checked_and_its_heat_explains_it(build: Any) -> None:
    hot, cool = node((20, 100, {}), (20, 200, {"reasons": HEAT, "sm_mhz": 800})), node((40, 133, {}))
    answer = diagnose(build.measurements(*two_ranks(build, 1.0, mine=cool, other=hot)))
    found = {finding.rule: finding for finding in answer.findings}

    assert "H200 of node8 (rank 1, for which the others wait) lowers its clocks" in found["node-slowed"].message
    assert found["slow-rank"].follows == "node-slowed"


def test_a_hot_gpu_whose_rank_waits_for_another_is_not_reported_and_one_of_equal_ranks_is(build: Any) -> None:
    hot, cool = node((20, 100, {}), (20, 200, {"reasons": HEAT, "sm_mhz": 800})), node((40, 133, {}))

    assert not build.findings(node_slowed, *two_ranks(build, 1.0, mine=hot, other=cool))
    assert not build.findings(node_slowed, *two_ranks(build, 1.0, mine=hot, other=None))
    [finding] = build.findings(node_slowed, *two_ranks(build, 0.5, mine=hot, other=None))
    assert "H200 of node7 lowers its clocks" in finding.message


def test_a_healthy_card_and_a_card_without_readings_are_not_reported(build: Any) -> None:
    mute = {"sm_mhz": None, "utilization": None, "reasons": None, "others": None}

    assert not findings(build, node((40, 100, {"reasons": ("sw_power_cap",)})))
    assert not findings(build, node((40, 100, mute), max_sm_mhz=None, temperature_c=None))
    assert not findings(build, NodeHealth(uuid="u"))
    assert not findings(build, None)
    assert not build.findings(node_slowed)
