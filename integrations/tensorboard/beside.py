"""A process of low priority that does what would slow the one that trains, or could bring TensorBoard down."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import perfkit


class Failed(Exception):
    """The process did not answer; the text says why, in a sentence for a person."""


def answer_of(module: str, *arguments: str, timeout_s: float, largest: int) -> bytes:
    """What ``python -m module arguments`` prints.

    Raises:
        Failed: it ended with an error (its last line says which), too late, or with more than ``largest`` bytes.
    """
    nice = shutil.which("nice")
    command = [sys.executable, "-m", module, *arguments]
    # A file, not a pipe: nobody holds an answer in memory before its size is known.
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as said:
        try:
            done = subprocess.run(
                [nice, "-n", "10", *command] if nice is not None else command,
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=said,
                timeout=timeout_s,
                # "-m" looks into the current folder first, which may be anybody's.
                cwd=Path(perfkit.__file__).resolve().parents[1],
                env={**os.environ, "PERFKIT_DISABLE": "1", "OMP_NUM_THREADS": "1"},
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"it took longer than {timeout_s:.0f} s") from error
        except OSError as error:
            raise Failed(f"no process could be started: {error.strerror}") from error
        if done.returncode:
            raise Failed(_last_line(said) or f"the process that read it ended with code {done.returncode}")
        if answer.seek(0, os.SEEK_END) > largest:
            raise Failed(f"what is there to show is larger than {largest >> 20} MiB")
        answer.seek(0)
        return answer.read()


def _last_line(said: IO[bytes]) -> str:
    size = said.seek(0, os.SEEK_END)
    said.seek(max(0, size - 4_096))
    text = said.read().decode(errors="replace").strip()
    return text.rsplit("\n", 1)[-1][:1_000]
