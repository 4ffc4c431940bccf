"""A Fourier transform has a length with a large prime factor, for which there is no fast algorithm.

Problem: a fast transform is made of small ones, whose lengths are the prime factors of its own. A length of 1999, a
prime, takes 2.5 times as long as one of 2000.

How it shows: a transform of 64 elements or more whose length has a prime factor above 13, and all transforms of its
lines take 5% of the step or more.

Causes: a convolution by FFT that is padded to exactly `2 * length - 1`; a window or a spectrum of an odd size.

Fix: pad to the next length that has small factors; the elements that a convolution keeps are the same.

    n = 2 ** (2 * length - 2).bit_length()           # or scipy.fft.next_fast_len(2 * length - 1, real=True)
    y = torch.fft.irfft(torch.fft.rfft(x, n=n) * torch.fft.rfft(k, n=n), n=n)[..., :length]

Where the length is a part of the task (the bins of a spectrum), it cannot be changed.

Saving: 30 to 80% of the time of these transforms, backward included.

Source: the arguments of the transforms of one step. Of lengths from 127 to 4,099 with a large prime factor a transform
and its inverse took 1.4 to 11 times as long as with the next length of small factors (CALIBRATION.md).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.work import StepWork
from perfkit.rules._work_rows import busiest_place
from perfkit.run.records import Lines, SlowFft

ID = "slow-fft-length"
CLAIMS = COMPUTING

#: The shares of the transforms' time that are saved (CALIBRATION.md).
_LOW, _HIGH = 0.3, 0.8
#: ``aten::fft_rfft``, ``aten::_fft_c2c``, ``... evaluate_function: FftR2CBackward0``.
_IS_FFT = re.compile(r"^aten::_?fft_|\bFft[A-Z]")


def check(step: StepBudget, lines: Lines, work: StepWork) -> Iterator[Finding]:
    """Find transforms of slow lengths by function, and what they take."""
    functions: dict[tuple[str, str], list[SlowFft]] = defaultdict(list)
    for one in lines.slow_ffts:
        functions[one.file, one.function].append(one)
    for of_function in functions.values():
        places = {(one.file, one.line) for one in of_function}
        rows = [
            row
            for row in work.rows
            if _IS_FFT.search(row.op) and row.at is not None and (row.at.file, row.at.line) in places
        ]
        spent_ns = sum(row.ns for row in rows)
        cost = spent_ns * step.wall_ns / max(1, work.step_ns)
        if step.is_negligible(cost):
            continue
        length = max(one.length for one in of_function)
        yield step.finding(
            cost=cost,
            saving=(_LOW * cost, _HIGH * cost),
            spent=busiest_place(rows),
            change=min(of_function, key=lambda one: one.line).at,
            message=(
                f"{sum(one.calls for one in of_function)} Fourier transforms per step have a length with a large prime "
                f"factor ({length:,}): {step.shown(cost)}."
            ),
            advice=(
                f"Where the length is padding, pad to one of small factors ({_next_fast(length):,}), and keep the same "
                "part of the result. The bins of a spectrum stay what they are."
            ),
            confidence="medium",
            evidence=(Evidence.ms("these transforms", spent_ns, f"{work.source}, per step"),),
        )


def _next_fast(length: int) -> int:
    """The next length whose only prime factors are 2, 3 and 5."""
    while True:
        rest = length
        for factor in (2, 3, 5):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return length
        length += 1
