"""attention-unfused: written-out attention is reported at its line; small scores are not reported."""

from __future__ import annotations

from typing import Any

from perfkit._location import Location
from perfkit.measures.results.patterns import UnfusedAttention
from perfkit.rules.ops import attention_unfused

MS = 1_000_000


def attention(**fields: Any) -> UnfusedAttention:
    """4 ms in two products and 16 ms between them, forward and backward alike; scores of 4 MiB from 1 MiB."""
    defaults: dict[str, Any] = {
        "ops": ("aten::matmul", "aten::div", "aten::masked_fill", "aten::softmax", "aten::matmul"),
        "count": 2.0,
        "ns": 10 * MS,
        "backward_ns": 10 * MS,
        "matmuls_ns": 2 * MS,
        "matmuls_backward_ns": 2 * MS,
        "lines_ns": 30 * MS,
        "masked": True,
        "at": Location(file="model.py", line=30, function="Attention.forward"),
        "scores_bytes": 4 * 2**20,
        "inputs_bytes": 2**20,
        "shape": "4x4x512x512",
    }
    return UnfusedAttention(**defaults | fields)


def test_it_is_reported_at_the_line_of_its_softmax(build: Any) -> None:
    patterns = build.patterns(step_ms=100, attention=(attention(),))

    [finding] = build.findings(attention_unfused, build.step(100, forward=50, backward=50), patterns)

    assert (finding.spent.file, finding.spent.line, finding.spent.function) == ("model.py", 30, "Attention.forward")
    # 20 ms without 70 to 110% of the products' 4 ms, and 15% more at the high end.
    assert (finding.saving_low_ns, finding.cost_ns, finding.saving_high_ns) == (15_600_000, 17_200_000, 19_780_000)


def test_times_count_by_their_share_of_the_recorded_step(build: Any) -> None:
    patterns = build.patterns(step_ms=200, attention=(attention(),))

    [finding] = build.findings(attention_unfused, build.step(100, forward=50, backward=50), patterns)

    assert finding.saving_low_ns == 7_800_000


def test_inference_saves_more_and_never_all_of_it(build: Any) -> None:
    inference = attention(backward_ns=0, matmuls_backward_ns=0)
    patterns = build.patterns(step_ms=100, attention=(inference,))

    [finding] = build.findings(attention_unfused, build.step(100), patterns)

    assert (finding.saving_low_ns, finding.cost_ns) == (8_400_000, 9 * MS)


def test_on_a_device_the_products_remain(build: Any) -> None:
    patterns = build.patterns(attention=(attention(),))
    device = build.device(1000, compute=1000)

    [finding] = build.findings(attention_unfused, build.traced_step(100), patterns, device)

    assert (finding.saving_low_ns, finding.saving_high_ns) == (8 * MS, 16 * MS)


def test_scores_that_fit_a_cache_and_small_shares_are_not_reported(build: Any) -> None:
    small = build.patterns(step_ms=100, attention=(attention(scores_bytes=100_000),))
    rare = build.patterns(step_ms=1000, attention=(attention(),))

    assert build.findings(attention_unfused, build.step(100), small) == []
    assert build.findings(attention_unfused, build.step(1000), rare) == []
    assert build.findings(attention_unfused, build.step(100)) == []


def test_a_loop_over_heads_is_reported_at_the_loop(build: Any) -> None:
    patterns = build.patterns(step_ms=100, attention=(attention(count=64.0, scores_bytes=36_864),))
    lines = build.loop("model.py", line=30, loop_line=28, runs=64)

    [finding] = build.findings(attention_unfused, build.step(100), patterns, lines)

    assert finding.spent.line == 28
    assert finding.saving_high_ns == round(0.85 * 30 * MS)


def test_a_loop_over_the_places_of_a_text_cannot_be_one_call(build: Any) -> None:
    one_query = (attention(count=64.0, scores_bytes=36_864, shape="16x16x1"),)
    lines = build.loop("model.py", line=30, loop_line=28, runs=64)

    assert (
        build.findings(attention_unfused, build.step(100), build.patterns(step_ms=100, attention=one_query), lines)
        == []
    )
