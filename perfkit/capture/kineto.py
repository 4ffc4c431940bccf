"""The Kineto recorder: one window = one ``torch.profiler.profile`` = one trace.

torch's profiler is made when its window opens and gone when it closes, because its ``step()`` costs
while it waits, and because one object serves only the schedule it began with. It numbers its steps like
the run, so that ``ProfilerStep#N`` in the trace is row N of steps.jsonl.
"""

from __future__ import annotations

import gzip
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perfkit import _env
from perfkit.capture.schedules import Action
from perfkit.capture.windows import Recorder

#: A window's trace above this, before compression, is not kept: three steps of a large model are some 100 MB, and
#: what is a hundred times that fills a disk and opens in no viewer (Perfetto's limit is about 2 GB).
MAX_BYTES = 2 * 2**30


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


class KinetoRecorder(Recorder):
    """Records windows with ``torch.profiler``; hands each to the handlers and writes its trace beside training."""

    name = "kineto"

    def __init__(
        self,
        action: Callable[[int], Action],
        *,
        file_of: Callable[[int], Path],
        handlers: Sequence[Callable[[Any], Any]],
        trouble: Callable[[str, BaseException | str], None],
        activities: Iterable[Any] | None,
        flags: Mapping[str, Any],
    ) -> None:
        self._action = action
        self._file_of = file_of
        self._handlers = handlers
        self._trouble = trouble
        self._activities = activities
        self._flags = flags
        self._profiler: Any = None
        self._index = 0
        self._problems: dict[int, str] = {}
        self._writers: dict[int, threading.Thread] = {}

    def open(self, index: int, step: int) -> str | None:
        """Start torch's profiler, which numbers its steps like the run: ``ProfilerStep#N`` is row N."""
        if profiler_running():
            # Two torch profilers cannot run at once, and the first was there first.
            return "another torch profiler is running; perfkit's windows are skipped"
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
            wanted = self._action(number)
            if wanted == "save":
                saved_at = number
            return names[wanted]

        profiler = torch.profiler.profile(
            activities=self._activities, schedule=schedule, on_trace_ready=self._ready, **self._flags
        )
        begun = True
        if _env.world_size() == 1:
            # With several ranks torch writes this itself; tools ask for it with one rank too.
            profiler.preset_metadata_json("distributedInfo", f'{{"rank": {_env.rank()}, "world_size": 1}}')
        profiler.step_num = step
        self._index = index
        self._profiler = profiler
        with _quiet():
            profiler.start()
        return None

    def advance(self) -> None:
        """Go on to the next step."""
        self._profiler.step()

    def end(self, index: int, *, early: bool) -> None:
        """Stop recording; what was recorded is handed on, also early."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        try:
            if not early:
                profiler.step()  # from the step that saves to none: this is where torch stops and calls _ready
        finally:
            # Ends the step marker that step() has just begun, or the recording that is cut short.
            profiler.stop()

    def _ready(self, profiler: Any) -> None:
        index, path = self._index, self._file_of(self._index)
        plain = path.with_name(f".part-{os.getpid()}-{path.name}").with_suffix("")
        try:
            profiler.export_chrome_trace(str(plain))
            if not plain.is_file() or not plain.stat().st_size:
                # torch reports a failed export on stderr only.
                raise OSError(f"torch wrote no trace to {path.parent}")
            if plain.stat().st_size > MAX_BYTES:
                raise OSError(
                    f"the trace has {plain.stat().st_size >> 20} MB, more than {MAX_BYTES >> 20}: record fewer active "
                    "steps, or leave out record_shapes, with_stack and profile_memory"
                )
        except Exception as error:  # noqa: BLE001 - a full disk must not end training
            plain.unlink(missing_ok=True)
            self._fail(index, path, error)
        else:
            # torch exports a trace once; a handler that exports again (torch's own do) is given a copy.
            profiler.export_chrome_trace = lambda target, *ignored, **torchs: _copy(plain, str(target))
        for handler in self._handlers:
            try:
                handler(profiler)
            except Exception as error:  # noqa: BLE001 - a handler's failure must not end training
                self._trouble(f"the trace handler {getattr(handler, '__name__', handler)!s}", error)
        if plain.is_file():
            # Compressing takes longer than all the rest, needs no lock, and so goes on beside training.
            writer = threading.Thread(target=self._compress, args=(index, plain, path), name="perfkit writer")
            self._writers[index] = writer
            writer.start()

    def _compress(self, index: int, plain: Path, path: Path) -> None:
        beside = path.with_name(f".part-{os.getpid()}-{path.name}")
        try:
            _copy(plain, str(beside))
            os.replace(beside, path)
        except OSError as error:
            self._fail(index, path, error)
        finally:
            plain.unlink(missing_ok=True)
            beside.unlink(missing_ok=True)

    def _fail(self, index: int, path: Path, error: Exception) -> None:
        self._problems[index] = f"{type(error).__name__}: {error}"
        self._trouble(f"writing {path.name}", error)

    def wait(self) -> None:
        """Until every trace is written."""
        for writer in list(self._writers.values()):
            writer.join()

    def problem(self, index: int) -> str | None:
        """Why the window has no trace."""
        return self._problems.get(index)

    def file(self, index: int) -> str | None:
        """The trace's name, once it is whole."""
        path = self._file_of(index)
        return path.name if path.is_file() else None


def _copy(plain: Path, target: str) -> None:
    """Copy a trace; as gzip where the name says so."""
    with plain.open("rb") as source:
        if target.endswith(".gz"):
            # Level 1: 12x instead of 17x smaller, at a quarter of the time.
            with gzip.open(target, "wb", compresslevel=1) as packed:
                shutil.copyfileobj(source, packed, 2**20)
        else:
            with open(target, "wb") as copy:
                shutil.copyfileobj(source, copy, 2**20)
