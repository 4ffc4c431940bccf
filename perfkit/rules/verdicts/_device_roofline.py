"""The roofline of the device whose work the step is judged by."""

from __future__ import annotations

from typing import ClassVar

from perfkit.ledger.step_budget import DeviceStepBudget
from perfkit.measures.results.kernels import Roofline
from perfkit.measures.results.measurements import Measurements


class DeviceRoofline(Roofline, frozen=True, kw_only=True):
    """The roofline of the device that did most, with kernels placed under it."""

    AVAILABLE_FROM: ClassVar[str] = "a trace with shapes (--record-shapes) of a GPU whose peaks are known"

    @classmethod
    def from_measurements(cls, found: Measurements) -> Roofline | None:
        """That device's roofline, None where no kernel could be placed under it."""
        step = DeviceStepBudget.from_measurements(found)
        if step is None or step.device is None:
            return None
        own = next((one for one in found.all(Roofline) if one.device == step.device.device), None)
        return own if own is not None and own.problem is None and own.device_ns else None
