"""What a detection found: events, notes, tables, and whether it exceeds a budget."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Literal

import msgspec

from perfkit import _code_owner, _env, _format
from perfkit._html import html_table, html_text
from perfkit._stderr import print_message
from perfkit._text import printable
from perfkit.errors import PerfkitWarning, SyncBudgetExceeded
from perfkit.run.records import SyncEvent, Syncs
from perfkit.syncs.arguments import DetectionArguments, check_limit
from perfkit.syncs.sync_log import SyncLog

if TYPE_CHECKING:
    from rich.table import Table

#: Lines named in an error text; the others are counted.
_SHOWN = 10


class SyncResults:
    """The syncs of one detection, as its caller reads them."""

    def __init__(self, mode: Literal["cuda", "dry"], arguments: DetectionArguments) -> None:
        #: "cuda" or "dry".
        self.mode: Literal["cuda", "dry"] = mode
        self.arguments = arguments
        self._log = SyncLog()
        self._steps = 0
        self._observed = False
        self._device_of_given = False
        #: Operation -> the error of perfkit's rule for it.
        self._rule_errors: dict[str, str] = {}
        #: Line -> an operation there whose operands CUDA would refuse: some on the host, some on the device.
        self._mixed: dict[str, str] = {}
        #: Whether the end of a block is still to be announced, because nothing has read the result.
        self._unread = False

    @property
    def observed(self) -> bool:
        """Whether a tensor was ever on the (simulated) device; if not, nothing was checked."""
        return self._observed

    @property
    def events(self) -> tuple[SyncEvent, ...]:
        """One event per line and operation: the longest blocked time first, then the highest count."""
        self._unread = False
        return self._log.events(self._steps or None)

    @property
    def allowed(self) -> dict[str, int]:
        """The number of syncs that `perfkit.allow_sync` allowed, by its reason."""
        return self._log.allowed()

    @property
    def note(self) -> str | None:
        """What a reader of the result must know: why nothing was checked, what was not counted; None for nothing."""
        self._unread = False
        if not self.observed:
            return self._why_unobserved()
        notes = []
        if self.allowed:
            reasons = ", ".join(f"{count} for {reason!r}" for reason, count in self.allowed.items())
            notes.append(f"allowed syncs, not counted: {reasons}")
        if self.mode == "dry" and self.arguments.threads == "all":
            notes.append('threads="all" had no effect: a dry run sees only its own thread')
        if self._mixed:
            lines = ", ".join(f"{place} ({op})" for place, op in list(self._mixed.items())[:_SHOWN])
            notes.append(f"on CUDA these lines raise an error, because they mix host and device tensors: {lines}")
        if self._rule_errors:
            errors = "; ".join(f"{op} ({error})" for op, error in self._rule_errors.items())
            notes.append(f"perfkit could not check these operations, please report this: {errors}")
        return "\n".join(notes) or None

    def _why_unobserved(self) -> str:
        if _env.disabled():
            return "nothing was checked: the variable PERFKIT_DISABLE turns perfkit off"
        if self.mode == "cuda":
            return "nothing was checked: no tensor was ever on a CUDA device"
        if self._device_of_given:
            return (
                "nothing was checked: no operation in this thread used a tensor of device_of=; "
                "pass the model that the step trains"
            )
        return (
            "nothing was checked: no tensor was ever on the simulated device. If the script does not request cuda, "
            "pass what would be on the device: detect_syncs(device_of=[model])"
        )

    def to_record(self) -> Syncs:
        """The result as a run folder stores it."""
        return Syncs(
            mode=self.mode,
            observed=self.observed,
            steps=self._steps or None,
            events=self.events,
            note=self.note,
        )

    def to_json(self) -> bytes:
        """The record as JSON."""
        return msgspec.json.encode(self.to_record())

    # -- budgets

    def assert_max(self, limit: int = 0) -> None:
        """Fail if more than ``limit`` syncs were counted.

        Raises:
            UsageError: ``limit`` is negative.
            SyncBudgetExceeded: there were more, or nothing was checked.
        """
        check_limit("limit", limit)
        self._check_observed()
        events = self.events
        count = sum(event.count for event in events)
        if count > limit:
            lines = [f"  {describe(event)} {event.advice}" for event in events[:_SHOWN]]
            if len(events) > _SHOWN:
                lines.append(f"  and {len(events) - _SHOWN} more lines")
            raise SyncBudgetExceeded("\n".join([f"expected at most {_syncs(limit)}, found {count}:", *lines]))

    def _check_observed(self) -> None:
        if not self.observed:
            raise SyncBudgetExceeded(self._why_unobserved())

    def _check_budgets(self) -> None:
        if self.arguments.max_syncs is not None:
            self.assert_max(self.arguments.max_syncs)
        limit_ms = self.arguments.max_blocked_ms
        if limit_ms is None:
            return
        self._check_observed()
        if self.mode == "dry":
            warn_caller(f"max_blocked_ms={limit_ms} was not checked: a dry run cannot measure blocked time")
            return
        timed = [event for event in self.events if event.blocked_ns is not None]
        blocked_ms = sum(event.blocked_ns or 0 for event in timed) / 1e6
        if blocked_ms > limit_ms:
            text = f"expected the host to be blocked for at most {limit_ms} ms, was {blocked_ms:.2f} ms:"
            lines = [f"  {_blocked(event)}: {describe(event)}" for event in timed[:_SHOWN]]
            raise SyncBudgetExceeded("\n".join([text, *lines]))

    # -- as text and tables

    def table(self) -> Table:
        """The events as a rich table: ``rich.print(syncs.table())``."""
        # Only here: a training that prints no table does not load rich.
        from rich.table import Table
        from rich.text import Text

        # Text: the brackets in "device_of=[model]" are no markup.
        caption = Text(printable(self.note)) if self.note else None
        table = Table(
            title=Text(printable(self._headline())), caption=caption, title_justify="left", caption_justify="left"
        )
        for name in self._columns():
            number = name in ("times", "blocked")
            table.add_column(name, justify="right" if number else "left", no_wrap=number, overflow="fold")
        for row in self._rows():
            table.add_row(*(Text(printable(cell)) for cell in row))
        return table

    def _columns(self) -> list[str]:
        # Blocked time is measured on CUDA only.
        return ["line", "sync", "times", *(["blocked"] if self.mode == "cuda" else []), "what to change"]

    def _rows(self) -> list[list[str]]:
        rows = []
        for event in self.events:
            blocked = [_blocked(event)] if self.mode == "cuda" else []
            rows.append([_format.shown_location(event), _what(event), _times(event), *blocked, event.advice])
        return rows

    def _repr_html_(self) -> str:
        """For notebooks: the headline, the table and the notes; no script, everything escaped."""
        table = html_table(self._columns(), self._rows()) if self.events else ""
        notes = [f"<p><i>Note: {html_text(line)}</i></p>" for line in (self.note or "").splitlines()]
        return "".join([f"<p><b>{html_text(self._headline())}</b></p>", table, *notes])

    def _headline(self) -> str:
        if not self.observed:
            return "not checked"
        events = self.events
        count = sum(event.count for event in events)
        source = "dry run" if self.mode == "dry" else "CUDA"
        steps = f" in {self._steps} step{'s' * (self._steps != 1)}" if self._steps else ""
        if not count:
            return f"no syncs{steps} ({source})"
        lines = len({(event.file, event.line) for event in events})
        return f"{_syncs(count)} on {lines} line{'s' * (lines != 1)}{steps} ({source})"

    def _say_unread(self) -> None:
        """Print what was found if nothing has read it: ``with perfkit.detect_syncs():`` keeps no name for it."""
        if getattr(self, "_unread", False):  # an error in __init__ leaves an object without it
            _, *rows = repr(self).removesuffix(">").split("\n")
            print_message("\n".join([f"detect_syncs: {self._headline()}", *rows]))

    def __repr__(self) -> str:
        rows = [f"  {_format.shown_location(event)}  {_what(event)}  {_times(event)}" for event in self.events]
        notes = [f"  {line}" for line in (self.note or "").splitlines()]
        return "\n".join([f"<detect_syncs: {self._headline()}>", *rows, *notes])


def describe(event: SyncEvent) -> str:
    """One sentence: where the host waits for the device, in which operation, how often."""
    times = f", {event.count}x" if event.count > 1 else ""
    return f"{_format.shown_location(event)}: the host waits for the device: {_what(event)}{times}."


def warn_caller(text: str) -> None:
    """Warn at the innermost line outside perfkit."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _code_owner.owner_of(frame.f_code.co_filename) == "perfkit":
        frame = frame.f_back
        level += 1
    warnings.warn(text, PerfkitWarning, stacklevel=level)


def _syncs(count: int) -> str:
    return f"{count} sync{'s' * (count != 1)}"


def _what(event: SyncEvent) -> str:
    may = f" (may: {event.reason})" if event.certainty == "may" else ""
    library = f" by {event.owner}, {event.via}" if event.owner != "user" and event.via else ""
    return f"{event.op}{may}{library}"


def _times(event: SyncEvent) -> str:
    if event.per_step is None:
        return f"{event.count}x"
    # One sync in a hundred steps must not read like one in every step.
    if event.per_step < 1:
        return f"1 in {1 / event.per_step:.3g} steps"
    return f"{event.per_step:.3g} per step"


def _blocked(event: SyncEvent) -> str:
    return "-" if event.blocked_ns is None else f"{event.blocked_ns / 1e6:.2f} ms"
