"""What is kept of the syncs: one row per line and operation, and who is told of each.

Both paths (CUDA and dry run) report a sync through `report`, which finds the user's line, asks whether
the sync is allowed, and books it with every detection that listens. The innermost detection acts on it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Literal, NamedTuple, Protocol

from perfkit import _code_owner
from perfkit._callsite import CallSite, find_callsite
from perfkit.run.records import SyncEvent, SyncKind
from perfkit.syncs.advice import advise
from perfkit.syncs.allow import reason_allowed


class Cause(NamedTuple):
    """Why the host waits: what kind of sync it is, and the operation as a user would name it.

    ``explicit`` is a wait or a copy that the code asks for by name (``synchronize()``, ``.cpu()``);
    ``reason`` says what a "may" depends on.
    """

    kind: SyncKind
    op: str
    certainty: Literal["certain", "may"] = "certain"
    reason: str = ""
    explicit: bool = False


class Sync(NamedTuple):
    """One sync, as it happened: why, where, how many device waits it made, how long the host was blocked."""

    cause: Cause
    site: CallSite
    owner: str
    code: str
    thread: str
    raw_syncs: int
    blocked_ns: int | None

    def event(self, *, count: int = 1, per_step: float | None = None, in_steps: int | None = None) -> SyncEvent:
        """The record of this sync, or of ``count`` equal ones."""
        cause, site = self.cause, self.site
        inside = self.code.rsplit(":", 1)[-1]
        # "ctc_loss in ctc_loss" says nothing twice.
        op = f"{cause.op} in {inside}" if inside and not cause.op.startswith(inside) else cause.op
        return SyncEvent(
            kind=cause.kind,
            op=op,
            file=site.file,
            line=site.line,
            function=site.function,
            count=count,
            raw_syncs=self.raw_syncs,
            per_step=per_step,
            in_steps=in_steps,
            blocked_ns=self.blocked_ns,
            via=site.via,
            owner=self.owner,
            thread=self.thread,
            certainty=cause.certainty,
            reason=cause.reason,
            advice=advise(cause.kind, cause.op, self.code, self.owner),
        )


class Listener(Protocol):
    """A detection: takes each sync, and acts on it (warns, raises, calls back) where it is the innermost."""

    def hears(self, thread: str) -> bool:
        """Whether syncs of the running thread, whose name is ``thread``, are told to it."""

    def take(self, sync: Sync) -> bool:
        """Book the sync unless the detection's filters leave it out; whether it was booked."""

    def take_allowed(self, reason: str) -> None:
        """Count a sync that `allow_sync` let pass."""

    def act(self, sync: Sync) -> None:
        """Do what ``on_sync`` says; may raise SyncError."""


#: Name of the threads in which torch runs a backward on CUDA: they work for the thread that called it.
ENGINE_THREAD = "autograd"

#: Torch code that only leads to other torch code: naming it would tell nothing.
_PASSAGES = (
    "torch/_tensor.py",
    "torch/overrides.py",
    "torch/nn/modules/module.py",
    "torch/optim/optimizer.py",
    "torch/utils/_device.py",
    "torch/utils/_contextlib.py",
    "torch/_ops.py",
    "torch/_compile.py",
    "torch/_dynamo/eval_frame.py",
    "torch/utils/_python_dispatch.py",
)


def _is_inner(name: str) -> bool:
    """Whether a function is not one that users call: a decorator's wrapper, or a private helper."""
    last = name.rsplit(".", 1)[-1]
    return "<locals>" in name or (last.startswith("_") and not last.startswith("__"))


def torch_code(frame: FrameType | None, site: CallSite) -> str:
    """The outermost torch function below the user's line, as ``torch/folder/file.py:function``; "" if there is none."""
    found = ""
    while frame is not None:
        code = frame.f_code
        owner = _code_owner.owner_of(code.co_filename)
        if owner == "torch":
            file = code.co_filename.replace(os.sep, "/")
            short = "torch/" + file.rsplit("/torch/", 1)[-1]
            name = _code_owner.function_name(code)
            if short not in _PASSAGES and not _is_inner(name):
                found = f"{short}:{name}"
        elif owner == _code_owner.USER or (code.co_filename == site.file and frame.f_lineno == site.line):
            break
        frame = frame.f_back
    return found


