"""Programs that stand for nsys and ncu: they note what they were started with, and leave what a test wants."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

#: Puts a tool on the PATH; ``does`` is shell, with the report's name as $out and the program as "$@".
FakeTool = Callable[..., Path]
ROOT = Path(__file__).resolve().parents[2]

NSYS_HELP = "--trace= --sample= --cpuctxsw= --kill= --capture-range= --capture-range-end= --nvtx-capture= --output="
NSYS_HELP += " --env-var= --delay= --duration= --force-overwrite= --cuda-graph-trace= --nvtx-domain-[include|exclude]="
NCU_HELP = "--target-processes --set --section --kernel-name --launch-skip --launch-count --nvtx --nvtx-include"
NCU_HELP += " --section-folder --replay-mode --profile-from-start --clock-control --force-overwrite --export"

SCRIPT = """#!/bin/sh
here={here}
case "$*" in
  --version) echo "NVIDIA Nsight version {version} (build 1)"; exit;;
  *--help) echo "{help}"; exit;;
esac
case "$1" in
  export) while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done; cp "$here/ready" "$out"; exit;;
  --import) cat "$here/ready"; exit;;
  profile) shift;;
esac
printf '%s\\n' "$@" >"$here/{name}.argv"
while [ $# -gt 0 ]; do
  case "$1" in
    --output=*) out=${{1#--output=}}; shift;;
    --export) out=$2; shift 2;;
    --nvtx) shift;;
    --*=*) shift;;
    --*) shift 2;;
    *) break;;
  esac
done
out=$(printf %s "$out" | sed "s/%q{{RANK}}/$RANK/")
{does}
"""


@pytest.fixture
def fake_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTool:
    """Put a program on the PATH that stands for nsys or ncu; gives the folder where it notes its words."""
    place = tmp_path / "tools"
    place.mkdir()
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("PERFKIT_NSYS", "PERFKIT_NCU"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def put(name: str, does: str = ":", version: str = "2022.4.2", help: str | None = None) -> Path:
        options = help if help is not None else NSYS_HELP if name == "nsys" else NCU_HELP
        program = place / name
        program.write_text(SCRIPT.format(here=place, name=name, version=version, help=options, does=does))
        program.chmod(0o755)
        return place

    return put


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that is there and does nothing."""
    file = tmp_path / "train.py"
    file.write_text("pass\n")
    return file


def make_export(path: Path, rows: list[tuple[str, int, int]], kernels: Sequence[tuple[int, int, int]] = ()) -> Path:
    """An export of nsys with push/pop ranges (name, start, end), and kernels launched by a call at each start.

    A kernel is (start of its launch, its own start, its end); the launch takes 1 ns.
    """
    names = list(dict.fromkeys([name for name, _, _ in rows]))
    thread = 7 << 24 | 7
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("create table StringIds (id integer, value text)")
        database.executemany("insert into StringIds values (?, ?)", [*enumerate(names), (900, "k"), (901, "launch")])
        database.execute(
            'create table NVTX_EVENTS (start int, "end" int, eventType int, textId int, text text, globalTid int,'
            " endGlobalTid int, domainId int)"
        )
        database.execute(f"insert into NVTX_EVENTS values (0, null, 75, null, 'perfkit', {thread}, null, 1)")
        for name, start, end in rows:
            values = (start, end, 59, names.index(name), None, thread, None, 1)
            database.execute("insert into NVTX_EVENTS values (?, ?, ?, ?, ?, ?, ?, ?)", values)
        if kernels:
            database.execute(
                'create table CUPTI_ACTIVITY_KIND_RUNTIME (start int, "end" int, nameId int, globalTid int,'
                " correlationId int)"
            )
            database.execute(
                'create table CUPTI_ACTIVITY_KIND_KERNEL (start int, "end" int, shortName int, deviceId int,'
                " streamId int, correlationId int, globalPid int)"
            )
        for number, (launch, start, end) in enumerate(kernels, 1):
            call = (launch, launch + 1, 901, thread, number)
            database.execute("insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, ?, ?, ?)", call)
            row = (start, end, 900, 0, 7, number, 7 << 24)
            database.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, ?, ?, ?, ?, ?)", row)
    return path


@pytest.fixture
def export() -> Callable[..., Path]:
    """`make_export`."""
    return make_export
