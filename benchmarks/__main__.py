"""``python -m benchmarks [NAME ...]``: run benchmarks and put their tables into benchmarks/README.md.

Without names, all run except those of `ONLY_BY_NAME`, which take long. Tables of benchmarks that did not run stay.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"
BEGIN, END = "<!-- tables -->\n", "<!-- /tables -->"
#: The labelled suite trains over a hundred small programs, most of them six times, which takes hours; so do the peers.
#: Fifty comparisons of programs with themselves take one, and so do the twins of `perfkit try`. A hundred runs of whole
#: programs take half an hour, and so do the twins of the replay. One needs a GPU.
ONLY_BY_NAME = {"verdict", "verdict_peers", "try", "try_twins", "cost", "replay", "gpu"}


def machine() -> str:
    """The machine on which the figures were measured."""
    import torch

    return (
        f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores of "
        f"{platform.machine()}, {platform.system()}"
    )


def main(names: list[str]) -> int:
    """Run each bench_NAME.py in its own process; if one fails, the README is not changed."""
    files = {file.stem.removeprefix("bench_"): file for file in sorted(HERE.glob("bench_*.py"))}
    del files["alarms"]  # it needs what `bench_verdict.py --keep` has stored, and is run by itself
    unknown = [name for name in names if name not in files]
    if unknown:
        print(f"there is no benchmark {unknown[0]!r}; choose from {', '.join(files)}", file=sys.stderr)
        return 2
    before, rest = README.read_text().split(BEGIN)
    old, after = rest.split(END)
    tables = dict(re.findall(r"^## bench_(\w+)\n(.*?)(?=^## bench_|\Z)", old, re.MULTILINE | re.DOTALL))
    for name in names or [name for name in files if name not in ONLY_BY_NAME]:
        print(f"{files[name].name} ...", file=sys.stderr, flush=True)
        done = subprocess.run([sys.executable, str(files[name])], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            print(f"{files[name].name} failed; benchmarks/README.md was not changed", file=sys.stderr)
            return 1
        tables[name] = f"\n{machine()}.\n\n{done.stdout.strip()}\n\n"
        print(done.stdout, flush=True)
    text = "".join(f"## bench_{name}\n{tables[name]}" for name in files if name in tables)
    README.write_text(before + BEGIN + text + END + after)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
