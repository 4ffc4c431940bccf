"""Text that is safe to show: names come from files that anyone may have written."""

from __future__ import annotations

import re
from typing import Any

#: Characters that a page would hide or obey: controls, lone surrogates, and what turns the direction of the text.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
#: The longest names seen in traces are kernels' templates of 2,000 characters, told apart by their first hundreds.
LONGEST = 400


def clean(text: str, longest: int = LONGEST) -> str:
    """The text with unseen characters written out (``\\u202e``), and cut."""
    shown = _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text[: longest + 1])
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def cleaned(tree: Any) -> Any:
    """Plain data (dicts, lists, texts, numbers) with every text in it clean."""
    if isinstance(tree, str):
        return clean(tree, 2_000)
    if isinstance(tree, dict):
        return {clean(key): cleaned(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        # Columns of numbers are nearly all of the data: not worth a look at each.
        return tree if tree and all(type(value) is int for value in tree) else [cleaned(value) for value in tree]
    return tree
