"""Run a program on the simulated CUDA runtime: `python tests/fake_gpu/run.py [--venv VENV] PROGRAM ...`.

PROGRAM is a command, or a file of Python, which VENV's Python runs; so it does options (-m, -c). Processes that the
program starts have the runtime too. README.md has the settings.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENV = HERE.parent.parent / ".venv-fake-gpu"


def environment(venv: Path = VENV) -> dict[str, str]:
    """The variables under which a program finds the simulated runtime."""
    libraries = venv.resolve() / "fake_gpu"
    nvtx = libraries / "libfakegpu_nvtx.so"
    # In the order in which they need each other. torch's libraries have RPATH, which LD_LIBRARY_PATH does not beat.
    preloaded = [libraries / "libcudart.so.13", *sorted(libraries.glob("lib*.so.*")), libraries / "libfakegpu_torch.so"]
    return {
        **os.environ,
        "FAKE_GPU": "1",
        "LD_PRELOAD": " ".join(str(one) for one in dict.fromkeys(preloaded)),
        "NVTX_INJECTION64_PATH": str(nvtx),
        # Triton asks the linker's cache for the driver's folder where this is not set.
        "TRITON_LIBCUDA_PATH": str(libraries),
    }


def main() -> None:
    """Become the program."""
    words, venv = sys.argv[1:], VENV
    if words[:1] == ["--venv"]:
        venv, words = Path(words[1]), words[2:]
    if not words or not (venv / "fake_gpu").is_dir():
        print(__doc__ if not words else f"{venv} has no simulated runtime: make fake-gpu builds it", file=sys.stderr)
        raise SystemExit(2)
    python = str(venv / "bin" / "python")
    command = [python, *words] if words[0].endswith(".py") or words[0].startswith("-") else words
    os.execvpe(command[0], command, environment(venv))


if __name__ == "__main__":
    main()
