"""Values that are whole numbers."""

from __future__ import annotations

from collections.abc import Callable


def whole_number(least: int, default: int | None = None) -> Callable[[str | None], int]:
    """A ``parse`` for numbers from ``least`` on."""

    def parse(text: str | None) -> int:
        if text is None and default is not None:
            return default
        if text is None or not text.isascii() or not text.isdigit() or int(text) < least:
            raise ValueError(f"a whole number from {least} on")
        return int(text)

    return parse
