"""The arguments of `detect_syncs`, checked: each by itself, then together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, get_args

from perfkit.errors import UsageError
from perfkit.run.records import SyncEvent, SyncKind

Mode = Literal["auto", "cuda", "dry"]
Action = Literal["record", "warn", "raise"]
OnSync = Action | Callable[[SyncEvent], object]
Certainty = Literal["certain", "may"]
Threads = Literal["current", "all"]

_numbers = count(1)


@dataclass(frozen=True, kw_only=True)
class DetectionArguments:
    """What `detect_syncs` was called with; see there.

    Raises:
        UsageError: an argument is out of its range.
    """

    mode: Mode
    on_sync: OnSync
    max_syncs: int | None
    max_blocked_ms: float | None
    kinds: tuple[SyncKind, ...] | None
    ignore: tuple[str, ...]
    certainty: Certainty
    implicit_only: bool
    threads: Threads
    device_of: Any
    simulate: bool | None
    #: The marks of ``device_of=`` are of one call of `detect_syncs`, and of all dry runs that it makes.
    scope: int = field(default_factory=_numbers.__next__, init=False)

    def __post_init__(self) -> None:
        _check_choice("mode", self.mode, Mode)
        _check_choice("certainty", self.certainty, Certainty)
        _check_choice("threads", self.threads, Threads)
        if not callable(self.on_sync):
            _check_choice("on_sync", self.on_sync, Action, also=" or a function")
        if self.kinds == ():
            raise UsageError("detect_syncs(kinds=) must name at least one kind; leave it out to count all kinds")
        for kind in self.kinds or ():
            _check_choice("kinds", kind, SyncKind)
        for pattern in self.ignore:
            if not isinstance(pattern, str):
                raise UsageError(
                    f'detect_syncs(ignore=) takes patterns such as "**/logging.py" or "fn:save", got {pattern!r}'
                )
        check_limit("max_syncs", self.max_syncs)
        check_limit("max_blocked_ms", self.max_blocked_ms)

    def check_together(self, *, tensors_named: bool) -> None:
        """Check that no two arguments contradict each other; ``tensors_named``: ``device_of=`` names a tensor.

        Raises:
            UsageError: two do.
        """
        if self.mode == "cuda" and (tensors_named or self.simulate is not None):
            raise UsageError('device_of= and simulate= are for the dry run: leave them out, or use mode="dry"')
        if self.mode == "dry" and self.max_blocked_ms is not None:
            raise UsageError("max_blocked_ms= needs CUDA: a dry run cannot measure blocked time; use max_syncs=")
        if self.mode == "dry" and self.threads == "all":
            raise UsageError('threads="all" needs CUDA: a dry run sees only its own thread; leave threads= out')
        if self.simulate and tensors_named:
            raise UsageError(
                "simulate=True is for a script that requests cuda, device_of= for one that runs on the CPU: "
                "give only one of them"
            )


def _check_choice(name: str, value: object, choices: Any, also: str = "") -> None:
    allowed = get_args(choices)
    if value not in allowed:
        raise UsageError(f"detect_syncs({name}=) must be one of {', '.join(map(repr, allowed))}{also}, got {value!r}")


def check_limit(name: str, value: float | None) -> None:
    """Check a maximum that is None or a number of at least 0.

    Raises:
        UsageError: it is something else.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise UsageError(f"{name} must be a number of at least 0, got {value!r}")
