"""HTML that notebooks show for a result: texts, tables and bars, without a script and without a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from perfkit._text import LONGEST_SENTENCE, clean

#: Part of a step -> colour, of middle lightness: to be seen on a light and on a dark page (after Okabe and Ito).
_COLOURS = {
    "data": "#d55e00", "transfer": "#c778a8", "forward": "#2a86c0", "backward": "#56b4e9", "optimizer": "#009e73",
    "validation": "#c9a91e", "callbacks": "#8f6bb3", "logging": "#c49a5a", "checkpoint": "#6478c4", "other": "#8c959d",
    "at the limit": "#009e73", "overhead of ops": "#5b8fb3", "claimed by findings": "#d55e00", "unexplained": "#78838d",
    "other programs": "#a3abb2",
}  # fmt: skip
_UNKNOWN = "#8c959d"
#: The bar's height and width in its own units; it is as wide as the notebook.
_HEIGHT, _WIDTH = 22, 1000


def html_bar(title: str, parts: Mapping[str, int], shown: Mapping[str, str]) -> str:
    """Parts of a whole as a bar, with a key below; ``shown`` is the text of each part."""
    total = sum(parts.values())
    if total <= 0:
        return ""
    boxes, key, x = [], [], 0.0
    for name, value in parts.items():
        width, colour = _WIDTH * value / total, _COLOURS.get(name, _UNKNOWN)
        text = html_text(f"{name} {shown[name]}")
        boxes.append(
            f'<rect x="{x:.1f}" width="{max(0.0, width - 1):.1f}" height="{_HEIGHT}" fill="{colour}">'
            f"<title>{text}</title></rect>"
        )
        key.append(f'<font color="{colour}">&#9632;</font> {text}')
        x += width
    label = html_text(f"{title}: {', '.join(f'{name} {shown[name]}' for name in parts)}")
    size = f'width="100%" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none"'
    return f'<svg {size} role="img" aria-label="{label}">{"".join(boxes)}</svg><p>{" &#160; ".join(key)}</p>'


def html_text(text: str) -> str:
    """Text from anywhere, cleaned and escaped."""
    return escape(clean(text, LONGEST_SENTENCE))


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A small table for notebooks; every cell is escaped."""
    # Notebooks align cells to the right by default, which is hard to read for sentences.
    left = 'style="text-align: left"'
    cells = "".join(f"<th {left}>{html_text(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td {left}>{html_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
