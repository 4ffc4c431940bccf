"""The Kineto recorder: one window = one ``torch.profiler.profile`` = one trace.

torch's profiler is made when its window opens and gone when it closes, because its ``step()`` costs
while it waits, and because one object serves only the schedule it began with. It numbers its steps like
the run, so that ``ProfilerStep#N`` in the trace is row N of steps.jsonl.
"""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perfkit import _env
from perfkit.capture.schedules import Action


def profiler_running() -> bool:
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


class KinetoWindow:
    """Records the steps from ``first`` on until ``action`` says "save", then calls ``on_ready`` with the profiler."""

    def __init__(
        self,
        first: int,
        action: Callable[[int], Action],
        on_ready: Callable[[Any], None],
        *,
        activities: Iterable[Any] | None,
        flags: Mapping[str, Any],
    ) -> None:
        import torch
        from torch.profiler import ProfilerAction

        names = {
            "none": ProfilerAction.NONE,
            "warmup": ProfilerAction.WARMUP,
            "record": ProfilerAction.RECORD,
            "save": ProfilerAction.RECORD_AND_SAVE,
        }
        self._action = action
        self._saved_at: int | None = None
        begun = False

        def schedule(step: int) -> Any:
            # The constructor asks for step 0, whatever the run's number is.
            if not begun:
                return names[action(first)]
            if self._saved_at is not None and step > self._saved_at:
                return ProfilerAction.NONE
            wanted = action(step)
            if wanted == "save":
                self._saved_at = step
            return names[wanted]

        self._profiler = torch.profiler.profile(
            activities=activities, schedule=schedule, on_trace_ready=on_ready, **flags
        )
        begun = True
        if _env.world_size() == 1:
            # With several ranks torch writes this itself; tools ask for it with one rank too.
            self._profiler.preset_metadata_json("distributedInfo", f'{{"rank": {_env.rank()}, "world_size": 1}}')
        if action(first) == "save":
            self._saved_at = first
        self._profiler.step_num = first
        with _quiet():
            self._profiler.start()

    def step(self) -> bool:
        """Go on to the next step; whether the window is still open."""
        done = self._saved_at is not None and self._profiler.step_num >= self._saved_at
        self._profiler.step()
        if done:
            # It records nothing any more; stopping it ends the step marker it has just begun.
            self._profiler.stop()
        return not done

    def close(self) -> None:
        """Close the window early; what was recorded is still handed on."""
        self._profiler.stop()


def save_trace(profiler: Any, path: Path) -> None:
    """Write a finished profiler's trace as gzip, beside and then renamed.

    torch exports a trace once; a handler that exports again (torch's own do) is given a copy.
    """
    beside = path.with_name(f".part-{os.getpid()}-{path.name}")
    plain = beside.with_suffix("")
    try:
        profiler.export_chrome_trace(str(plain))
        if not plain.is_file() or not plain.stat().st_size:
            # torch reports a failed export on stderr only.
            raise OSError(f"torch wrote no trace to {path.parent}")
        with plain.open("rb") as source, gzip.open(beside, "wb", compresslevel=1) as target:
            # Level 1: 12x instead of 17x smaller, at a quarter of the time, while training waits.
            shutil.copyfileobj(source, target, 2**20)
        os.replace(beside, path)
    finally:
        plain.unlink(missing_ok=True)
        beside.unlink(missing_ok=True)

    def export_again(target: str, *ignored: Any, **torchs_options: Any) -> None:
        if str(target).endswith(".gz"):
            shutil.copyfile(path, target)
        else:
            with gzip.open(path, "rb") as source, open(target, "wb") as copy:
                shutil.copyfileobj(source, copy, 2**20)

    profiler.export_chrome_trace = export_again
