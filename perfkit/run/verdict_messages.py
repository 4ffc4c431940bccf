"""What the process that records and the helper that diagnoses its run say to each other: a line of JSON each."""

from __future__ import annotations

from typing import Literal

import msgspec

#: The module that is the helper.
HELPER = "perfkit.reports.verdict_helper"

#: A verdict on the run so far; the verdict on the whole run, which is kept as diagnosis.json; the data of its pages.
Wanted = Literal["early", "final", "figures"]


class VerdictRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted of the run in ``folder``.

    ``current`` is the program's current folder, to which paths in the verdict are relative. ``columns``, ``terminal``
    and ``encoding`` describe where the verdict will be printed.
    """

    wanted: Wanted
    folder: str
    current: str
    columns: int = 80
    terminal: bool = False
    encoding: str = "utf-8"


class VerdictReply(msgspec.Struct, frozen=True, kw_only=True):
    """The text to print, or why there is none.

    ``unreadable`` is whether the folder holds no run that could be diagnosed, as after a run without steps.
    ``peak_bytes`` is the helper's largest resident memory, None where that is not known.
    """

    wanted: Wanted
    text: str = ""
    problem: str | None = None
    unreadable: bool = False
    peak_bytes: int | None = None
