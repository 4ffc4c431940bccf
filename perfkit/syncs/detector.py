"""`detect_syncs`: watch a piece of training for points where the host waits for the device."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from html import escape
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import msgspec

from perfkit import _env
from perfkit._html import html_table
from perfkit.errors import PerfkitWarning, SyncBudgetExceeded, SyncError, UsageError
from perfkit.run.records import SyncEvent, SyncKind, Syncs
from perfkit.syncs.sync_log import ENGINE_THREAD, Ledger, Sync

if TYPE_CHECKING:
    from rich.table import Table

    from perfkit.syncs.dry_state import DryRun

F = TypeVar("F", bound=Callable[..., Any])

Mode = Literal["auto", "cuda", "dry"]
OnSync = Literal["record", "warn", "raise"] | Callable[[SyncEvent], object]

_KINDS: tuple[str, ...] = get_args(SyncKind)

#: Lines named in an error text; the rest is counted.
_SHOWN = 10


def detect_syncs(
    mode: Mode = "auto",
    *,
    on_sync: OnSync = "record",
    max_syncs: int | None = None,
    max_blocked_ms: float | None = None,
    kinds: Iterable[SyncKind] | SyncKind | None = None,
    ignore: Iterable[str] | str = (),
    certainty: Literal["certain", "may"] = "certain",
    implicit_only: bool = False,
    threads: Literal["current", "all"] = "current",
    device_of: Any = (),
    simulate: bool | None = None,
) -> SyncDetector:
    """Find the points where the host waits for the device, by the user's line.

        with perfkit.detect_syncs(device_of=[model]) as syncs:
            train_step(batch)
        print(syncs)
        syncs.assert_max(0)

    Also a decorator (``step.syncs`` is then the detection of the last call), and ``start()`` / ``stop()``.
    Detections nest: each counts, and the innermost acts on a sync.

    On CUDA ("cuda"; not yet run on a GPU) torch's sync debug mode tells each sync, at no cost per operation.
    Without a GPU ("dry") the program runs on the CPU with real values and the syncs that CUDA would make are
    told. "auto" takes CUDA if there is one.

    Args:
        mode: "auto", "cuda" or "dry".
        on_sync: "record"; "warn" (a `PerfkitWarning` at the line); "raise" (`SyncError` at the line; on CUDA after
            the operation); or a function that gets each `SyncEvent`.
        max_syncs: most syncs allowed, checked at the end.
        max_blocked_ms: most time the host may be blocked, in ms, checked at the end. CUDA only: a sync has
            no price in a dry run.
        kinds: count only these kinds (see `perfkit.run.records.SyncKind`).
        ignore: leave out syncs by file ("**/logging.py": matched with the user's file and the library's)
            or by function ("fn:save_checkpoint").
        certainty: "may" also counts what might sync, depending on what cannot be known; each says why. On CUDA it
            also wraps ``Tensor.to``, ``cuda`` and ``copy_``, for non-blocking copies with pageable memory.
        implicit_only: leave out what the code asks for by name: ``synchronize()``, ``.cpu()``, ``.to()``,
            ``copy_``, ``torch.tensor(device=)``. What stays is hidden: ``bool``, ``.item()``, printing, masks.
        threads: whose syncs count: those of the thread that starts the detection and of the backwards it calls,
            or of "all" threads; `SyncEvent.thread` tells them apart. CUDA only: a dry run sees its own thread.
        device_of: dry run of a script that runs on the CPU: the modules, optimizers or tensors that would
            be on the device. What is computed with them is on the device too; copies to the device are
            not reported, since such a script makes none.
        simulate: dry run of a script that asks for cuda: pretend that there is one. The default when
            nothing is named in ``device_of``.

    Raises:
        UsageError: an argument is out of its range, two contradict each other, or CUDA is asked for and absent.
        SyncError: a sync, under ``on_sync="raise"``.
        SyncBudgetExceeded: at the end, more than ``max_syncs`` or ``max_blocked_ms``; or a budget was given
            and no tensor was ever on the device, so that nothing was checked.
    """
    return SyncDetector(
        mode=mode,
        on_sync=on_sync,
        max_syncs=max_syncs,
        max_blocked_ms=max_blocked_ms,
        kinds=None if kinds is None else (kinds,) if isinstance(kinds, str) else tuple(kinds),
        ignore=(ignore,) if isinstance(ignore, str) else tuple(ignore),
        certainty=certainty,
        implicit_only=implicit_only,
        threads=threads,
        device_of=device_of,
        simulate=simulate,
    )


class SyncDetector:
    """One detection, and what it found; made by `detect_syncs`."""

    #: "cuda" or "dry".
    mode: Literal["cuda", "dry"]

    def __init__(
        self,
        *,
        mode: Mode,
        on_sync: OnSync,
        max_syncs: int | None,
        max_blocked_ms: float | None,
        kinds: tuple[SyncKind, ...] | None,
        ignore: tuple[str, ...],
        certainty: Literal["certain", "may"],
        implicit_only: bool,
        threads: Literal["current", "all"],
        device_of: Any,
        simulate: bool | None,
    ) -> None:
        if isinstance(device_of, Iterator):  # model.parameters(): a decorator needs it again for each call
            device_of = list(device_of)
        self._arguments: dict[str, Any] = {
            "mode": mode,
            "on_sync": on_sync,
            "max_syncs": max_syncs,
            "max_blocked_ms": max_blocked_ms,
            "kinds": kinds,
            "ignore": ignore,
            "certainty": certainty,
            "implicit_only": implicit_only,
            "threads": threads,
            "device_of": device_of,
            "simulate": simulate,
        }
        _check_choice("mode", mode, ("auto", "cuda", "dry"))
        _check_choice("certainty", certainty, ("certain", "may"))
        _check_choice("threads", threads, ("current", "all"))
        if not callable(on_sync):
            _check_choice("on_sync", on_sync, ("record", "warn", "raise"), also="a function")
        if kinds == ():
            raise UsageError("detect_syncs(kinds=) must name at least one kind: leave it out to count all")
        for kind in kinds or ():
            _check_choice("kinds", kind, _KINDS)
        for pattern in ignore:
            if not isinstance(pattern, str):
                raise UsageError(f'ignore= takes patterns as "**/logging.py" or "fn:save", got {pattern!r}')
        _check_budget("max_syncs", max_syncs)
        _check_budget("max_blocked_ms", max_blocked_ms)
        _env.require_torch("detect_syncs")
        named = _tensors_of(device_of)
        self.mode = _choose_mode(mode)
        self._simulate = (not named) if simulate is None else simulate
        self._device_of_given = bool(named)
        _check_together(mode, simulate, bool(named), max_blocked_ms, threads)
        if self.mode == "dry":
            _check_on_cpu(named)
        self._waiting_marks = named
        self._ledger = Ledger()
        self._ignore_hits = dict.fromkeys(ignore, 0)
        self._running = False
        self._thread = threading.get_ident()
        self._dry_run: DryRun | None = None
        self._uses_before = 0
        self._unjudged: dict[str, str] = {}
        self._mixed: dict[str, str] = {}
        self._observed = False
        self._steps = 0

    # Starting and stopping.

    def start(self) -> SyncDetector:
        """Begin to watch; a stopped detection goes on counting where it was.

        Raises:
            UsageError: it is running already, or an outer dry run of this thread contradicts ``simulate=True``.
        """
        if self._running:
            raise UsageError("this detection is already running: stop() it first, or make another detect_syncs()")
        if _env.disabled():
            return self
        self._thread = threading.get_ident()
        if self.mode == "cuda":
            from perfkit.syncs.cuda_path import cuda_path

            cuda_path.enter(self, wide=self._arguments["certainty"] == "may")
        else:
            from perfkit.syncs import dry_run

            explicitly = self._arguments["simulate"] is not None
            self._dry_run = dry_run.enter(self, simulate=self._simulate, explicitly=explicitly)
            self._uses_before = self._dry_run.device_uses
            self._mark(self._waiting_marks)
            self._waiting_marks = []
        self._running = True
        return self

    def stop(self) -> None:
        """Stop watching, and check the budgets that were given. A dry run stops in the thread that started it.

        Raises:
            SyncBudgetExceeded: see `detect_syncs`.
        """
        if self._running:
            self._leave()
            self._say_unused_patterns()
            self._check_budgets()

    def _leave(self) -> None:
        if not self._running:
            return
        if self.mode == "cuda":
            from perfkit.syncs.cuda_path import any_device_memory, cuda_path

            cuda_path.leave(self)
            self._observed = self._observed or any_device_memory()
        else:
            from perfkit.syncs import dry_run

            assert self._dry_run is not None
            dry_run.leave(self, self._dry_run)
            self._observed = self.observed
            self._unjudged.update(self._dry_run.unjudged)
            self._mixed.update(self._dry_run.mixed)
            self._dry_run = None
        self._running = False

    def __enter__(self) -> SyncDetector:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self._leave()

    def __call__(self, function: F) -> F:
        """Watch each call of ``function`` with a detection of its own; the last one is ``function.syncs``."""
        if (
            inspect.iscoroutinefunction(function)
            or inspect.isgeneratorfunction(function)
            or inspect.isasyncgenfunction(function)
        ):
            raise UsageError(
                f"detect_syncs decorates plain functions, got {function.__qualname__}, which is left and entered "
                "again while it runs: write `with perfkit.detect_syncs()` around the code inside it"
            )

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            detection = SyncDetector(**self._arguments)
            watched.syncs = detection  # type: ignore[attr-defined]  # where the caller of a decorated function looks
            with detection:
                return function(*args, **kwargs)

        return watched  # type: ignore[return-value]  # same parameters and result as the function

    def mark_device(self, *things: Any) -> None:
        """Count more modules, optimizers or tensors as being on the device, as ``device_of`` does; dry run only.

        Raises:
            UsageError: something else was given, or a tensor that is not on the CPU.
        """
        tensors = _tensors_of(things)
        self._device_of_given = self._device_of_given or bool(tensors)
        if self.mode != "dry":
            return
        _check_on_cpu(tensors)
        if self._running:
            self._mark(tensors)
        else:
            self._waiting_marks = [*self._waiting_marks, *tensors]

    def _mark(self, tensors: list[Any]) -> None:
        from perfkit.syncs.device_marks import put_on_device

        for tensor in tensors:
            put_on_device(tensor)

    def step(self) -> None:
        """Say that a training step has ended; `SyncEvent.per_step` is counted over these."""
        self._steps += 1

    # What the two paths call.

    def hears(self, thread: str) -> bool:
        """Whether syncs of the running thread, whose name is ``thread``, count here."""
        return self._arguments["threads"] == "all" or threading.get_ident() == self._thread or thread == ENGINE_THREAD

    def take(self, sync: Sync) -> bool:
        """Book a sync unless the filters leave it out; whether it was booked."""
        self._observed = True
        cause = sync.cause
        if cause.certainty == "may" and self._arguments["certainty"] == "certain":
            return False
        if self._arguments["implicit_only"] and (cause.explicit or cause.kind == "explicit"):
            return False
        if self._arguments["kinds"] is not None and cause.kind not in self._arguments["kinds"]:
            return False
        if self._ignored(sync):
            return False
        self._ledger.add(sync, self._steps)
        return True

    def take_allowed(self, reason: str) -> None:
        """Count a sync that `allow_sync` let pass."""
        self._observed = True
        self._ledger.add_allowed(reason)

    def act(self, sync: Sync) -> None:
        """Do what ``on_sync`` says."""
        on_sync = self._arguments["on_sync"]
        if on_sync == "record":
            return
        event = sync.event()
        if on_sync == "warn":
            warnings.warn_explicit(_sentence(event), PerfkitWarning, event.file, event.line)
        elif on_sync == "raise":
            raise SyncError(
                f"{_sentence(event)} {event.advice} If it is meant, put it under perfkit.allow_sync(reason)."
            )
        else:
            on_sync(event)

    def _ignored(self, sync: Sync) -> bool:
        via = sync.site.via.rsplit(":", 1)[0] if sync.site.via else ""
        found = False
        for pattern in self._ignore_hits:
            if pattern.startswith("fn:"):
                name = sync.site.function
                hit = fnmatch(name, pattern[3:]) or fnmatch(name.rsplit(".", 1)[-1], pattern[3:])
            else:
                hit = any(_matches_file(file, pattern) for file in (sync.site.file, via) if file)
            if hit:
                self._ignore_hits[pattern] += 1
                found = True
        return found

    def _say_unused_patterns(self) -> None:
        unused = [pattern for pattern, hits in self._ignore_hits.items() if not hits]
        if unused and self.observed:
            warnings.warn(
                f"detect_syncs(ignore=) matched no sync: {', '.join(map(repr, unused))}; a pattern is a file "
                'as in "**/logging.py" or a function as in "fn:save_checkpoint"',
                PerfkitWarning,
                stacklevel=_stack_level(),
            )

    # What was found.

    @property
    def observed(self) -> bool:
        """Whether a tensor was ever on the (simulated) device; if not, nothing was checked."""
        return self._observed or (self._dry_run is not None and self._dry_run.device_uses > self._uses_before)

    @property
    def events(self) -> tuple[SyncEvent, ...]:
        """One event per line and operation, the longest or most frequent first."""
        return self._ledger.events(self._steps or None)

    @property
    def allowed(self) -> dict[str, int]:
        """How many syncs `perfkit.allow_sync` let pass, by its reason."""
        return self._ledger.allowed()

    @property
    def note(self) -> str | None:
        """What must be known to read the result: why nothing was checked, what was allowed."""
        if not self.observed:
            return self._why_unobserved()
        told = []
        if self.allowed:
            reasons = ", ".join(f"{count} for {reason!r}" for reason, count in self.allowed.items())
            told.append(f"allowed syncs, not counted: {reasons}")
        if self.mode == "dry" and self._arguments["threads"] == "all":
            told.append('threads="all" did not hold: a dry run sees only the thread it runs in')
        if self._mixed:
            lines = ", ".join(f"{place} ({op})" for place, op in list(self._mixed.items())[:_SHOWN])
            told.append(f"CUDA refuses tensors of the host beside those of the device: {lines}")
        if self._unjudged:
            errors = "; ".join(f"{op} ({error})" for op, error in self._unjudged.items())
            told.append(f"ops that perfkit failed to judge, please report: {errors}")
        return "\n".join(told) or None

    def _why_unobserved(self) -> str:
        if _env.disabled():
            return "nothing was checked: PERFKIT_DISABLE switches perfkit off"
        if self.mode == "cuda":
            return "nothing was checked: no tensor was ever on a CUDA device"
        if self._device_of_given:
            return (
                "nothing was checked: no operation in this thread used a tensor of device_of=; "
                "name the model that the step trains"
            )
        return (
            "nothing was checked: no tensor was ever on the simulated device; the script asks for no cuda, "
            "so name what would be there: detect_syncs(device_of=[model])"
        )

    def to_record(self) -> Syncs:
        """The result as it stands in a run folder."""
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

    def assert_max(self, most: int = 0) -> None:
        """Fail when more than ``most`` syncs were counted.

        Raises:
            UsageError: ``most`` is negative.
            SyncBudgetExceeded: there were more, or nothing was checked.
        """
        _check_budget("most", most)
        if not self.observed:
            raise SyncBudgetExceeded(self._why_unobserved())
        events = self.events
        count = sum(event.count for event in events)
        if count > most:
            lines = [f"  {_sentence(event)} {event.advice}" for event in events[:_SHOWN]]
            if len(events) > _SHOWN:
                lines.append(f"  and {len(events) - _SHOWN} more lines")
            raise SyncBudgetExceeded("\n".join([f"at most {most} syncs must happen, there were {count}:", *lines]))

    def _check_budgets(self) -> None:
        if self._arguments["max_syncs"] is not None:
            self.assert_max(self._arguments["max_syncs"])
        most_ms = self._arguments["max_blocked_ms"]
        if most_ms is None:
            return
        if not self.observed:
            raise SyncBudgetExceeded(self._why_unobserved())
        if self.mode == "dry":
            warnings.warn(
                f"max_blocked_ms={most_ms} was not checked: in a dry run a sync has no price",
                PerfkitWarning,
                stacklevel=_stack_level(),
            )
            return
        priced = [event for event in self.events if event.blocked_ns is not None]
        blocked_ms = sum(event.blocked_ns or 0 for event in priced) / 1e6
        if blocked_ms > most_ms:
            lines = [f"  {(event.blocked_ns or 0) / 1e6:.2f} ms: {_sentence(event)}" for event in priced[:_SHOWN]]
            raise SyncBudgetExceeded(
                "\n".join([f"the host must be blocked for at most {most_ms} ms, it was {blocked_ms:.2f} ms:", *lines])
            )

    def table(self) -> Table:
        """The events as a rich table: ``rich.print(syncs.table())``."""
        from rich.table import Table
        from rich.text import Text

        # Text: the brackets in "device_of=[model]" are no markup.
        caption = Text(self.note) if self.note else None
        table = Table(title=self._headline(), caption=caption, title_justify="left", caption_justify="left")
        for name in self._columns():
            number = name in ("times", "blocked")
            table.add_column(name, justify="right" if number else "left", no_wrap=number, overflow="fold")
        for row in self._rows():
            table.add_row(*map(Text, row))
        return table

    def _columns(self) -> list[str]:
        # Only on CUDA has a sync a price.
        return ["line", "sync", "times", *(["blocked"] if self.mode == "cuda" else []), "what to change"]

    def _rows(self) -> list[list[str]]:
        rows = []
        for event in self.events:
            cells = [_place(event), _what(event), _times(event)]
            if self.mode == "cuda":
                cells.append("-" if event.blocked_ns is None else f"{event.blocked_ns / 1e6:.2f} ms")
            rows.append([*cells, event.advice])
        return rows

    def _repr_html_(self) -> str:
        """For notebooks: how many, the table and the notes; no script, all escaped."""
        table = html_table(self._columns(), self._rows()) if self.events else ""
        notes = [f"<p><i>Note: {escape(line)}</i></p>" for line in (self.note or "").splitlines()]
        return "".join([f"<p><b>{escape(self._headline())}</b></p>", table, *notes])

    def _headline(self) -> str:
        if not self.observed:
            return "not checked"
        events = self.events
        count = sum(event.count for event in events)
        where = "dry run" if self.mode == "dry" else "CUDA"
        over = f" in {self._steps} step{'s' * (self._steps != 1)}" if self._steps else ""
        lines = len({(event.file, event.line) for event in events})
        if not count:
            return f"no syncs{over} ({where})"
        return f"{count} sync{'s' * (count != 1)} on {lines} line{'s' * (lines != 1)}{over} ({where})"

    def __repr__(self) -> str:
        rows = [f"  {_place(event)}  {_what(event)}  {_times(event)}" for event in self.events]
        notes = [f"  {line}" for line in (self.note or "").splitlines()]
        return "\n".join([f"<detect_syncs: {self._headline()}>", *rows, *notes])


def _stack_level() -> int:
    """The stack level, for a warning from the function that calls this, of the first frame outside perfkit."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(here):
        frame = frame.f_back
        level += 1
    return level


