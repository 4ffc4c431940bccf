"""Compresses a trace that torch has written, checks what it contains, and does both while training continues.

torch does not report a trace without kernels or steps, so every trace is searched for a few words in its text while it
is compressed. It is not decoded: the thread shares the interpreter with training, and a search of a block takes less
than a millisecond of it.
"""

from __future__ import annotations

import gzip
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from perfkit.run.atomic import replacing

#: Text that is read, searched and compressed at once.
_BLOCK = 2**20
#: Longer than any of the words: this much of a block is searched again with the next one.
_OVERLAP = 64

_STEP = re.compile(rb'"ProfilerStep#(\d+)"')
_KERNELS = (b'"cat": "kernel"', b'"cat": "gpu_memcpy"', b'"cat": "gpu_memset"')
_RANK = b'"distributedInfo"'


class ExpectedTrace(NamedTuple):
    """What a trace must contain to be complete."""

    #: Numbers of its steps; None where the run ended inside.
    steps: range | None
    #: Whether the device worked meanwhile.
    kernels: bool


class TraceContents:
    """What was found in a trace so far."""

    def __init__(self) -> None:
        self.steps: set[int] = set()
        self.kernels = self.rank = self.ended = False
        self._last = b""

    def add(self, block: bytes) -> None:
        """Search the next block of text."""
        text = self._last + block
        # Plain words first: searching for them is three times as fast as for an expression.
        if b'"ProfilerStep#' in text:
            self.steps.update(int(digits) for digits in _STEP.findall(text))
        self.kernels = self.kernels or any(word in text for word in _KERNELS)
        self.rank = self.rank or _RANK in text
        self._last = text[-_OVERLAP:]
        self.ended = self._last.rstrip().endswith(b"}")

    def problem(self, expected: ExpectedTrace) -> str | None:
        """What is missing, None where nothing is."""
        found = []
        if not self.ended:
            found.append("the trace is cut off: was the disk full?")
        if expected.steps is not None and not self.steps >= set(expected.steps):
            steps = ", ".join(map(str, sorted(self.steps))) or "none"
            found.append(f"the trace should contain steps {expected.steps[0]} to {expected.steps[-1]}, it has: {steps}")
        if expected.kernels and not self.kernels:
            found.append(
                "the trace contains no device work although CUDA is in use: another tool (nsys, DCGM, a second "
                "profiler) may use CUPTI (with ROCm: roctracer), or the process may lack the permission for it"
            )
        if not self.rank:
            found.append("the trace does not contain its rank, so tools take it for rank 0")
        return "; ".join(found) or None


def compress_trace(plain: Path, path: Path) -> TraceContents:
    """Write an exported trace to ``path`` (gzip), whole or not at all; removes ``plain``.

    Raises:
        OSError: it could not be written, or reads back differently.
    """
    contents = TraceContents()
    try:
        with replacing(path) as part:
            # Level 1: 12x instead of 17x smaller, in a quarter of the time.
            with plain.open("rb") as source, gzip.open(part, "wb", compresslevel=1) as target:
                while block := source.read(_BLOCK):
                    contents.add(block)
                    target.write(block)
            # Reading it compares its checksum as well.
            with gzip.open(part) as compressed:
                size = sum(len(block) for block in iter(lambda: compressed.read(_BLOCK), b""))
            if size != plain.stat().st_size:
                raise OSError(f"{path.name} reads back with {size} bytes of {plain.stat().st_size}")
    except EOFError as error:
        raise OSError(f"{path.name} reads back damaged: {error}") from error
    finally:
        plain.unlink(missing_ok=True)
    return contents


def copy_trace(plain: Path, target: str) -> None:
    """Copy an exported trace; gzipped if the target ends in .gz."""
    compressed = target.endswith(".gz")
    with plain.open("rb") as source, gzip.open(target, "wb", 1) if compressed else open(target, "wb") as copy:
        shutil.copyfileobj(source, copy, _BLOCK)


class WriterThreads:
    """Threads that write what a window leaves, while training continues."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[[], None]) -> None:
        """Do it in a thread; at once if no thread can start, as when the program exits."""
        thread = threading.Thread(target=work, name="perfkit writer")
        try:
            thread.start()
        except RuntimeError:
            work()
            return
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]

    def join(self) -> None:
        """Wait until everything is written."""
        for thread in list(self._threads):
            thread.join()
