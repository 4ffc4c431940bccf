"""torch's profiler: started, stopped without fail, exported; and the private parts of it that perfkit uses."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from perfkit import _env
from perfkit._patches import Patches
from perfkit.record.live_objects import instances_of, subclasses_of
from perfkit.record.windows.schedules import Action, to_torch

#: The process's own C library; on_exit is GNU's.
_C: Any = ctypes.CDLL(None) if sys.platform == "linux" else None

# Two of its names are private to torch.
_autograd: Any = torch.autograd

#: Whether a profiler that was started here hooks every Python call.
_with_stack = False

#: Whether Kineto has been started here before.
_has_started = False

#: In place while one that was started here is on.
_giving_way = Patches()


#: Functions of C that a forked child calls at its end, the last one first; none until a profiler was started.
_at_exit: tuple[Any, ...] = ()


def _after_fork_in_child() -> None:
    # A loader's worker that starts meanwhile would record every call of its life, and keep it: 23 bytes per call.
    global _with_stack
    if _with_stack:
        _with_stack = False
        sys.setprofile(None)
    for function in _at_exit:
        _C.on_exit(function, None)


def _end_children_without_kineto() -> None:
    """Let processes that are forked from now on end before Kineto's destructors run.

    One of them waits for ever for a thread of Kineto's, which a forked process does not have. Python has done all that
    is to be done at the end by then, and the streams of C are written here.
    """
    global _at_exit
    if not _at_exit and all(hasattr(_C, name) for name in ("on_exit", "_exit", "fcloseall")):
        # on_exit passes the status on, which _exit takes.
        _at_exit = (_C._exit, _C.fcloseall)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class ProgramProfilers:
    """The torch profilers that exist: found among all objects once, which takes 50 ms, then noted as they are made."""

    def __init__(self) -> None:
        self._patches = Patches()
        #: Not a set: a class of the program's may have no hash.
        self._known: list[weakref.ref[Any]] | None = None

    def watch(self, *, none_yet: bool = False) -> None:
        """Note from now on which are made. ``none_yet``: none was made before, so that none is searched for."""
        if not self._patches:
            self._patches.wrap(torch.profiler.profile, "__init__", self._noting)
            self._known = [] if none_yet else None

    def unwatch(self) -> None:
        """Undo `watch`."""
        self._patches.undo()
        self._known = None

    def __iter__(self) -> Iterator[Any]:
        if not self._patches:
            return iter(instances_of(subclasses_of(torch.profiler.profile)))
        if self._known is None:
            self._known = [weakref.ref(one) for one in instances_of(subclasses_of(torch.profiler.profile))]
        self._known = [one for one in self._known if one() is not None]
        return (found for one in list(self._known) if (found := one()) is not None)

    def _noting(self, construct: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(construct)
        def construct_noted(profiler: Any, *args: Any, **kwargs: Any) -> None:
            construct(profiler, *args, **kwargs)
            if self._known is not None:
                self._known.append(weakref.ref(profiler))

        return construct_noted


#: Those of this process.
PROGRAM_PROFILERS = ProgramProfilers()


def running() -> bool:
    """Whether any torch profiler is on in this process."""
    return bool(_autograd._profiler_enabled())


def taken() -> bool:
    """Whether a torch profiler is on, or is one that the program has prepared and that begins with its next steps.

    Torch has one at a time; where a second one begins, it crashes.
    """
    if running():
        return True
    warming = torch.profiler.ProfilerAction.WARMUP
    return any(getattr(one, "current_action", None) is warming for one in PROGRAM_PROFILERS)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Kineto's start and stop notices out of stderr; its errors are still printed (level 6).

    Kineto reads the variable once, when it first starts; the environment is restored afterwards.
    """
    global _has_started
    if _has_started or "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    _has_started = True
    os.environ["KINETO_LOG_LEVEL"] = "6"
    try:
        yield
    finally:
        os.environ.pop("KINETO_LOG_LEVEL", None)


@contextmanager
def _no_warning_of_cycles() -> Iterator[None]:
    """Torch 2.8 to 2.10 warn at the first start that one cycle's events are kept; a window is one cycle."""
    patches = Patches()
    patches.wrap(torch.profiler.profiler, "_warn_once", lambda warn: lambda *args, **kwargs: None)
    try:
        yield
    finally:
        patches.undo()


@contextmanager
def _starting_no_device() -> Iterator[None]:
    """For what ends a recording: torch's profiler waits for the device there, also where the program uses none.

    That would make a context of some 300 MB on the device, and forked children could not use it.
    """
    patches = Patches()
    for module in (torch.cuda, torch.xpu):
        if not module.is_initialized():
            patches.wrap(module, "synchronize", functools.partial(_if_initialized, module))
    try:
        yield
    finally:
        patches.undo()


def _if_initialized(module: Any, synchronize: Callable[..., None]) -> Callable[..., None]:
    def wait(*args: Any, **kwargs: Any) -> None:
        if module.is_initialized():
            synchronize(*args, **kwargs)

    return wait


