"""generation-without-cache: each call of a model computes again what the calls before it computed."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit._location import Location
from perfkit.measures.results.steps import GrowingInputs
from perfkit.rules.python import generation_without_cache
from perfkit.run.records import StepBoundary

MS = 1_000_000
CALLED = Location(file="write.py", line=18, function="answer")


def growing(by_position: float, share: float = 1.0) -> GrowingInputs:
    return GrowingInputs(calls=300, share=share, positions=94.3, by_position=by_position)


def test_the_call_of_the_model_is_named_with_what_all_but_the_newest_position_take(build: Any) -> None:
    step = build.step(20, other=20)
    rank = msgspec.structs.replace(
        build.rank(), step_boundary=StepBoundary(by="model call", module="Play", called_at=CALLED)
    )

    [finding] = build.findings(generation_without_cache, step, growing(0.9, share=0.5), rank)

    assert (finding.spent, finding.change) == (CALLED, None)
    assert finding.cost_ns == 9 * MS
    assert (finding.saving_low_ns, finding.saving_high_ns) == (0.75 * 9 * MS, 9 * 1.15 * MS)
    assert finding.message.startswith("Each call of Play reads one position more than the last, 94 on average, and")


def test_where_the_length_costs_little_nothing_is_reported(build: Any) -> None:
    step = build.step(20, other=20)

    assert not build.findings(generation_without_cache, step, growing(0.04))
    assert not build.findings(generation_without_cache, step, growing(0.9, share=0.05))
    assert not build.findings(generation_without_cache, step)
