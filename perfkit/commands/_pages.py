"""Writing an HTML page where a command asks for it."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from perfkit._stderr import print_message
from perfkit.errors import UsageError

if TYPE_CHECKING:
    from perfkit.reports.figures import FigureData


def write_page(data: FigureData, file: str | Path, *, show: bool) -> None:
    """Write the page, report where it is, and open it in the browser if ``show``.

    Raises:
        UsageError: it cannot be written.
    """
    # Pages load numpy, which `perfkit run`, for which the commands are imported too, must leave to the program.
    from perfkit.reports.html import write_html

    try:
        written = write_html(data, file)
    except OSError as error:
        raise UsageError(f"the page cannot be written: {error}; choose another path with --html FILE") from error
    print_message(f"page {written}")
    if show:
        webbrowser.open(written.resolve().as_uri())
