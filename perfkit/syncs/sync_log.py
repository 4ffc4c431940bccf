"""Syncs by line and operation, and how one that just happened is reported to the detections.

Both sources (the CUDA debug mode and the dry run) call `report` for each sync. It finds the user's line, checks whether
the sync is allowed, and passes it to every detection. The innermost detection acts on it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Literal, NamedTuple, Protocol

from perfkit import _code_owner
from perfkit._callsite import CallSite, find_callsite
from perfkit.run.records import SyncEvent, SyncKind
from perfkit.syncs.advice import advise
from perfkit.syncs.allow import allowed_reason


class Cause(NamedTuple):
    """Why the host waits: the kind of sync, and the operation as a user would name it.

    ``explicit`` is a wait or a copy that the code requests by name (``synchronize()``, ``.cpu()``);
    ``reason`` is what a "may" depends on.
    """

    kind: SyncKind
    op: str
    certainty: Literal["certain", "may"] = "certain"
    reason: str = ""
    explicit: bool = False


class Sync(NamedTuple):
    """One sync: its cause, its line, the number of device waits in it, and how long it blocked the host.

    ``owner`` is whose code synced: the user's, or the library's that the line called. ``code`` is the torch function
    that synced (`torch_code`).
    """

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
        # "ctc_loss in ctc_loss" would repeat itself.
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


class SyncListener(Protocol):
    """A detection: counts each sync, and acts on it (warns, raises, calls back) if it is the innermost."""

    def listens_to(self, thread: str) -> bool:
        """Whether syncs of the running thread, whose name is ``thread``, are reported to it."""

    def count(self, sync: Sync) -> bool:
        """Count the sync unless the filters exclude it; whether it was counted."""

    def count_allowed(self, reason: str) -> None:
        """Count a sync that `allow_sync` allows."""

    def act(self, sync: Sync) -> None:
        """Do what ``on_sync`` requests; may raise SyncError."""


#: Reason of a non-blocking copy from pageable memory.
PAGEABLE = "from pageable memory the driver may wait until the data is staged"

#: Name of the threads in which torch runs a backward on CUDA, for the thread that called it.
ENGINE_THREAD = "autograd"

#: The step of an optimizer of torch's: what it reads decides how it goes on (LBFGS), whichever line calls it.
_OPTIMIZER_STEP = re.compile(r"torch/optim/(?!lr_scheduler|swa_utils)\w+\.py:\w+\.step$")

#: Torch code that only leads to other torch code, so its name does not explain a sync.
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
    listeners: Sequence[SyncListener],
    cause: Cause,
    frame: FrameType | None,
    *,
    thread: str | None = None,
    raw_syncs: int = 1,
    blocked_ns: int | None = None,
) -> None:
    """Report one sync that happened below ``frame`` to the ``listeners`` of this thread; the last one acts on it.

    A sync of perfkit's own work (a window that ends) is not reported: the program cannot remove it.
    ``thread`` replaces Python's name of the thread where that name is meaningless.

    Raises:
        SyncError: from the acting listener, under ``on_sync="raise"``.
    """
    if _code_owner.is_own_work(frame):
        return
    thread = thread or threading.current_thread().name
    listeners = [listener for listener in listeners if listener.listens_to(thread)]
    if not listeners:
        return
    site = find_callsite(frame)
    if site is None:  # only perfkit's and torch's own frames: a thread that torch started
        site = CallSite(file="<no Python line>", line=0, function="", owner="torch")
    reason = allowed_reason(site.file, site.line)
    if reason is not None:
        for listener in listeners:
            listener.count_allowed(reason)
        return
    code = torch_code(frame, site)
    if "distributed_c10d.py" in code:
        cause = cause._replace(kind="collective")
    owner = site.owner if site.via is None else _code_owner.owner_of(site.via.rsplit(":", 1)[0])
    if owner == _code_owner.USER and _OPTIMIZER_STEP.match(code):
        owner = "torch"
    sync = Sync(cause, site, owner, code, thread, raw_syncs, blocked_ns)
    counted = [listener for listener in listeners if listener.count(sync)]
    if counted:
        counted[-1].act(sync)


@dataclass(slots=True)
class _EqualSyncs:
    """The sums of equal syncs, the first of which is ``sync``.

    ``in_steps`` is the number of steps with at least one, ``last_step`` the last of these steps.
    """

    sync: Sync
    count: int
    raw_syncs: int
    blocked_ns: int | None
    in_steps: int
    last_step: int


class SyncLog:
    """Rows of equal syncs: same line, function, operation, library line and thread."""

    def __init__(self) -> None:
        # On CUDA every thread that syncs reports.
        self._lock = threading.Lock()
        self._rows: dict[tuple[object, ...], _EqualSyncs] = {}
        self._allowed: dict[str, int] = {}

    def add(self, sync: Sync, step: int) -> None:
        """Add one sync to its row; ``step`` is the number of steps that had ended before it."""
        site = sync.site
        key = (site.file, site.line, site.function, site.via, sync.cause, sync.code, sync.thread)
        with self._lock:
            row = self._rows.get(key)
            if row is None:
                self._rows[key] = _EqualSyncs(sync, 1, sync.raw_syncs, sync.blocked_ns, 1, step)
                return
            row.count += 1
            row.raw_syncs += sync.raw_syncs
            if sync.blocked_ns is not None:
                row.blocked_ns = (row.blocked_ns or 0) + sync.blocked_ns
            row.in_steps += step != row.last_step
            row.last_step = step

    def add_allowed(self, reason: str) -> None:
        """Count a sync that `allow_sync` allows."""
        with self._lock:
            self._allowed[reason] = self._allowed.get(reason, 0) + 1

    def allowed(self) -> dict[str, int]:
        """The number of allowed syncs, by the reason given to `allow_sync`."""
        with self._lock:
            return dict(self._allowed)

    def events(self, steps: int | None) -> tuple[SyncEvent, ...]:
        """The rows as events: the longest blocked time first, then the highest count."""
        with self._lock:
            rows = [replace(row) for row in self._rows.values()]
        events = []
        for row in rows:
            sync = row.sync._replace(raw_syncs=row.raw_syncs, blocked_ns=row.blocked_ns)
            rate, seen = (row.count / steps, row.in_steps) if steps else (None, None)
            events.append(sync.event(count=row.count, per_step=rate, in_steps=seen))
        return tuple(sorted(events, key=lambda e: (-(e.blocked_ns or 0), -e.count, e.file, e.line, e.op)))
