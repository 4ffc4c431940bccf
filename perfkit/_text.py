"""Cleaning text from files and libraries before it is shown."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def without_controls(text: str, instead: str = "?") -> str:
    """``text`` with ``instead`` for each control character, so that no escape sequence reaches a terminal or a page."""
    return _CONTROL.sub(instead, text)