def report(
    listeners: Sequence[Listener],
    cause: Cause,
    frame: FrameType | None,
    *,
    thread: str | None = None,
    raw_syncs: int = 1,
    blocked_ns: int | None = None,
) -> None:
    """Book one sync that happened below ``frame`` with the ``listeners`` that hear this thread; the last one acts.

    ``thread`` is what to call the thread where Python's name for it tells nothing.

    Raises:
        SyncError: from the acting listener, under ``on_sync="raise"``.
    """
    thread = thread or threading.current_thread().name
    listeners = [listener for listener in listeners if listener.hears(thread)]
    if not listeners:
        return
    site = find_callsite(frame)
    if site is None:  # perfkit's and torch's own frames only: a thread of torch's
        site = CallSite(file="<no Python line>", line=0, function="", owner="torch")
    reason = reason_allowed(site.file, site.line)
    if reason is not None:
        for listener in listeners:
            listener.take_allowed(reason)
        return
    code = torch_code(frame, site)
    if "distributed_c10d.py" in code:
        cause = cause._replace(kind="collective")
    owner = site.owner if site.via is None else _code_owner.owner_of(site.via.rsplit(":", 1)[0])
    sync = Sync(cause, site, owner, code, thread, raw_syncs, blocked_ns)
    takers = [listener for listener in listeners if listener.take(sync)]
    if takers:
        takers[-1].act(sync)


@dataclass(slots=True)
class _Row:
    """The sums of equal syncs; ``in_steps`` is in how many steps there was one, ``last_step`` the last of these."""

    count: int
    raw_syncs: int
    blocked_ns: int | None
    in_steps: int
    last_step: int


class Ledger:
    """Rows of equal syncs: same line, function, operation, library line and thread."""

    def __init__(self) -> None:
        # The CUDA path reports from every thread that syncs.
        self._lock = threading.Lock()
        self._rows: dict[tuple[object, ...], _Row] = {}
        self._samples: dict[tuple[object, ...], Sync] = {}
        self._allowed: dict[str, int] = {}

    def add(self, sync: Sync, step: int) -> None:
        """Add one sync to its row; ``step`` is the number of steps that were over before it."""
        site = sync.site
        key = (site.file, site.line, site.function, site.via, sync.cause, sync.code, sync.thread)
        with self._lock:
            row = self._rows.get(key)
            if row is None:
                self._rows[key] = _Row(1, sync.raw_syncs, sync.blocked_ns, 1, step)
                self._samples[key] = sync
                return
            row.count += 1
            row.raw_syncs += sync.raw_syncs
            if sync.blocked_ns is not None:
                row.blocked_ns = (row.blocked_ns or 0) + sync.blocked_ns
            row.in_steps += step != row.last_step
            row.last_step = step

    def add_allowed(self, reason: str) -> None:
        """Count a sync that `allow_sync` let pass."""
        with self._lock:
            self._allowed[reason] = self._allowed.get(reason, 0) + 1

    def allowed(self) -> dict[str, int]:
        """How many syncs passed, by the reason of `allow_sync`."""
        with self._lock:
            return dict(self._allowed)

    def events(self, steps: int | None) -> tuple[SyncEvent, ...]:
        """The rows as events, the one that blocked longest or happened most often first."""
        with self._lock:
            rows = [(self._samples[key], replace(row)) for key, row in self._rows.items()]
        events = []
        for sample, row in rows:
            sync = sample._replace(raw_syncs=row.raw_syncs, blocked_ns=row.blocked_ns)
            rate, seen = (row.count / steps, row.in_steps) if steps else (None, None)
            events.append(sync.event(count=row.count, per_step=rate, in_steps=seen))
        return tuple(sorted(events, key=lambda e: (-(e.blocked_ns or 0), -e.count, e.file, e.line, e.op)))
