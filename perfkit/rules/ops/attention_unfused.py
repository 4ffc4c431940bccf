"""Attention is written out, so every score goes through memory several times.

Problem: softmax(q k^T) v, op by op, writes the whole matrix of scores (length x length for every head),
reads and writes it again for the scale, the mask, the softmax and the dropout, and keeps copies for the
backward pass. One fused call keeps a block of it in the processor.

How it shows: a matrix product, a softmax shortly behind it and a second product, with no layer between
them, over scores larger than what is multiplied; together they take 5% of the step or more.

Causes: attention written by hand or taken from older code; a library's "eager" attention; asking a
module for the attention weights (nn.MultiheadAttention(..., need_weights=True)).

Fix: one call.

    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0.0)

    y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)        # with a mask or a bias of one's own
    model = AutoModel.from_pretrained(name, attn_implementation="sdpa")    # transformers

Gain: on a CPU the whole of it, forward and backward, without what the one call takes: 70 to 110% of the two
products' own time in training, 30 to 80% in inference (the first product also pays for the memory of the
scores), and no more than 90% of all of it; at the high end 15% are added for what else gets faster. On a
GPU half to all of what lies between the products. Where a loop computes attention head by head, 45 to 85%
of its lines, which is told at the loop.

Source: measured on one CPU, one thread, float32, nine sizes with and without a mask (length 128 to 1,024,
width of a head 16 to 64): the one call took 74 to 115% of the products in training, 63 to 107% in inference
with warm memory, and 20 to 30% in a program whose scores are new memory in every call. Scores below 256 KB
(a second-level cache) are not told: their ops cost by their number, see many-small-ops. From 5% of the step
on (see input-bound). The GPU side: not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, per_step
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.measures.results.patterns import Patterns, UnfusedAttention
from perfkit.rules._pattern_cost import Where, op_part, where
from perfkit.rules._step_budget import NEGLIGIBLE, Whole, severity_of, whole_of, with_beyond

ID = "attention-unfused"

#: Scores that fit in a second-level cache cost no memory traffic.
_SMALL = 256 * 2**10
#: Trained or not -> what the one call takes, as a share of the products' time: at the high end of the gain, at the
#: low end (calibration: see above).
_STAYS = {True: (0.7, 1.1), False: (0.3, 0.8)}
#: On a GPU: the gain, as a share of what lies between the products.
_ON_DEVICE = (0.5, 1.0)
#: Some of it always stays.
_MOST = 0.9
#: Calls at one line of a loop that make it a loop over heads or samples, and what one call for all of them gains.
_HEADS = 8
_BY_HEAD = (0.45, 0.85)


def check(measured: Measured) -> Iterator[Finding]:
    """Find products with a softmax between them, over a matrix that is worth not writing."""
    whole, patterns = whole_of(measured), measured.patterns
    if whole is None or patterns is None:
        return
    for one in patterns.attention:
        loop = where(one.at, measured, loop=True)
        if one.count >= _HEADS and one.at is not None and loop["line"] != one.at.line:
            yield from _by_head(one, loop, patterns, whole)
            continue
        if one.scores_bytes is not None and (
            one.scores_bytes < _SMALL or (one.inputs_bytes is not None and one.scores_bytes < one.inputs_bytes / 3)
        ):
            continue
        low, high = _gain(one, patterns)
        low_ns, cost_ns = op_part(low, patterns, whole), op_part(high, patterns, whole)
        high_ns = with_beyond(cost_ns, measured, whole)
        if cost_ns >= NEGLIGIBLE * whole.wall_ns:
            yield _finding(one, (low_ns, cost_ns, high_ns), measured, patterns, whole)


def _gain(one: UnfusedAttention, patterns: Patterns) -> tuple[float, float]:
    total = one.ns + one.backward_ns
    products = one.matmuls_ns + one.matmuls_backward_ns
    if patterns.step_ns is None:
        low, high = (share * (total - products) for share in _ON_DEVICE)
    else:
        high, low = (total - share * products for share in _STAYS[one.trained])
    high = max(0.0, min(high, _MOST * total))
    return max(0.0, min(low, high)), high


def _by_head(one: UnfusedAttention, loop: Where, patterns: Patterns, whole: Whole) -> Iterator[Finding]:
    low_ns, high_ns = (op_part(share * one.lines_ns, patterns, whole) for share in _BY_HEAD)
    if high_ns < NEGLIGIBLE * whole.wall_ns:
        return
    yield Finding(
        rule=ID,
        severity=severity_of(high_ns, whole),
        message=(
            f"Attention is computed piece by piece, {per_step(one.count)} per step in a loop: one fused call for all "
            f"of them would save up to {ms(high_ns)}."
        ),
        advice="Call F.scaled_dot_product_attention(q, k, v) once, with the heads as a dimension.",
        confidence="medium",
        evidence=(
            Evidence("calls", round(one.count, 1), "", f"{patterns.source}, per step"),
            Evidence("its lines", round(one.lines_ns / 1e6, 3), "ms", f"{patterns.source}, per step"),
        ),
        cost_ns=high_ns,
        saving_low_ns=low_ns,
        saving_high_ns=high_ns,
        **loop,
    )


def _finding(
    one: UnfusedAttention, gain: tuple[int, int, int], measured: Measured, patterns: Patterns, whole: Whole
) -> Finding:
    low_ns, cost_ns, high_ns = gain
    names = " ".join(name.removeprefix("aten::") for name in one.ops)
    source = f"{patterns.source}, per step"
    evidence = [
        Evidence("ops", names, "", patterns.source),
        Evidence("attention", round((one.ns + one.backward_ns) / 1e6, 3), "ms", source),
        Evidence("its products", round((one.matmuls_ns + one.matmuls_backward_ns) / 1e6, 3), "ms", source),
    ]
    if one.scores_bytes is not None:
        evidence.append(Evidence("scores of one call", round(one.scores_bytes / 2**20, 2), "MiB", one.shape or ""))
    size = f" of {one.shape}" if one.shape else ""
    return Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"Attention is written out {per_step(one.count)} per step: the scores{size} go through memory "
            f"again and again, up to {ms(cost_ns)} that one fused call does not take."
        ),
        advice=(
            "Call F.scaled_dot_product_attention(q, k, v, is_causal=True), or with attn_mask=, instead."
            if one.masked
            else "Call F.scaled_dot_product_attention(q, k, v) instead."
        ),
        confidence="medium" if one.scores_bytes is not None else "low",
        evidence=tuple(evidence),
        cost_ns=cost_ns,
        saving_low_ns=low_ns,
        saving_high_ns=high_ns,
        **where(one.at, measured),
    )
