"""Attention is written out, so every score passes through memory several times.

Problem: softmax(q k^T) v, op by op, writes the whole matrix of scores (length x length for every head), reads and
writes it again for the scale, the mask, the softmax and the dropout, and stores copies for the backward pass. One fused
call processes it block by block inside the processor.

How it shows: a matrix product, a softmax shortly after it and a second product, with no layer between them, over scores
that are larger than what is multiplied; one fused call would save 5% of the step or more.

Causes: attention written by hand or copied from older code; a library's "eager" attention; attention weights requested
from a module (nn.MultiheadAttention(..., need_weights=True)).

Fix: one call.

    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0.0)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)            # with your own mask or bias

    model = AutoModel.from_pretrained(name, attn_implementation="sdpa")    # transformers

Saving: on a CPU the time of the attention, forward and backward, minus what the one call takes: 70 to 110% of the time
of the two products in training, 30 to 80% in inference; at most 90% of the attention, and at the high end 15% more
because the rest of the step gets faster too. With dropout in training nothing is certain on a CPU: there the one call
is fused only where the probability is 0. On a GPU at least half of the time between the products, at most 90% of the
attention: products of scores that stay on the chip are faster, too. Where a loop computes attention head by head: 45 to
85% of its lines, reported at the loop.

Source: measured on one CPU in nine sizes, with and without a mask. Scores below 256 KB, which fit a second-level cache,
are not reported; many-small-ops reports such loops. The threshold is 5% of the step. On an H200 attention
with scores of 8x8x2047x2047 in bfloat16 took 41.9 of 46.8 ms, 16.8 of them in its products; one fused call saved 78% of
the step.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from perfkit._format import ms, times
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import MAJORITY, StepBudget
from perfkit.measures.results.patterns import Patterns, UnfusedAttention
from perfkit.rules._loops import loop_of
from perfkit.rules._settings import first_call
from perfkit.run.records import Lines, Rank

ID = "attention-unfused"
CLAIMS = COMPUTING

#: Scores that fit in a second-level cache cause no memory traffic.
_CACHE_BYTES = 256 * 2**10
#: Scores smaller than this share of what is multiplied are not what costs (chosen).
_MIN_SCORES = 1 / 3
#: Trained or not -> what the one call takes, as a share of the products' time: at the high end and at the low end of
#: the saving (measured on one CPU).
_REMAINS = {True: (0.7, 1.1), False: (0.3, 0.8)}
#: On a GPU: the saving as a share of what lies between the products, at least (chosen).
_BETWEEN = 0.5
#: The saving as a share of the attention, at most (chosen).
_MAXIMUM = 0.9
#: Calls at one line of a loop that make it a loop over heads or samples, and what one call for all of them saves.
_HEADS = 8
_BY_HEAD = (0.45, 0.85)
#: A model of transformers takes its attention from an argument, which may stand in its config.
_TRANSFORMERS = "transformers"
_WHERE = ("attn_implementation", "_attn_implementation", "from_pretrained", "from_config")


_DROPOUT = " On a CPU it is fused only where the dropout of the attention is 0: else it saves nothing."


def check(
    step: StepBudget, patterns: Patterns, lines: Lines | None = None, rank: Rank | None = None
) -> Iterator[Finding]:
    """Find products with a softmax between them, over a matrix that is large enough to matter."""
    for one in patterns.attention:
        loop = loop_of(one.at, lines)
        if one.count >= _HEADS and loop != one.at:
            if _is_one_place(one) or _carries(loop, lines):
                continue
            finding = _by_head(one, loop, patterns, step)
        elif one.scores_bytes is None or one.scores_bytes >= max(_CACHE_BYTES, _MIN_SCORES * (one.inputs_bytes or 0)):
            finding = _written_out(one, patterns, step)
            if _in_transformers(one.at, lines):
                finding = _of_transformers(finding, rank)
        else:
            continue
        if not step.is_negligible(finding.cost_ns or 0):
            yield finding


def _is_one_place(one: UnfusedAttention) -> bool:
    """Whether each call has one query: a decoder's loop over places, whose calls wait for each other's results."""
    return one.shape is not None and "1" in one.shape.split("x")[-2:]


def _carries(loop: Location | None, lines: Lines | None) -> bool:
    """Whether an iteration of the loop needs the result of the one before, as a decoder's over places does."""
    return loop is not None and any(
        row.loop_carries and (row.file, row.loop_line) == (loop.file, loop.line)
        for row in (lines.traced if lines is not None else ())
    )


