"""Elementwise ops in a row each read and write the whole tensor.

Problem: an addition, a multiplication or an activation computes little per element; its cost is moving the tensor
through memory. A row of such ops moves the tensor once per op, and again in the backward pass.

How it shows: three or more elementwise ops in a row over tensors of the same size, each larger than a first-level
cache, take a tenth of the step or more beyond what one pass would take.

Causes: an activation, a gate, a loss or a schedule written out in Python (GELU by its formula, a hand-written focal
loss) where a fused call exists or a compiler would make one.

Fix: the one call that computes it. Where there is none, torch.compile around the function, which makes one loop in C++
on a CPU and a Triton kernel on a GPU; or a Triton kernel of your own (a torch.autograd.Function has its backward).

    y = F.gelu(x, approximate="tanh")        # not: 0.5 * x * (1 + torch.tanh(...))

    GPT2Config(activation_function="gelu_pytorch_tanh")    # not "gelu_new", the default: the same function

    @torch.compile
    def gate(x, y, scale):
        return torch.sigmoid(x) * y * scale + y

Saving: on a CPU, the time of the row, forward and backward, minus what one pass still takes. High end: the longest op
and the longest backward node keep 70% of their time; 15% is added because the rest of the step gets faster too. Low
end: all ops that compute a function (exp, tanh, a power) keep theirs. On a GPU, by bytes: the share of its memory
traffic that is intermediate results; the low end is half of that.

Source: measured on one CPU with five functions written by hand against torch's one call. The threshold is a tenth of
the step, twice that of other rules, because the fix takes a compiler or code that is harder to read; on a CPU the low
end has to reach it. Rows of two ops are not reported: most models have them. On an H200 a GELU by hand: 3 to 25% of the
step predicted, 20% saved. On a CPU a small GPT-2, whose "gelu_new" is written out: 10 to 31% predicted, 15 and 24% of
the processor time saved by "gelu_pytorch_tanh".
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import NEGLIGIBLE, StepBudget
from perfkit.measures.results.patterns import ElementwiseChain, Patterns

ID = "unfused-elementwise"
CLAIMS = COMPUTING
#: Where the shapes are wrong, the ops on them are not to be fused but to go.
FOLLOWS_IN_FUNCTION = ("unintended-broadcast", "pairwise-broadcast")

#: The share of the longest op that one pass still takes; and the low end as a share of the high end, at least (chosen).
_ONE_PASS = 0.7
_LOW = 0.5
#: The share of the step that justifies a compiler or another way to write it (chosen).
_WORTH = 2 * NEGLIGIBLE
#: A row in float64 costs twice what it would in float32: that half is reported by float64-in-step.
_ADVICE = "Use the one call that computes it (F.gelu, F.silu, a fused loss). Where there is none, "
#: Measured: 55 to 67% less time with four functions, and 8 to 47 s until they were compiled.
_ON_CPU = "torch.compile the function: that took half to two thirds off such rows on a CPU."
_ON_DEVICE = "torch.compile the function, which writes a Triton kernel for it, or write that kernel yourself."
#: Ops by which a GELU that is written out, with tanh, is recognized.
_GELU = frozenset({"aten::pow", "aten::tanh"})
_ON_GELU = (
    'F.gelu(x, approximate="tanh") computes it in one call; in a config of transformers it is "gelu_pytorch_tanh", and '
    '"gelu_new" is what is written out.'
)
_WIDE = ("double", "c10::complex<double>")


def check(step: StepBudget, patterns: Patterns) -> Iterator[Finding]:
    """Find rows of elementwise ops that cost more than one pass over their tensors."""
    for chain in patterns.chains:
        low, high = _saving(chain, patterns)
        cost = step.of_pattern(high, patterns)
        low = min(cost, step.of_pattern(low, patterns))
        # By bytes all of it is memory traffic; the time of an op on a CPU need not be.
        certain = cost if patterns.step_ns is None else low
        if certain < _WORTH * step.wall_ns:
            continue
        names = [name.removeprefix("aten::") for name in chain.ops]
        shown = " ".join(names[:6]) + (" ..." if len(names) > 6 else "")
        source = f"{patterns.source}, per step"
        yield step.finding(
            cost=cost,
            saving=(low, step.maximum_saving(cost)),
            spent=chain.at,
            message=f"{len(names)} elementwise ops in a row ({shown}) on {chain.shape}: fusing saves up to {ms(cost)}.",
            advice=_advice(chain, on_device=patterns.step_ns is None),
            evidence=(
                Evidence("ops", " ".join(names), "", patterns.source),
                Evidence("runs per step", round(chain.count, 1), "", patterns.source),
                Evidence.ms("forward of the row", chain.ns, source),
                Evidence.ms("backward of the row", chain.backward_ns, source),
                Evidence.ms("longest op and node", chain.longest_ns, source),
                Evidence("moved in the forward", round(chain.bytes / 2**20, 2), "MiB", source),
                Evidence("of it avoided by fusing", round(chain.avoided_bytes / 2**20, 2), "MiB", source),
            ),
        )


def _advice(chain: ElementwiseChain, *, on_device: bool) -> str:
    if set(chain.ops) >= _GELU:
        return _ON_GELU
    return _ADVICE + (_ON_DEVICE if on_device else _ON_CPU)


def _saving(chain: ElementwiseChain, patterns: Patterns) -> tuple[float, float]:
    total = chain.ns + chain.backward_ns
    if patterns.step_ns is None:
        high = total * min(1.0, chain.avoided_bytes / max(1, chain.bytes))
        low = _LOW * high
    else:
        high = total - _ONE_PASS * chain.longest_ns
        low = max(total - max(chain.functions_ns, chain.longest_ns), _LOW * high)
    return (low / 2, high / 2) if chain.dtype in _WIDE else (low, high)
