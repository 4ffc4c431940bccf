"""Text that came from a file or a library, before a person sees it."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def without_controls(text: str, instead: str = "?") -> str:
    """A text in which no control character is left: nobody's escape sequence reaches a terminal or a page."""
    return _CONTROL.sub(instead, text)
