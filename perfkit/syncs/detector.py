"""`detect_syncs`: find the points of a training program where the host waits for the device."""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from perfkit import _env
from perfkit.errors import PerfkitWarning, SyncError, UsageError
from perfkit.run.records import SyncKind
from perfkit.syncs.arguments import Certainty, DetectionArguments, Mode, OnSync, Threads
from perfkit.syncs.results import SyncResults, describe, warn_caller
from perfkit.syncs.sync_log import ENGINE_THREAD, Sync, SyncLog

if TYPE_CHECKING:
    from perfkit.syncs.dry_run.thread_state import DryRun

F = TypeVar("F", bound=Callable[..., Any])


@overload
def detect_syncs(mode: F, /) -> F: ...


@overload
def detect_syncs(
    mode: Mode = "auto",
    *,
    on_sync: OnSync = "record",
    max_syncs: int | None = None,
    max_blocked_ms: float | None = None,
    kinds: Iterable[SyncKind] | SyncKind | None = None,
    ignore: Iterable[str] | str = (),
    certainty: Certainty = "certain",
    implicit_only: bool = False,
    threads: Threads = "current",
    device_of: Any = (),
    simulate: bool | None = None,
) -> SyncDetector: ...


def detect_syncs(
    mode: Any = "auto",
    *,
    on_sync: OnSync = "record",
    max_syncs: int | None = None,
    max_blocked_ms: float | None = None,
    kinds: Iterable[SyncKind] | SyncKind | None = None,
    ignore: Iterable[str] | str = (),
    certainty: Certainty = "certain",
    implicit_only: bool = False,
    threads: Threads = "current",
    device_of: Any = (),
    simulate: bool | None = None,
) -> Any:
    """Find the points where the host waits for the device, by the user's line.

        with perfkit.detect_syncs(device_of=[model]) as syncs:
            train_step(batch)
        print(syncs)
        syncs.assert_max(0)

    Also a decorator, with arguments or without (``step.syncs`` is then the detection of the last call), and
    ``start()`` / ``stop()``. Detections nest: each counts, and the innermost acts on a sync. The result of a ``with``
    block or of a decorated function that nothing has read is printed to stderr when it is dropped, at the latest at
    the end of the program.

    On CUDA ("cuda"; run against a simulated CUDA runtime) torch's sync debug mode reports each sync, at no cost per
    operation.
    Without a GPU ("dry") the program runs on the CPU with real values, and the syncs that it would make on CUDA are
    reported. "auto" uses CUDA if there is a device.

    Args:
        mode: "auto", "cuda" or "dry".
        on_sync: "record"; "warn" (a `PerfkitWarning` at the line); "raise" (`SyncError` at the line; on CUDA after
            the operation); or a function that is called with each `SyncEvent`.
        max_syncs: maximum number of syncs, checked at the end.
        max_blocked_ms: maximum time the host may be blocked, in ms, checked at the end. CUDA only: a dry run cannot
            measure it.
        kinds: count only these kinds (see `perfkit.run.records.SyncKind`).
        ignore: do not count syncs of these files ("**/logging.py": matched with the user's file and the library's)
            and functions ("fn:save_checkpoint").
        certainty: "may" also counts operations that sync only under conditions perfkit cannot check; each event
            gives the reason. On CUDA it also wraps ``Tensor.to``, ``cuda`` and ``copy_``, for non-blocking copies with
            pageable memory.
        implicit_only: do not count what the code requests by name: ``synchronize()``, ``.cpu()``, ``.to()``,
            ``copy_``, ``torch.tensor(device=)``. What remains is hidden: ``bool``, ``.item()``, printing, masks.
        threads: "current" counts the syncs of the thread that starts the detection and of the backwards it calls;
            "all" counts those of every thread, by `SyncEvent.thread`. CUDA only: a dry run sees only its own thread.
        device_of: dry run of a script that runs on the CPU: the modules, optimizers or tensors that would be on the
            device. What is computed from them is on the device too. Copies to the device are not reported, because
            such a script makes none.
        simulate: dry run of a script that requests cuda: simulate a CUDA device. The default if ``device_of`` names
            nothing.

    Raises:
        UsageError: an argument is out of its range, two contradict each other, or CUDA is requested and absent.
        SyncError: a sync, under ``on_sync="raise"``.
        SyncBudgetExceeded: at the end, more than ``max_syncs`` or ``max_blocked_ms``; or one of them was given
            and no tensor was ever on the device, so nothing was checked.
    """
    given = dict(locals())  # the arguments: nothing else is defined yet
    given["kinds"] = None if kinds is None else (kinds,) if isinstance(kinds, str) else tuple(kinds)
    given["ignore"] = (ignore,) if isinstance(ignore, str) else tuple(ignore)
    if isinstance(device_of, Iterator):  # model.parameters(), which a decorator needs again for each call
        given["device_of"] = list(device_of)
    if callable(mode) or isinstance(mode, (staticmethod, classmethod)):  # @perfkit.detect_syncs
        return SyncDetector(DetectionArguments(**{**given, "mode": "auto"}))(mode)
    return SyncDetector(DetectionArguments(**given))


