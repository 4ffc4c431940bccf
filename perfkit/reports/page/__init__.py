"""What draws figure data in a browser, the same on the HTML page and in the TensorBoard tab."""

from __future__ import annotations

from importlib import resources

__all__ = ["PARTS", "read", "script"]

#: The files of the script. Names are known to all of them; sections stand on the page in this order.
PARTS = (
    "drawing.js",
    "verdict.js",
    "ledger.js",
    "findings.js",
    "history.js",
    "ranks.js",
    "tried.js",
    "steps.js",
    "timeline.js",
    "what_if.js",
    "lines.js",
    "tables.js",
    "roofline.js",
    "memory.js",
    "peak.js",
    "flame.js",
    "page.js",
)


def script() -> str:
    """The files as one script that leaves one name behind, ``perfkit``. No library, no eval, no network.

    Raises:
        FileNotFoundError: perfkit is installed without one of them.
    """
    return f'"use strict";\n(() => {{\n{"".join(map(read, PARTS))}}})();\n'


def read(name: str) -> str:
    """The text of a file of this folder, such as ``perfkit.css``.

    Raises:
        FileNotFoundError: perfkit is installed without it.
    """
    return resources.files(__name__).joinpath(name).read_text("utf-8")