def _matches_file(file: str, pattern: str) -> bool:
    file = file.replace(os.sep, "/")
    # "logging.py" means the file of that name anywhere, as "**/logging.py" does.
    return fnmatch(file, pattern) or fnmatch(file, f"*/{pattern.removeprefix('**/')}")


def _place(event: SyncEvent) -> str:
    try:
        short = os.path.relpath(event.file) if os.path.isabs(event.file) else event.file
    except (OSError, ValueError):  # the working directory is gone, or on another drive
        short = event.file
    return f"{event.file if short.startswith(os.pardir) else short}:{event.line}"


def _what(event: SyncEvent) -> str:
    may = f" (may: {event.reason})" if event.certainty == "may" else ""
    whose = f" by {event.owner}, {event.via}" if event.owner != "user" and event.via else ""
    return f"{event.op}{may}{whose}"


def _times(event: SyncEvent) -> str:
    if event.per_step is None:
        return f"{event.count}x"
    # One sync in a hundred steps must not read like one in every step.
    if event.per_step < 1:
        return f"1 in {1 / event.per_step:.3g} steps"
    return f"{event.per_step:.3g} per step"


def _sentence(event: SyncEvent) -> str:
    times = f", {event.count}x" if event.count > 1 else ""
    return f"{_place(event)}: the host waits for the device: {_what(event)}{times}."


