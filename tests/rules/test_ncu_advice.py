"""ncu-advice: what Nsight Compute's own rules estimate for a kernel is repeated as information."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.measures.results.kernel_profiles import ToolAdvice
from perfkit.rules.kernels import ncu_advice


def advice(saving: float | None, *, is_local: bool = False, text: str = "Use one wave.") -> ToolAdvice:
    return ToolAdvice(rule="Wave", section="LaunchStats", text=text, is_local=is_local, saving_share=saving)


def test_the_largest_estimate_for_the_launch_is_repeated_with_ncus_words(build: Any) -> None:
    rules = (advice(0.5), advice(0.1), advice(0.8, is_local=True), advice(None))

    [finding] = build.findings(ncu_advice, build.kernel_profiles({"share": 0.4, "advice": rules}))

    assert "40% of the profiled time, of which Nsight Compute's rule Wave estimates to save 50%" in finding.message
    assert (finding.advice, finding.severity) == ("Use one wave.", "info")
    assert [item.value for item in finding.evidence if item.name == "Wave"] == [50.0, 10.0]


def test_a_long_text_is_cut_in_the_advice(build: Any) -> None:
    [finding] = build.findings(ncu_advice, build.kernel_profiles({"advice": (advice(0.5, text="word " * 200),)}))

    assert len(finding.advice) == 400
    assert finding.advice.endswith("…")


@pytest.mark.parametrize(
    "fields",
    [
        {"advice": (advice(0.9, is_local=True),)},
        {"advice": (advice(None),)},
        {"share": 0.2, "advice": (advice(0.2),)},
        {"share": 0.03, "advice": (advice(0.9),)},
    ],
    ids=["local", "no estimate", "4% of what was profiled", "a short kernel"],
)
def test_without_an_estimate_of_5_percent_of_the_profiled_time_nothing_is_reported(
    fields: dict[str, Any], build: Any
) -> None:
    assert build.findings(ncu_advice, build.kernel_profiles(fields)) == []
