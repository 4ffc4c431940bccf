"""Programs whose system calls fail: compiles inject.c, and runs programs under it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
#: What each call fails with: an error that it has on a disk that is full, read-only, slow or broken.
ERRORS = {
    "open": errno.EMFILE,
    "write": errno.ENOSPC,
    "read": errno.EIO,
    "close": errno.EIO,
    "fsync": errno.EIO,
    "mmap": errno.ENOMEM,
    "rename": errno.EIO,
    "link": errno.EPERM,
    "unlink": errno.EACCES,
    "mkdir": errno.EROFS,
    "opendir": errno.EACCES,
    "stat": errno.EACCES,
}


def compile_injector(folder: Path) -> Path:
    """Compile the library for LD_PRELOAD into a folder."""
    library = folder / "libinject.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-Wno-format-truncation", "-o", library, HERE / "inject.c", "-ldl"],
        check=True,
    )
    return library


def environment(library: Path, *faults: str, **more: str) -> dict[str, str]:
    """The environment of a process whose system calls meet ``faults``, as inject.c takes them."""
    given = {"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "200"}
    return {**os.environ, **given, "FAULTS": "".join(f"{fault};" for fault in faults), **more}


def fault(call: str, pattern: str, *, nth: int = 1, error: int | None = None, sticky: bool = False) -> str:
    """A fault as inject.c takes it."""
    return f"{call} {pattern} {nth} {ERRORS[call] if error is None else error} {int(sticky)}"


def run_program(
    library: Path, program: Path, folder: Path, *faults: str, perfkit: bool = True, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a program in ``folder``, under ``perfkit run`` or not, while the faults happen."""
    command = [sys.executable, *(("-m", "perfkit", "run", *options) if perfkit else ()), str(program)]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(library, *faults),
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
