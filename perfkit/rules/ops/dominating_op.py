"""One expensive op, called a few times, takes much of the step.

Problem: a decomposition, a sort or a draw costs far more than the products around it, and often more than its result is
worth: a whole singular value decomposition for the largest value, a permutation of a whole memory for a batch of it.

How it shows: an op that has a cheaper counterpart takes 15% of the step or more in one line, in at most 20 calls.

Causes: the general call where a special one is enough; a call in every step where the result changes slowly.

Fix: the cheaper call, fewer elements, or not in every step.

    index = torch.randint(size, (batch,))                          # not: torch.randperm(size)[:batch]
    layer = torch.nn.utils.parametrizations.spectral_norm(layer)   # one power iteration, not torch.linalg.svdvals
    best = scores.topk(10).indices                                 # not: scores.argsort(descending=True)[:10]
    solved = torch.linalg.solve(a, b)                              # not: torch.linalg.inv(a) @ b
    sums = p.cumsum(-1)                                            # 19 to 21 times as fast as torch.multinomial(p, 1)
    drawn = torch.searchsorted(sums, torch.rand(n, 1) * sums[:, -1:], right=True).clamp_(max=p.shape[-1] - 1)
    counts = torch.bincount(labels, minlength=classes)             # not: torch.unique(labels, return_counts=True)
    x = conv2d(conv2d(x, row, groups=3), column, groups=3)         # a Gaussian; not: one kernel of 23 x 23
    y = torchaudio.functional.fftconvolve(x, taps.flip(-1), mode="valid")   # of one channel; not: conv1d, 4,095 taps

Saving: from half of the time in the op to all of it.

Line to edit: where the program sets how often the line runs (the N of ``if step % N == 0``), if it does; else the line.

Source: which op has which counterpart is from torch's documentation; 15% and half were chosen. A filter of each channel
by itself is named from kernels of 7 x 7 on, where nothing of it is trained, one over one dimension from 1,000 taps on
(where spectra were 2.7 to 27 times as fast). On a CPU only: on a device the time of an
op is that of its kernels, which the kernels' tables show.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfkit._format import times
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.ledger import Ledger
from perfkit.ledger.rows import Selector
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.work import StepWork
from perfkit.rules._cheaper_ops import cheaper_than
from perfkit.rules._places import interval_of, row_at
from perfkit.run.records import Lines

ID = "dominating-op"
CLAIMS = (Selector(owner="computing"),)
#: What is the same in every step needs no cheaper op.
FOLLOWS_AT_LINE = ("repeated-work",)

#: The share of the step that justifies another algorithm; calls per step, because more are a loop (both chosen).
_WORTH = 0.15
_MAX_CALLS = 20
#: The least that a cheaper op saves (chosen).
_LEAST = 0.5


#: A draw makes a random number for each element, which is what takes its time.
_DRAW, _IN_DRAW = "aten::multinomial", "aten::exponential_"
#: The weight of a convolution of each channel by itself, as in shapes: 3x1x23x23.
_OF_EACH_CHANNEL = re.compile(r"\S+ \d+x1x(\d+)x(\d+)\b")
#: The weight of a convolution over one dimension, as in shapes: 8x1x6400.
_OF_ONE_DIMENSION = re.compile(r"\d+x\d+x\d+ \d+x\d+x(\d+)(?![\dx])")
#: From this many taps on a product of spectra is faster: measured with torch 2.13 on a CPU, one thread, signals of
#: 4,000 to 16,000 samples, 1 to 32 channels, grouped or not: 2.7 to 27 times with 1,023 taps, 12 to 118 with 4,095.
_MANY_TAPS = 1000
_BY_SPECTRA = (
    "Convolve by spectra: torchaudio.functional.fftconvolve, or the product of torch.fft.rfft of both with "
    "n = samples + taps - 1, and irfft of that, of which conv1d returns [..., taps - 1 : samples]. conv1d takes a "
    "kernel as it is, a convolution the other way round: kernel.flip(-1)."
)
#: From this size of a kernel on, two passes of one dimension do a third of the work or less.
_LARGE_KERNEL = 7
_IN_TWO_PASSES = (
    "A filter that is a product of one row and one column (a Gaussian, a box) takes two calls of conv2d, with kernels "
    "of 1 x {size} and {size} x 1."
)


def check(
    step: StepBudget, ledger: Ledger, work: StepWork | None = None, lines: Lines | None = None
) -> Iterator[Finding]:
    """Find ops with a cheaper counterpart that take much of the step."""
    if step.device is not None:
        return
    filters = _filters(work) if work is not None else {}
    ns: dict[tuple[str, Location | None], int] = {}
    calls: dict[tuple[str, Location | None], float] = {}
    draws = {row.at for row in ledger.rows if row.name == _DRAW}
    for row in ledger.rows:
        if row.owner == "computing":
            name = row.name.partition(" ")[0]
            is_inner = name == _IN_DRAW and row.at in draws
            key = _DRAW if is_inner else name, row.at
            ns[key] = ns.get(key, 0) + row.ns
            calls[key] = calls.get(key, 0.0) + (0.0 if is_inner else row.count or 0.0)
    for (name, at), cost in ns.items():
        advice = cheaper_than(name) or filters.get((name, at))
        if advice is None or cost < _WORTH * (step.wall_ns - ledger.others_ns) or calls[name, at] > _MAX_CALLS:
            continue
        cost = ledger.as_wall(cost)
        sampled = row_at(at, lines)
        every = interval_of(lines, at, sampled.called_from if sampled is not None else None)
        called = f", called {times(round(calls[name, at]))} per step" if calls[name, at] >= 1 else ""
        yield step.finding(
            cost=cost,
            saving=(_LEAST * cost, cost),
            spent=at,
            change=every,
            message=f"{name}{called}, takes {step.shown(cost)}.",
            advice=advice if every is None else f"Run it less often: raise N in line {every.line}. Or: {advice}",
            evidence=(Evidence.ms(f"{name} in one line", cost, "the ledger"),),
        )


def _filters(work: StepWork) -> dict[tuple[str, Location | None], str]:
    """Convolutions with a cheaper counterpart: (op, line) -> what to do.

    Those over one dimension with many taps, and of each channel by itself with a large kernel that is not trained.
    """
    long: dict[tuple[str, Location | None], str] = {}
    found: dict[tuple[str, Location | None], str] = {}
    others: set[tuple[str, Location | None]] = set()
    for row in work.rows:
        if "conv" not in row.op:
            continue
        # A backward has the gradient of the result first.
        shapes = row.shapes.partition(" ")[2] if row.op.endswith("_backward") else row.shapes
        taps = _OF_ONE_DIMENSION.match(shapes)
        if taps is not None and int(taps[1]) >= _MANY_TAPS:
            long[row.op, row.at] = _BY_SPECTRA
            continue
        sizes = _OF_EACH_CHANNEL.match(shapes)
        size = min(map(int, sizes.groups())) if sizes is not None else 0
        if row.phase == "backward" or size < _LARGE_KERNEL:
            # Its backward belongs to the line of the forward, which is then trained or in the way to what is.
            others.add((row.op.removesuffix("_backward"), row.at))
        else:
            found[row.op, row.at] = _IN_TWO_PASSES.format(size=size)
    untrained = {key: advice for key, advice in found.items() if key not in others}
    return {key: advice for key, advice in (untrained | long).items() if key[1] is not None}
