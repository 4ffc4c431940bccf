"""Switch autograd's anomaly detection off.

``torch.autograd.set_detect_anomaly(True)`` and ``torch.autograd.detect_anomaly()`` do nothing: no stack is kept for
each op of the forward, and no gradient is checked for NaN.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from perfkit.trial.site import Site

ID = "no-anomaly-detection"
ANSWERS = ("anomaly-detection",)
KIND = "exact"
LINES = "torch.autograd.set_detect_anomaly(False)"


def apply(site: Site, value: None) -> None:
    """Have the mode set to off wherever the program sets it."""
    import torch  # where a change is applied, not where changes are listed

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def set_anomaly_enabled(enabled: bool, check_nan: bool = True) -> None:
            if site.active and enabled:
                site.used()
                enabled = False
            original(enabled, check_nan)

        return set_anomaly_enabled

    # Both ways of torch.autograd call it by this name.
    site.patches.wrap(torch, "set_anomaly_enabled", wrapper)