def _check_choice(name: str, value: object, choices: tuple[str, ...], also: str = "") -> None:
    if value not in choices:
        listed = ", ".join(map(repr, choices)) + (f" or {also}" if also else "")
        raise UsageError(f"detect_syncs({name}=) must be one of {listed}, got {value!r}")


def _check_budget(name: str, value: float | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise UsageError(f"{name} must be a number of at least 0, got {value!r}")


def _choose_mode(mode: Mode) -> Literal["cuda", "dry"]:
    if mode == "dry":
        return "dry"
    available = _env.cuda_in_use() and not _in_simulation()
    if mode == "cuda" and not available:
        raise UsageError(
            'detect_syncs(mode="cuda") needs a CUDA device and torch sees none: '
            'use mode="dry", which finds the syncs on the CPU'
        )
    return "cuda" if available else "dry"


def _in_simulation() -> bool:
    from perfkit.syncs.dry_state import current

    run = current()
    return run is not None and run.simulate


def _check_together(mode: Mode, simulate: bool | None, named: bool, max_blocked_ms: float | None, threads: str) -> None:
    if mode == "cuda" and (named or simulate is not None):
        raise UsageError('device_of= and simulate= belong to the dry run, not to mode="cuda": leave them out')
    if mode == "dry" and max_blocked_ms is not None:
        raise UsageError('max_blocked_ms= cannot be checked in mode="dry", where a sync has no price: use max_syncs=')
    if mode == "dry" and threads == "all":
        raise UsageError(
            'threads="all" cannot hold in mode="dry", which sees the thread it runs in: leave threads= out'
        )
    if simulate and named:
        raise UsageError(
            "simulate=True is for a script that asks for cuda, device_of= for one that runs on the CPU: give one"
        )


def _check_on_cpu(tensors: list[Any]) -> None:
    import torch

    with torch._C.DisableTorchFunction():  # an outer dry run would answer for the simulated device
        elsewhere = next((tensor.device for tensor in tensors if tensor.device.type != "cpu"), None)
    if elsewhere is not None:
        raise UsageError(
            f"device_of= takes tensors of a script that runs on the CPU, got one on {elsewhere}: "
            'use mode="cuda" where the program uses the GPU'
        )


def _tensors_of(things: Any) -> list[Any]:
    """All tensors of modules, optimizers, tensors, and collections of these."""
    import torch

    if isinstance(things, torch.Tensor):
        grad = things.grad if things.is_leaf else None
        return [things] if grad is None else [things, grad]
    if isinstance(things, torch.nn.Module):
        return [t for tensor in (*things.parameters(), *things.buffers()) for t in _tensors_of(tensor)]
    if isinstance(things, torch.optim.Optimizer):
        return _tensors_of_optimizer(things)
    if isinstance(things, dict):
        return [tensor for thing in things.values() for tensor in _tensors_of(thing)]
    if isinstance(things, Iterable) and not isinstance(things, (str, bytes)):
        return [tensor for thing in things for tensor in _tensors_of(thing)]
    raise UsageError(
        f"device_of= takes modules, optimizers, tensors or collections of them, got {type(things).__qualname__}"
    )


def _tensors_of_optimizer(optimizer: Any) -> list[Any]:
    import torch

    found = [t for group in optimizer.param_groups for p in group["params"] for t in _tensors_of(p)]
    for parameter, state in optimizer.state.items():
        group: dict[str, Any] = next(
            (g for g in optimizer.param_groups if any(p is parameter for p in g["params"])), {}
        )
        on_device_steps = group.get("fused") or group.get("capturable")
        for name, value in state.items():
            # Step counters stay on the host unless the optimizer is fused or capturable.
            if isinstance(value, torch.Tensor) and (name != "step" or on_device_steps):
                found.append(value)
    return found
