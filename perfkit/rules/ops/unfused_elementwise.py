"""Elementwise ops in a row each read and write the whole tensor.

Problem: an addition, a multiplication or an activation computes next to nothing for each element, so it
costs the trip of the tensor through memory, and a row of them makes that trip once per op, and again
in the backward pass.

How it shows: three or more elementwise ops in a row over tensors of the same size, each larger than a
first-level cache, that take a tenth of the step or more beyond what one pass would take.

Causes: an activation, a gate, a loss or a schedule written out in Python (GELU by its formula, a
hand-written focal loss), where a fused call exists or a compiler would make one.

Fix: the one call that does it, or torch.compile around the function.

    y = F.gelu(x, approximate="tanh")        # not: 0.5 * x * (1 + torch.tanh(...))

    @torch.compile
    def gate(x, y, scale):
        return torch.sigmoid(x) * y * scale + y

Gain: on a CPU the row's own time, forward and backward, without what one pass still takes: at the high end
70% of its longest op and longest backward node, at the low end all ops that compute a function (exp, tanh,
a power); 15% are added at the high end for what else gets faster. On a GPU by bandwidth: the row moves so
many bytes in so much time; fused, it does not write and read the results in between, and neither does its
backward; the low end is half of it.

Source: measured on one CPU, one thread, tensors of 1.5 and 16 MB, five functions by hand against torch's
one call, forward and backward: GELU lost 64 to 68% of its time, SiLU 59 to 64%, a leaky ReLU 90%,
softplus 32 to 35%, Mish 0 to 11% (it is all functions). A first-level cache has 32 to 64 KB. Rows of two ops
are not told: most models have them. A tenth is asked for, twice what the other rules do: where there is no one
call, fusing takes a compiler, or code that is harder to read. On a CPU the low end must be a tenth: ops on
tensors that stay in its caches move little (a log spectrum of 0.4 MB, said to gain 8 to 12% of its step, gained
at most 4% by torch.compile). The GPU side: not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.measures.results.patterns import ElementwiseChain, Patterns
from perfkit.rules._pattern_cost import op_part, where
from perfkit.rules._step_budget import NEGLIGIBLE, Whole, severity_of, whole_of, with_beyond

ID = "unfused-elementwise"

#: The share of the longest op that one pass takes at least, and the low end as a share of the high end (see above).
_ONE_PASS = 0.7
_LEAST = 0.5
#: What is worth a compiler, or another way to write it (see above).
_WORTH = 2 * NEGLIGIBLE
#: A row in float64 costs twice what it would in float32: that half is told by its own rule.
_WIDE = ("double", "c10::complex<double>")


def check(measured: Measured) -> Iterator[Finding]:
    """Find rows of elementwise ops that cost more than one pass over their tensors."""
    whole, patterns = whole_of(measured), measured.patterns
    if whole is None or patterns is None:
        return
    for chain in patterns.chains:
        low, high = _gain(chain, patterns)
        cost_ns = op_part(high, patterns, whole)
        high_ns = with_beyond(cost_ns, measured, whole)
        low_ns = min(cost_ns, op_part(low, patterns, whole))
        # By bandwidth all of it is memory; the time of an op on a CPU need not be.
        sure_ns = cost_ns if patterns.step_ns is None else low_ns
        if sure_ns >= _WORTH * whole.wall_ns:
            yield _finding(chain, (low_ns, cost_ns, high_ns), measured, patterns, whole)


def _gain(chain: ElementwiseChain, patterns: Patterns) -> tuple[float, float]:
    total = chain.ns + chain.backward_ns
    if patterns.step_ns is None:
        high = total * min(1.0, chain.avoided_bytes / max(1, chain.bytes))
        low = _LEAST * high
    else:
        high = total - _ONE_PASS * chain.longest_ns
        low = max(total - max(chain.functions_ns, chain.longest_ns), _LEAST * high)
    if chain.dtype in _WIDE:
        return low / 2, high / 2
    return low, high


def _finding(
    chain: ElementwiseChain, gain: tuple[int, int, int], measured: Measured, patterns: Patterns, whole: Whole
) -> Finding:
    low_ns, cost_ns, high_ns = gain
    names = [name.removeprefix("aten::") for name in chain.ops]
    shown = " ".join(names[:6]) + (" ..." if len(names) > 6 else "")
    source = f"{patterns.source}, per step"
    return Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"{len(names)} elementwise ops in a row ({shown}) each read and write a tensor of {chain.shape}: "
            f"one pass would save up to {ms(cost_ns)}."
        ),
        advice="Use the one call that computes it (F.gelu, F.silu, a fused loss), or torch.compile the function.",
        confidence="medium",
        evidence=(
            Evidence("ops", " ".join(names), "", patterns.source),
            Evidence("runs per step", round(chain.count, 1), "", patterns.source),
            Evidence("forward of the row", round(chain.ns / 1e6, 3), "ms", source),
            Evidence("backward of the row", round(chain.backward_ns / 1e6, 3), "ms", source),
            Evidence("longest op and node", round(chain.longest_ns / 1e6, 3), "ms", source),
            Evidence("moved in the forward", round(chain.bytes / 2**20, 2), "MiB", source),
            Evidence("of it avoided by fusing", round(chain.avoided_bytes / 2**20, 2), "MiB", source),
        ),
        cost_ns=cost_ns,
        saving_low_ns=low_ns,
        saving_high_ns=high_ns,
        **where(chain.at, measured),
    )
