"""Unset CUDA_LAUNCH_BLOCKING.

The host then queues kernels ahead instead of waiting for each to end. CUDA reads the variable when it starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from perfkit.trial.site import Site

ID = "launch-blocking-off"
ANSWERS = ("launch-blocking",)
KIND = "exact"
LINES = "env -u CUDA_LAUNCH_BLOCKING python train.py"

_NAME = "CUDA_LAUNCH_BLOCKING"


def environment(current: Mapping[str, str]) -> dict[str, str]:
    """The variable, where it is set."""
    return {_NAME: "0"} if current.get(_NAME) else {}


def apply(site: Site, value: None) -> None:
    """Count it where the environment holds it."""
    if os.environ.get(_NAME):
        site.used()
