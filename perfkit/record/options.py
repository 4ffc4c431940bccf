"""The arguments of `perfkit.profile`, checked in one place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from perfkit import _env
from perfkit.errors import UsageError
from perfkit.record.triggers.trigger_settings import Triggers
from perfkit.record.windows.schedules import Action, Schedule
from perfkit.run.folder_claim import check_folder
from perfkit.run.remote import check_url, is_url

#: What a window can record.
RECORDERS = ("kineto", "cuda_profiler", "memory", "ranges")

#: torch's flags for a window.
FLAGS = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")

DetectSyncs = Literal["auto", "cuda", "dry"]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `perfkit.profile`, which documents them.

    ``action`` is the schedule as `as_action` returns it, None for the default; ``flags`` are torch's for windows;
    ``started_in`` is the folder that a relative path begins in, because the program may change its own later.
    """

    run: str | os.PathLike[str] | None
    started_in: Path
    schedule: Schedule | Callable[[int], Any] | None
    action: Callable[[int], Action] | None
    activities: tuple[Any, ...] | None
    flags: dict[str, bool]
    recorders: tuple[str, ...]
    handlers: tuple[Callable[[Any], Any], ...]
    triggers: Triggers
    detect_syncs: DetectSyncs | None
    capture_nvtx: bool
    ranks: tuple[int, ...]
    budget: float
    overwrite: bool
    stop_after: int | None
    total_steps: int | None
    quiet: bool
    report: bool
    hooks: bool
    memory: bool = False

    @property
    def url(self) -> str | None:
        """Where finished files are copied to; None: nowhere."""
        return os.fspath(self.run) if self.run is not None and is_url(self.run) else None

    @property
    def folder(self) -> Path | None:
        """The folder to record into; None: a default one."""
        if self.url is not None:
            # A run is written by renaming and appending, which object stores do not have.
            return self.started_in / "runs" / (self.url.rstrip("/").rsplit("/", 1)[-1] or "run")
        return self.started_in / self.run if self.run is not None else None

    @property
    def total(self) -> int | None:
        """The number of steps that the run will have, None where unknown."""
        return min((number for number in (self.stop_after, self.total_steps) if number is not None), default=None)

    def check(self) -> None:
        """Check all of them.

        Raises:
            UsageError: an argument has an impossible value, or the folder cannot be written.
        """
        if callable(self.run) and not isinstance(self.run, os.PathLike):
            raise UsageError(
                f"perfkit.profile takes a folder, got {getattr(self.run, '__qualname__', self.run)}: "
                "as a decorator write @perfkit.profile(), with parentheses"
            )
        if self.url is not None:
            check_url(self.url)
        if self.folder is not None:
            check_folder(self.folder)
        unknown = [name for name in self.recorders if name not in RECORDERS]
        if unknown:
            raise UsageError(f"recorders may hold {', '.join(map(repr, RECORDERS))}, got {unknown[0]!r}")
        for handler in self.handlers:
            if not callable(handler):
                raise UsageError(f"a handler must be callable with the torch profiler of a window, got {handler!r}")
        if self.detect_syncs not in (None, *get_args(DetectSyncs)):
            raise UsageError(f"detect_syncs must be 'auto', 'cuda', 'dry' or None, got {self.detect_syncs!r}")
        torch: Any = _env.torch_if_loaded()
        if self.detect_syncs == "cuda" and torch is not None and not torch.backends.cuda.is_built():
            raise UsageError("detect_syncs='cuda' needs a torch that is built for CUDA: use 'dry', which runs on a CPU")
        if not 0 < self.budget <= 1:
            raise UsageError(f"budget must be a share of the step above 0 and at most 1, got {self.budget!r}")
        for name, number in (("stop_after", self.stop_after), ("total_steps", self.total_steps)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                raise UsageError(f"{name} must be an integer of at least 1 step, got {number!r}")
        if isinstance(self.schedule, Schedule) and self.total is not None:
            needed = self.schedule.first_window_end
            if needed > self.total:
                raise UsageError(
                    f"the schedule's first window needs {needed} steps, the run has {self.total}: "
                    "shorten wait or skip_first, or leave schedule out"
                )
