"""Run the tests with another torch: `python tests/other_torch.py VERSION [argument of pytest ...]`.

The environment .venv-torch-VERSION is made by the Python that runs this: that torch (a build for CUDA, 3 to 6 GB), the
other packages as constraints.txt pins them as far as they go with it, and this checkout. It is removed when the tests
have passed, and kept when they have not.

Exits with 2, and one sentence, where this machine cannot have it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: The largest build (2.15) takes 6 GB with its download, the other packages 1 GB.
DISK_BYTES = 8 * 10**9

#: The constraints are pins for this Python and later ones: not all of these versions have wheels for older ones.
PINNED_FROM = (3, 11)

#: torch older than this -> what is installed instead of the pinned packages: 2.6 asks for one release of sympy,
#: transformers 5 for torch 2.6.
OLDER = {
    (2, 7): {"sympy": ""},
    (2, 6): {"transformers": "transformers<5", "huggingface_hub": "", "tokenizers": "", "accelerate": ""},
}


class Unavailable(Exception):
    """Why this machine cannot have that torch."""


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def constraints(version: str, python: tuple[int, ...] = sys.version_info[:2]) -> str:
    """The pins of constraints.txt that can be kept with this torch in this Python, and what stands for the others."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    replaced = {"torch": f"torch==={version}"}
    for before, others in OLDER.items():
        if number(version) < before:
            replaced.update(others)
    if python < PINNED_FROM:
        lines = [line.split("==")[0] for line in lines]
    pins = [replaced.get(line.split("==")[0], line if "==" in line else "") for line in lines]
    return "".join(f"{pin}\n" for pin in pins if pin)


def make_environment(venv: Path, version: str) -> None:
    """Install torch, then everything else."""
    if shutil.disk_usage(ROOT).free < DISK_BYTES:
        raise Unavailable(f"less than 8 GB of disk are free for torch {version}")
    subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
    (venv / "constraints.txt").write_text(constraints(version))
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "-q", "-c", str(venv / "constraints.txt")]
    subprocess.run([*pip, "pip>=25.1"], check=True)  # the first with --group
    if subprocess.run([*pip, f"torch==={version}"], check=False).returncode:
        here = ".".join(map(str, sys.version_info[:2]))
        raise Unavailable(
            f"torch {version} cannot be installed for Python {here}: `pip index versions torch` lists others"
        )
    subprocess.run(
        [*pip, f"torch==={version}", "--group", "dev", "-e", ".[torch,lightning,tensorboard]"], check=True, cwd=ROOT
    )
    (venv / ".ready").touch()


def main() -> int:
    """Make the environment where it is missing, and run the tests as `make test` does."""
    if len(sys.argv) < 2 or not re.fullmatch(r"\d+\.\d+\.\d+", sys.argv[1]):
        print("usage: make test-torch VERSION=2.6.0 [PYTHON=python3.10]", file=sys.stderr)
        return 2
    version = sys.argv[1]
    venv = ROOT / f".venv-torch-{version}"
    try:
        if not (venv / ".ready").exists():
            make_environment(venv, version)
    except Unavailable as error:
        shutil.rmtree(venv, ignore_errors=True)
        print(error)
        return 2
    path = {**os.environ, "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    tests = [str(venv / "bin" / "python"), "-m", "pytest", "-m", "not slow and not long and not verdict", *sys.argv[2:]]
    done = subprocess.run(tests, check=False, cwd=ROOT, env=path)
    if done.returncode == 0:
        shutil.rmtree(venv)
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
