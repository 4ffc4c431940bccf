"""torch's profiler: started for some steps, stopped whatever happens, exported; and what is private in that."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from perfkit import _env
from perfkit.record.windows.schedules import Action

#: Whether a profiler that was started here notes every Python call.
_stacks = False


def _after_fork_in_child() -> None:
    # A loader's worker that starts meanwhile would note every call of its life, and keep it: 23 bytes a call.
    global _stacks
    if _stacks:
        _stacks = False
        sys.setprofile(None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def running() -> bool:
    """Whether anybody's torch profiler is on in this process."""
    from torch import autograd

    ask: Any = autograd
    return bool(ask._profiler_enabled())


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Kineto's start and stop notices off the training's stderr; its errors are still told (level 6).

    Kineto reads the variable once, when it first starts; the environment is as before afterwards.
    """
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = "6"
    try:
        yield
    finally:
        os.environ.pop("KINETO_LOG_LEVEL", None)


def start(
    step: int,
    action: Callable[[int], Action],
    ready: Callable[[Any], None],
    activities: Iterable[Any] | None,
    flags: Mapping[str, Any],
) -> Any:
    """Start torch's profiler with step ``step``; it numbers its steps like the run: ``ProfilerStep#N`` is row N.

    ``ready`` is called with it at the first step that saves, after which it records no more. Where it cannot be
    started, it is off again when the error is raised.
    """
    global _stacks
    import torch
    from torch.profiler import ProfilerAction

    names = {
        "none": ProfilerAction.NONE,
        "warmup": ProfilerAction.WARMUP,
        "record": ProfilerAction.RECORD,
        "save": ProfilerAction.RECORD_AND_SAVE,
    }
    begun = False
    saved_at: int | None = None

    def schedule(asked: int) -> Any:
        nonlocal saved_at
        # The constructor asks for step 0, whatever the run's number is.
        number = asked if begun else step
        if saved_at is not None and number > saved_at:
            return ProfilerAction.NONE
        wanted = action(number)
        if wanted == "save":
            saved_at = number
        return names[wanted]

    profiler = torch.profiler.profile(activities=activities, schedule=schedule, on_trace_ready=ready, **flags)
    begun = True
    if _env.world_size() == 1:
        # With several ranks torch writes this itself; tools ask for it with one rank too.
        profiler.preset_metadata_json("distributedInfo", f'{{"rank": {_env.rank()}, "world_size": 1}}')
    profiler.step_num = step
    _stacks = bool(flags.get("with_stack"))
    try:
        with _quiet():
            profiler.start()
    except BaseException:
        with suppress(Exception):
            stop(profiler)
        raise
    return profiler


def stop(profiler: Any) -> None:
    """End the step's mark and the recording; nothing is on afterwards, also where torch's own stop fails."""
    global _stacks
    try:
        profiler.stop()
    finally:
        _stacks = False
        if running():
            # Whatever runs now is this one's: another cannot have been started beside it.
            from torch import autograd

            private: Any = autograd
            with suppress(Exception):
                private._disable_profiler()


def export(profiler: Any, path: Path, most_bytes: int, advice: str) -> Path:
    """Have torch write its trace, unpacked, beside ``path``, where it will be packed; the file it wrote.

    Raises:
        OSError: torch wrote nothing, or more than ``most_bytes``, which is not kept; ``advice`` is the way out.
    """
    plain = path.with_name(f".part-{os.getpid()}-{path.name}").with_suffix("")
    try:
        profiler.export_chrome_trace(str(plain))
        if not plain.is_file() or not plain.stat().st_size:
            # torch reports a failed export on stderr only.
            raise OSError(f"torch wrote no trace to {path.parent}")
        size = plain.stat().st_size
        if size > most_bytes:
            raise OSError(f"the trace has {size >> 20} MB, more than {most_bytes >> 20}: {advice}")
    except BaseException:
        plain.unlink(missing_ok=True)
        raise
    return plain


def expects_kernels(activities: Iterable[Any] | None) -> bool:
    """Whether a trace recorded now should hold device work: CUDA is in use, and recording it was not left out."""
    if not _env.cuda_in_use():
        return False
    import torch

    asked: Any = torch.cuda
    if not asked.is_initialized():
        return False
    cuda = torch.profiler.ProfilerActivity.CUDA
    # An activity may be a dict {ProfilerActivity.CUDA: [...]} (torch 2.13).
    return activities is None or any(one == cuda or (isinstance(one, dict) and cuda in one) for one in activities)


def frame_namer() -> Callable[[str], str]:
    """Path -> what torch's Python frames call that file: without the folder of ``sys.path`` that it lies in."""
    try:
        from torch.profiler import python_tracer

        prefixes = tuple(python_tracer._prefix_regex())
    except (ImportError, AttributeError):
        # Where torch has moved it, frames are known by whole paths only.
        prefixes = ()
    return lambda file: next((file[len(prefix) :] for prefix in prefixes if file.startswith(prefix)), file)