def finish(profiler: Any) -> None:
    """Begin the next step, with which the recording ends."""
    with _starting_no_device():
        profiler.step()


def start(
    step: int,
    action: Callable[[int], Action],
    ready: Callable[[Any], None],
    activities: Iterable[Any] | None,
    flags: Mapping[str, Any],
    give_way: Callable[[], None],
) -> Any:
    """Start torch's profiler with step ``step``; it numbers its steps like the run: ``ProfilerStep#N`` is row N.

    ``ready`` is called with it at the first step that saves, after which it records nothing more. ``give_way`` is
    called when the program starts a profiler of its own in this thread, and must stop this one: torch has one at a
    time, and the second records nothing. If it cannot be started, it is off again when the error is raised.

    Kineto counts the devices, which starts CUDA's driver (no context): children that are forked later cannot use CUDA,
    as after torch's first backward.
    """
    global _with_stack
    constructed = False
    saved_at: int | None = None

    def schedule(number: int) -> Any:
        nonlocal saved_at
        if not constructed:
            number = step  # the constructor always passes 0
        if saved_at is not None and number > saved_at:
            return to_torch("none")
        wanted = action(number)
        if wanted == "save":
            saved_at = number
        return to_torch(wanted)

    profiler = torch.profiler.profile(activities=activities, schedule=schedule, on_trace_ready=ready, **flags)
    constructed = True
    if _env.world_size() == 1:
        # With several ranks torch writes this itself; tools expect it with one rank too.
        profiler.preset_metadata_json("distributedInfo", f'{{"rank": {_env.rank()}, "world_size": 1}}')
    profiler.step_num = step
    _with_stack = bool(flags.get("with_stack"))
    _end_children_without_kineto()
    try:
        with _quiet(), _no_warning_of_cycles():
            profiler.start()
    except BaseException:
        with suppress(Exception):
            stop(profiler)
        raise
    _giving_way.wrap(
        _autograd.profiler.profile, "__init__", functools.partial(_others, threading.get_ident(), give_way)
    )
    return profiler


def _others(thread: int, give_way: Callable[[], None], construct: Callable[..., None]) -> Callable[..., None]:
    """For the class that is made for each recording of any torch profiler, right before it begins."""

    @functools.wraps(construct)
    def construct_other(profiler: Any, enabled: bool = True, *args: Any, **kwargs: Any) -> None:
        if enabled and _giving_way and threading.get_ident() == thread:
            _giving_way.undo()
            give_way()
        construct(profiler, enabled, *args, **kwargs)

    return construct_other


def stop(profiler: Any) -> None:
    """End the step's mark and the recording; nothing is on afterwards, even if torch's own stop fails."""
    global _with_stack
    _giving_way.undo()
    try:
        with _starting_no_device():
            profiler.stop()
    finally:
        _with_stack = False
        # One that is stopped in its warm-up stays in it, as long as an exception's traceback holds it: see `taken`.
        profiler.current_action = torch.profiler.ProfilerAction.NONE
        if running():
            # It is this one: no other can have been started meanwhile.
            with suppress(Exception):
                _autograd._disable_profiler()


def export(profiler: Any, path: Path, max_bytes: int, advice: str) -> Path:
    """Have torch write its trace, uncompressed, next to ``path``; returns the file.

    Raises:
        OSError: torch wrote nothing, or more than ``max_bytes``, which is not kept; ``advice`` is what to do then.
    """
    plain = path.with_name(f".part-{os.getpid()}-{path.name}").with_suffix("")
    try:
        profiler.export_chrome_trace(str(plain))
        if not plain.is_file() or not plain.stat().st_size:
            # torch reports a failed export on stderr only.
            raise OSError(f"torch wrote no trace to {path.parent}")
        size = plain.stat().st_size
        if size > max_bytes:
            raise OSError(f"the trace has {size >> 20} MB, more than {max_bytes >> 20}: {advice}")
    except BaseException:
        # Kineto writes under a second name, which stays where the disk is full.
        for unfinished in (plain, plain.with_name(f"{plain.name}.tmp")):
            unfinished.unlink(missing_ok=True)
        raise
    return plain


def expects_kernels(activities: Iterable[Any] | None) -> bool:
    """Whether a trace recorded now should contain device work: CUDA is in use, and its recording is not left out."""
    if not _env.cuda_in_use():
        return False
    cuda = torch.profiler.ProfilerActivity.CUDA
    # An activity may be a dict {ProfilerActivity.CUDA: [...]} (torch 2.13).
    return activities is None or any(one == cuda or (isinstance(one, dict) and cuda in one) for one in activities)


def frame_namer() -> Callable[[str], str]:
    """Path -> what torch's Python frames call that file: without its folder of ``sys.path``."""
    try:
        # Private; perfkit never imports torch before the program does.
        from torch.profiler import python_tracer

        prefixes = tuple(python_tracer._prefix_regex())
    except (ImportError, AttributeError):
        # If torch has moved it, frames are only known by whole paths.
        prefixes = ()
    return lambda file: next((file[len(prefix) :] for prefix in prefixes if file.startswith(prefix)), file)
