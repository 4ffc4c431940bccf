"""Switch autograd's anomaly detection off.

``torch.autograd.set_detect_anomaly(True)`` and ``torch.autograd.detect_anomaly()`` do nothing: no stack is kept for
each op of the forward, and no gradient is checked for NaN.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from perfkit.trial.changes._held_settings import HeldSetting
from perfkit.trial.patches.edits import ReplaceCall, SetArgument, TrainerArgument
from perfkit.trial.site import Site

ID = "no-anomaly-detection"
ANSWERS = ("anomaly-detection",)
KIND = "exact"
TOGGLE = True
LINES = "torch.autograd.set_detect_anomaly(False)"
EDITS = (
    SetArgument(("set_detect_anomaly",), "mode=False", position=0),
    ReplaceCall(("detect_anomaly",), "torch.autograd.set_detect_anomaly(False)"),
)
TRAINER = TrainerArgument(lightning="detect_anomaly=False")


def apply(site: Site, value: None) -> None:
    """Leave the mode off, wherever the program sets it."""
    import torch  # where a change is applied, not where changes are listed

    def mode_of(enabled: bool, check_nan: bool) -> tuple[bool, bool]:
        return enabled, check_nan or not enabled  # one value for off

    def read() -> tuple[bool, bool]:
        return mode_of(torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled())

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        setting = HeldSetting(site, "torch.anomaly_enabled", read, lambda mode: original(*mode), (False, True))

        @functools.wraps(original)
        def set_anomaly_enabled(enabled: bool, check_nan: bool = True) -> None:
            setting.ask(mode_of(enabled, check_nan))

        return set_anomaly_enabled

    # Both ways of torch.autograd call it by this name.
    site.patches.wrap(torch, "set_anomaly_enabled", wrapper)