def _in_transformers(place: Location | None, lines: Lines | None) -> bool:
    """Whether a line spends most of its time in a model of transformers."""
    if place is None:
        return False
    if place.owner == _TRANSFORMERS:
        return True
    within = [
        (names.split(" > "), count)
        for row in (lines.rows if lines is not None else ())
        if (row.file, row.line) == (place.file, place.line)
        for names, count in row.within.items()
    ]
    inside = sum(count for names, count in within if _TRANSFORMERS in names)
    return inside > MAJORITY * sum(count for _, count in within)


def _of_transformers(finding: Finding, rank: Rank | None) -> Finding:
    """The same finding, with the argument that chooses the attention of such a model, and the line to write it on."""
    return msgspec.structs.replace(
        finding,
        change=first_call(rank, *_WHERE) if rank is not None else None,
        advice=(
            'The model runs the "eager" attention of transformers. Choose the fused one where it is made: '
            '`from_pretrained(..., attn_implementation="sdpa")`, or the same argument of its config. It returns no '
            "attention weights (output_attentions)." + (_DROPOUT if finding.advice.endswith(_DROPOUT) else "")
        ),
    )


def _by_head(one: UnfusedAttention, loop: Location | None, patterns: Patterns, step: StepBudget) -> Finding:
    low, cost = (step.of_pattern(share * one.lines_ns, patterns) for share in _BY_HEAD)
    source = f"{patterns.source}, per step"
    return step.finding(
        cost=cost,
        saving=(low, cost),
        spent=loop,
        message=f"Attention is computed in a loop, {times(one.count)} per step: one fused call saves up to {ms(cost)}.",
        advice="Call F.scaled_dot_product_attention(q, k, v) once, with the heads as a dimension.",
        evidence=(
            Evidence("calls", round(one.count, 1), "", source),
            Evidence.ms("its lines", one.lines_ns, source),
        ),
    )


def _written_out(one: UnfusedAttention, patterns: Patterns, step: StepBudget) -> Finding:
    total, products = one.ns + one.backward_ns, one.matmuls_ns + one.matmuls_backward_ns
    if patterns.step_ns is None:
        low, high = _BETWEEN * (total - products), float(total)
    else:
        high, low = (total - share * products for share in _REMAINS[one.trained])
    high = max(0.0, min(high, _MAXIMUM * total))
    # On a CPU torch has no fused kernel for dropout. The op runs with a probability of 0, too, which no trace shows.
    dropped = one.trained and patterns.step_ns is not None and any("dropout" in name for name in one.ops)
    low = 0.0 if dropped else low
    cost = step.of_pattern(high, patterns)
    source = f"{patterns.source}, per step"
    evidence = [
        Evidence("ops", " ".join(name.removeprefix("aten::") for name in one.ops), "", patterns.source),
        Evidence.ms("attention", total, source),
        Evidence.ms("its products", products, source),
    ]
    if one.scores_bytes is not None:
        evidence.append(Evidence("scores of one call", round(one.scores_bytes / 2**20, 2), "MiB", one.shape or ""))
    size = f" with scores of {one.shape}" if one.shape else ""
    return step.finding(
        cost=cost,
        saving=(step.of_pattern(max(0.0, min(low, high)), patterns), step.maximum_saving(cost)),
        spent=one.at,
        message=f"Attention{size} is written out {times(one.count)} per step: one fused call saves up to {ms(cost)}.",
        advice=(
            "Call F.scaled_dot_product_attention(q, k, v, is_causal=True), or with attn_mask=, instead."
            if one.masked
            else "Call F.scaled_dot_product_attention(q, k, v) instead."
        )
        + (_DROPOUT if dropped else ""),
        confidence="medium" if one.scores_bytes is not None else "low",
        evidence=tuple(evidence),
    )