class SyncDetector(SyncResults):
    """One detection, and what it found; made by `detect_syncs`."""

    def __init__(self, arguments: DetectionArguments) -> None:
        _env.require_torch("detect_syncs")
        # Imports torch, which `import perfkit.syncs` must not.
        from perfkit.syncs.device_tensors import check_on_cpu, tensors_of

        named = tensors_of(arguments.device_of)
        super().__init__(_choose_mode(arguments.mode), arguments)
        arguments.check_together(tensors_named=bool(named))
        if self.mode == "dry":
            check_on_cpu(named)
        self._simulate = not named if arguments.simulate is None else arguments.simulate
        self._device_of_given = bool(named)
        #: Tensors that the next `start` marks as being on the device.
        self._unmarked = named
        self._ignored = dict.fromkeys(arguments.ignore, 0)
        self._running = False
        self._thread = threading.get_ident()
        self._dry_run: DryRun | None = None
        self._uses_before = 0

    # -- starting and stopping

    def start(self) -> SyncDetector:
        """Begin to watch; a detection that was stopped continues its counts.

        Raises:
            UsageError: it is already running, or an outer dry run of this thread contradicts ``simulate=True``.
        """
        if self._running:
            raise UsageError("this detection is already running: stop() it first, or make another detect_syncs()")
        if _env.disabled():
            return self
        self._thread = threading.get_ident()
        if self.mode == "cuda":
            from perfkit.syncs.cuda_debug_mode import cuda_syncs  # imports torch

            cuda_syncs.enter(self, copies=self.arguments.certainty == "may")
        else:
            from perfkit.syncs.dry_run import lifecycle  # imports torch

            explicit = self.arguments.simulate is not None
            self._dry_run = lifecycle.enter(
                self, simulate=self._simulate, explicit=explicit, scope=self.arguments.scope
            )
            self._uses_before = self._dry_run.device_uses
        self._running = True
        self._mark()
        return self

    def stop(self) -> None:
        """Stop watching, and check the budgets. A dry run must be stopped in the thread that started it.

        Raises:
            SyncBudgetExceeded: see `detect_syncs`.
        """
        if self._running:
            self._leave()
            self._warn_of_unused_patterns()
            self._check_budgets()

    def _leave(self) -> None:
        if not self._running:
            return
        if self._dry_run is None:
            from perfkit.syncs.cuda_debug_mode import any_device_memory, cuda_syncs  # imports torch

            cuda_syncs.leave(self, copies=self.arguments.certainty == "may")
            self._observed = self._observed or any_device_memory()
        else:
            from perfkit.syncs.dry_run import lifecycle  # imports torch

            lifecycle.leave(self, self._dry_run)
            self._observed = self.observed
            self._rule_errors.update(self._dry_run.rule_errors)
            self._mixed.update(self._dry_run.mixed)
            self._dry_run = None
        self._running = False

    def __enter__(self) -> SyncDetector:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            started, wanted = self._running, self.arguments
            self.stop()
            # A budget that was checked, and warnings at the lines, have said it already.
            only_recorded = wanted.on_sync == "record" and wanted.max_syncs is None and wanted.max_blocked_ms is None
            self._unread = started and (only_recorded or not self.observed)
            if self._unread:
                _unread_results.add(self)
        else:
            self._leave()

    def __del__(self) -> None:
        self._say_unread()

    def __call__(self, function: F) -> F:
        """Watch each call of ``function`` with its own detection; the last one is ``function.syncs``."""
        _check_decorated(function)
        if (
            inspect.iscoroutinefunction(function)
            or inspect.isgeneratorfunction(function)
            or inspect.isasyncgenfunction(function)
        ):
            raise UsageError(
                f"detect_syncs decorates plain functions, got {function.__qualname__}, which other code interrupts: "
                "write `with perfkit.detect_syncs()` around the code inside it"
            )

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            detection = SyncDetector(self.arguments)
            if (earlier := getattr(watched, "syncs", None)) is not None:
                earlier._unread = False  # a loop that calls the function prints the last result, not each
            watched.syncs = detection  # type: ignore[attr-defined]  # read by the caller of a decorated function
            with detection:
                return function(*args, **kwargs)

        return watched  # type: ignore[return-value]  # same parameters and result as the function

    def mark_device(self, *things: Any) -> None:
        """Treat more modules, optimizers or tensors as being on the device, as ``device_of`` does; dry run only.

        Raises:
            UsageError: something else was given, or a tensor that is not on the CPU.
        """
        from perfkit.syncs.device_tensors import check_on_cpu, tensors_of  # imports torch

        tensors = tensors_of(things)
        self._device_of_given = self._device_of_given or bool(tensors)
        if self.mode == "dry":
            check_on_cpu(tensors)
            self._unmarked = [*self._unmarked, *tensors]
            self._mark()

    def _mark(self) -> None:
        if self._dry_run is not None:
            from perfkit.syncs.dry_run.device_marks import mark_on_device  # imports torch

            mark_on_device(self._unmarked)
            self._unmarked = []

    def step(self) -> None:
        """Mark the end of a training step; `SyncEvent.per_step` counts these."""
        self._steps += 1

    def count_from_here(self) -> None:
        """Forget the syncs and the steps until now; tensors stay on the simulated device."""
        self._log, self._steps = SyncLog(), 0

    @property
    def observed(self) -> bool:
        """Whether a tensor was ever on the (simulated) device; if not, nothing was checked."""
        return self._observed or (self._dry_run is not None and self._dry_run.device_uses > self._uses_before)

    # -- called by `sync_log.report`

    def listens_to(self, thread: str) -> bool:
        """Whether syncs of the running thread, whose name is ``thread``, count here."""
        return self.arguments.threads == "all" or threading.get_ident() == self._thread or thread == ENGINE_THREAD

    def count(self, sync: Sync) -> bool:
        """Count a sync unless the filters exclude it; whether it was counted."""
        self._observed = True
        cause, wanted = sync.cause, self.arguments
        if cause.certainty == "may" and wanted.certainty == "certain":
            return False
        if wanted.implicit_only and (cause.explicit or cause.kind == "explicit"):
            return False
        if wanted.kinds is not None and cause.kind not in wanted.kinds:
            return False
        if self._is_ignored(sync):
            return False
        self._log.add(sync, self._steps)
        return True

    def count_allowed(self, reason: str) -> None:
        """Count a sync that `allow_sync` allows."""
        self._observed = True
        self._log.add_allowed(reason)

    def act(self, sync: Sync) -> None:
        """Do what ``on_sync`` requests."""
        on_sync = self.arguments.on_sync
        if on_sync == "record":
            return
        event = sync.event()
        if on_sync == "warn":
            warnings.warn_explicit(describe(event), PerfkitWarning, event.file, event.line)
        elif on_sync == "raise":
            raise SyncError(f"{describe(event)} {event.advice} If it is intended, use perfkit.allow_sync(reason).")
        else:
            on_sync(event)

    def _is_ignored(self, sync: Sync) -> bool:
        via = sync.site.via.rsplit(":", 1)[0] if sync.site.via else ""
        found = False
        for pattern in self._ignored:
            if pattern.startswith("fn:"):
                name = sync.site.function
                hit = fnmatch(name, pattern[3:]) or fnmatch(name.rsplit(".", 1)[-1], pattern[3:])
            else:
                hit = any(_matches_file(file, pattern) for file in (sync.site.file, via) if file)
            if hit:
                self._ignored[pattern] += 1
                found = True
        return found

    def _warn_of_unused_patterns(self) -> None:
        unused = [pattern for pattern, hits in self._ignored.items() if not hits]
        if unused and self.observed:
            warn_caller(
                f"detect_syncs(ignore=) matched no sync: {', '.join(map(repr, unused))}; a pattern is a file "
                'such as "**/logging.py" or a function such as "fn:save_checkpoint"'
            )


