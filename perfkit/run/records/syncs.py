"""syncs.json: the places where the host waits for the device."""

from __future__ import annotations

from typing import Literal

import msgspec

from perfkit._location import CodeLine
from perfkit.run.records.steps import Count
from perfkit.run.records.version import SCHEMA

SyncKind = Literal["read", "copy-h2d", "copy-d2h", "shape", "print", "explicit", "collective", "other"]


class SyncEvent(CodeLine, frozen=True, kw_only=True):
    """The syncs of one line: a place where the host waits for the device.

    Attributes:
        count: How often the line synced as a user would count it (one ``print`` is one); ``raw_syncs``: how many
            waits for the device that caused.
        per_step: ``count`` per observed step; ``in_steps``: the number of steps with a sync. None: no step was seen.
        blocked_ns: How long the host waited; None where that was not measured, as in every dry run.
        via: ``file:line`` inside a library.
        certainty: "may" where the sync depends on what cannot be known, with the ``reason``.
    """

    kind: SyncKind
    op: str
    count: Count
    raw_syncs: Count
    per_step: float | None = None
    in_steps: Count | None = None
    blocked_ns: Count | None = None
    via: str | None = None
    thread: str = "MainThread"
    certainty: Literal["certain", "may"] = "certain"
    reason: str = ""
    advice: str = ""


class Syncs(msgspec.Struct, frozen=True, kw_only=True):
    """syncs.json: the result of `perfkit.detect_syncs`.

    ``observed`` is False where no tensor was ever on the (simulated) device: then nothing was checked.
    """

    schema: int = SCHEMA
    mode: Literal["cuda", "dry"]
    observed: bool
    steps: Count | None
    events: tuple[SyncEvent, ...]
    note: str | None = None
