"""Allow algorithms whose results are not the same each time.

``torch.use_deterministic_algorithms(True)`` is not carried out: many ops have faster algorithms.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from perfkit.trial.changes._held_settings import HeldSetting
from perfkit.trial.patches.edits import SetArgument, TrainerArgument
from perfkit.trial.site import Site

ID = "nondeterministic"
ANSWERS = ("deterministic-mode",)
KIND = "numeric"
TOGGLE = True
LINES = "torch.use_deterministic_algorithms(False)"
EDITS = (SetArgument(("use_deterministic_algorithms",), "mode=False", position=0),)
TRAINER = TrainerArgument(huggingface="full_determinism=False", lightning="deterministic=False")


def apply(site: Site, value: None) -> None:
    """Leave the mode off."""
    import torch  # where a change is applied, not where changes are listed

    def read() -> tuple[bool, bool]:
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def write(mode: tuple[bool, bool]) -> None:
            original(mode[0], warn_only=mode[1])

        setting = HeldSetting(site, "torch.deterministic_algorithms", read, write, (False, False))

        @functools.wraps(original)
        def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
            setting.ask((mode, warn_only))

        return use_deterministic_algorithms

    site.patches.wrap(torch, "use_deterministic_algorithms", wrapper)
