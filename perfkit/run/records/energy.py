"""The energy that a part of the machine took while a rank made its steps: part of rank.json."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from perfkit._versioned_json import LARGEST
from perfkit.run.records.steps import Count

#: What counted it: the device itself, as NVML reports it, or the processor (its "running average power limit").
EnergySource = Literal["nvml", "rapl"]


class EnergyUse(msgspec.Struct, frozen=True, kw_only=True):
    """Energy between two readings, of everything that used the part meanwhile: RAPL counts all programs of a machine.

    Attributes:
        part: The device's name, or the counters that were summed: ``package-0, dram``.
        joules: The difference of the readings.
        steps: The steps that were begun between them, those in windows too; ``wall_ns`` is the time between them.
    """

    source: EnergySource
    part: str
    joules: Annotated[float, msgspec.Meta(ge=0)]
    steps: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
    wall_ns: Count

    @property
    def per_step_j(self) -> float:
        """Energy per step in joules."""
        return self.joules / self.steps
