"""``python -m benchmarks``: run every benchmark and put the tables into benchmarks/README.md."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"
BEGIN, END = "<!-- tables -->\n", "<!-- /tables -->"


def machine() -> str:
    """What the figures were measured on."""
    import torch

    return (
        f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores of "
        f"{platform.machine()}, {platform.system()}."
    )


def main() -> int:
    """Run each bench_*.py by itself; a failed one leaves the README as it was."""
    tables = [f"Last run: {machine()}\n"]
    for file in sorted(HERE.glob("bench_*.py")):
        print(f"{file.name} ...", file=sys.stderr, flush=True)
        done = subprocess.run([sys.executable, str(file)], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            print(f"{file.name} failed; benchmarks/README.md stays as it was", file=sys.stderr)
            return 1
        tables.append(f"## {file.stem}\n\n{done.stdout.strip()}\n")
        print(done.stdout, flush=True)
    before, rest = README.read_text().split(BEGIN)
    README.write_text(before + BEGIN + "\n".join(tables) + END + rest.split(END)[1])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
