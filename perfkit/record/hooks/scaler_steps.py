"""The steps of a GradScaler, which skips its optimizer after an overflow: they are the optimizer's all the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class ScalerSteps:
    """Calls ``begins`` and ``ends`` with the optimizer around each step of a scaler, where ``counts`` says so."""

    def __init__(self, counts: Callable[[], bool], begins: Callable[[Any], None], ends: Callable[[Any], None]) -> None:
        self._counts, self._begins, self._ends = counts, begins, ends

    def timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What replaces ``GradScaler.step``."""

        @functools.wraps(original)
        def step(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._counts():
                return original(scaler, *args, **kwargs)
            self._begins(optimizer := args[0] if args else kwargs.get("optimizer"))
            try:
                return original(scaler, *args, **kwargs)
            finally:
                self._ends(optimizer)

        return step
