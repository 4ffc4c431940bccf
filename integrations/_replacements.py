"""``Replacements``: methods of single objects, replaced for a while and put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Replacements:
    """Replaces methods through attributes of the instance; no class is ever touched."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def wrap(self, owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Put ``around(original)`` in the place of ``owner.name``; one that is not there is left alone."""
        original = getattr(owner, name, None)
        if original is None:
            return
        before = vars(owner).get(name)
        replacement = around(original)
        setattr(owner, name, replacement)

        def undo() -> None:
            # Somebody who wrapped it after us keeps the wrapper; ours below it then only calls through.
            if vars(owner).get(name) is replacement:
                if before is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)

        self._undo.append(undo)

    def put_back(self) -> None:
        """Put everything back, the last one first."""
        while self._undo:
            self._undo.pop()()
