"""Whether a batch that was never run would fit into memory."""

from __future__ import annotations

from typing import Literal

import msgspec

from perfkit._format import rate, share_of, size
from perfkit._text import printable
from perfkit._versioned_json import json_text
from perfkit.run.records import MemoryLine

#: "uncertain": the interval contains the memory there is; "unknown": how much there is was not recorded.
FitAnswer = Literal["fits", "does not fit", "uncertain", "unknown"]


class BatchFit(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted peak of a batch size.

    Attributes:
        bytes: The peak by ``line``, over the measured ``sizes``; ``low_bytes`` to ``high_bytes`` is its 95 % interval,
            None of two sizes: any two lie on a line.
        total_bytes: The memory that there is; ``leaves_reserve`` is whether a tenth of it remains.
        memory: What the peak is of.
    """

    batch: int
    answer: FitAnswer
    bytes: int
    low_bytes: int | None
    high_bytes: int | None
    total_bytes: int | None
    leaves_reserve: bool | None
    memory: str
    sizes: tuple[int, ...]
    line: MemoryLine
    source: str

    @property
    def sentence(self) -> str:
        """The answer in two sentences."""
        answers = {
            "fits": "fits",
            "does not fit": "does not fit",
            "uncertain": "may or may not fit",
            "unknown": "needs this much",
        }
        text = f"Batch {self.batch:,} {answers[self.answer]}: {size(self.bytes)} of {self.memory} at the peak"
        if self.low_bytes is not None and self.high_bytes is not None:
            text += f" (95% interval {size(self.low_bytes)} to {size(self.high_bytes)})"
        text += f", of {size(self.total_bytes)} there are." if self.total_bytes is not None else "."
        if self.answer == "fits" and self.leaves_reserve is False:
            text += " Less than a tenth of the memory remains, so that a longer batch may not fit."
        return text

    @property
    def basis(self) -> str:
        """What it follows from."""
        sizes = ", ".join(f"{one:,}" for one in self.sizes)
        line = f"{size(max(0, self.line.fixed_bytes))} + {size(max(0, self.line.bytes_per_sample))} per sample"
        if self.low_bytes is None:
            doubt = "two sizes lie on any line, so no interval is known: measure a third"
        else:
            doubt = f"the measured peaks are within {share_of(self.line.deviation)} of it"
        beyond = ""
        if self.batch > 2 * self.sizes[-1]:
            times = rate(self.batch / self.sizes[-1])
            beyond = f" It is {times} times the largest measured size, where another algorithm may be chosen."
        return f"A line over batch sizes {sizes} ({self.source}): {line}; {doubt}.{beyond}"

    def to_json(self) -> str:
        """The prediction as indented JSON."""
        return json_text(self)

    def __repr__(self) -> str:
        return printable(f"<{self.sentence}>")