def _check_decorated(function: object) -> None:
    """Refuse what is not a function or method, and say what to write instead.

    Raises:
        UsageError: it is a class, a module, or a static or class method.
    """
    named = getattr(function, "__qualname__", type(function).__qualname__)
    if isinstance(function, (staticmethod, classmethod)):
        fix = f"write @perfkit.detect_syncs below @{type(function).__name__}"
    elif isinstance(function, type):
        fix = "decorate its method, or write `with perfkit.detect_syncs():` around the call"
    elif callable(getattr(function, "parameters", None)):  # an nn.Module
        fix = "write `with perfkit.detect_syncs(device_of=[model]):` around the step"
    elif not callable(function):
        fix = "write @perfkit.detect_syncs above a function, or `with perfkit.detect_syncs():`"
    else:
        return
    raise UsageError(f"detect_syncs decorates functions and methods, got {named}: {fix}")


#: Results of blocks that have ended and that nothing has read yet.
_unread_results: weakref.WeakSet[SyncDetector] = weakref.WeakSet()


@atexit.register
def _say_unread_results() -> None:
    for result in list(_unread_results):
        result._say_unread()


def _matches_file(file: str, pattern: str) -> bool:
    file = file.replace(os.sep, "/")
    # "logging.py" means the file of that name anywhere, as "**/logging.py" does.
    return fnmatch(file, pattern) or fnmatch(file, f"*/{pattern.removeprefix('**/')}")


def _choose_mode(mode: Mode) -> Literal["cuda", "dry"]:
    if mode == "dry":
        return "dry"
    from perfkit.syncs.dry_run.thread_state import simulation  # imports torch

    # An outer dry run simulates a CUDA device that this detection must not use.
    if simulation() is None and _env.cuda_here():
        return "cuda"
    if mode == "cuda":
        raise UsageError(
            'detect_syncs(mode="cuda") needs a CUDA device, and torch finds none: '
            'use mode="dry", which finds the syncs on the CPU'
        )
    return "dry"
