"""Programs x faults: every system call that perfkit makes in a run fails once, and the outcome of training is compared.

`measure` runs the programs and returns the page docs/faults.md; ``python -m tests.faults.matrix`` writes it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tests.faults.injector import ERRORS, HERE, PROGRAMS, compile_injector, environment, fault

ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "faults.md"
#: Program -> what it is, and its number of ranks where it has several.
SUITE = {
    "plain": ("a plain loop", 0),
    "lightning_fit": ("Lightning's Trainer", 0),
    "distributed": ("DDP over gloo, 2 ranks", 2),
    "workers": ("DataLoader with 2 workers, ends with an error", 0),
    "chdir": ("changes its folder", 0),
    "spawn": ("spawns and forks processes", 0),
}
#: What perfkit asks Python for: it fails there.
PYTHON = {
    "open-elsewhere": "open, of a file outside the run's folder",
    "process": "start of a process",
    "thread": "start of a thread",
}


#: Calls that fail in the same run.
TOGETHER = (
    ("write", "fsync", "mmap"),
    ("open", "link"),
    ("rename", "mkdir", "unlink"),
    ("read", "close"),
    ("stat", "opendir"),
    tuple(PYTHON),
)


class Outcome(NamedTuple):
    """What a program leaves, by rank."""

    codes: list[int]
    stdout: list[str]
    stderr: list[str]

    def same_as(self, other: Outcome) -> bool:
        """Whether exit codes, and stdout with the digest of the weights, are equal."""
        return (self.codes, self.stdout) == (other.codes, other.stdout)


def free_port() -> int:
    """A port that no program of this machine has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class ForkServer:
    """Runs programs by fork_server.py, in folders below ``folder``."""

    def __init__(self, folder: Path, library: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.fork_server"],
            cwd=ROOT,
            env=environment(library),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def run(
        self,
        program: str,
        *,
        perfkit: bool = True,
        faults: Sequence[str] = (),
        python_faults: Sequence[str] = (),
        **more: Any,
    ) -> tuple[Outcome, set[str], set[str]]:
        """(its outcome, the calls of perfkit's, those of them that failed), the calls as "CALL PATH"."""
        shutil.rmtree(self._folder, ignore_errors=True)
        (self._folder / "perfkit").mkdir(parents=True)
        ranks = SUITE.get(program, ("", 0))[1]
        launcher = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        request = {
            "program": str(PROGRAMS / f"{program}.py"),
            "perfkit": perfkit,
            "folder": str(self._folder / "program"),
            "run": str(self.run_folder),
            "root": str(self._folder / "perfkit"),
            "options": ["--quiet"],
            "diagnosed": program == "plain",
            "environment": {
                "PERFKIT_CACHE_DIR": str(self._folder / "perfkit" / "cache"),
                **(launcher | {"TORCHELASTIC_RUN_ID": "suite"} if ranks else {}),
            },
            "ranks": ranks,
            "log": str(self._folder / "log"),
            "faults": list(faults),
            "python_faults": list(python_faults),
            **more,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        codes = json.loads(self._process.stdout.readline())["codes"]
        numbers = range(ranks) if ranks else (-1,)
        texts = {name: [(self._folder / f"{name}-{n}").read_text() for n in numbers] for name in ("out", "err")}
        log = self._folder / "log"
        lines = [line.split(" ", 2)[1:] for line in log.read_text().splitlines()] if log.exists() else []
        calls = {f"{call.lstrip('+')} {self._kind(path)}" for call, path in lines}
        failed = {f"{call[1:]} {self._kind(path)}" for call, path in lines if call[0] == "+"}
        return Outcome(codes, texts["out"], texts["err"]), calls, failed

    @property
    def run_folder(self) -> Path:
        """Where runs are recorded."""
        return self._folder / "perfkit" / "run"

    def _kind(self, path: str) -> str:
        """A path without what differs from run to run; a pattern for fnmatch, too."""
        path = re.sub(r"\.part-\d+-([0-9a-f]{12}$|suite.*)?", ".part-*-", path.replace(f"{self._folder}/perfkit", "@"))
        return re.sub(r"(?<=cache/).*", "*", re.sub(r"\d{3,}", "*", path))

    def faults(self, calls: Iterable[str]) -> dict[str, list[str]]:
        """The arguments of `run` that make these calls fail once each."""
        c_calls = [one.split(" ", 1) for one in calls if one.split(" ", 1)[0] in ERRORS]
        patterns = [(call, path.replace("@", f"{self._folder}/perfkit")) for call, path in c_calls]
        return {
            "faults": [fault(call, f"{path}*" if path.endswith("-") else path) for call, path in patterns],
            "python_faults": [one for one in calls if one.split(" ", 1)[0] in PYTHON],
        }


class Row(NamedTuple):
    """A fault in one program: what failed, whether the outcome was equal, and what perfkit wrote where it was not."""

    program: str
    call: str
    kinds: frozenset[str]
    equal: bool
    stderr: str


def lasting(root: str) -> dict[str, list[str]]:
    """What goes wrong for the rest of a run, by its name on the page."""
    full = errno.ENOSPC
    return {
        "disk full from the start": [
            fault(call, f"{root}/*", error=full, sticky=True) for call in ("write", "mkdir", "link")
        ],
        "disk full from the 30th write": [fault("write", f"{root}/*", nth=30, error=full, sticky=True)],
        # Below the time limits of torch's own rendezvous, which a clock may end.
        "clock a minute later": [fault("clock", "-", nth=2000, error=60)],
        "clock of the day a day earlier": [fault("clock-wall", "-", nth=200, error=-86_400)],
    }


def measure_program(server: ForkServer, program: str, calls: Iterable[str] = ()) -> list[Row]:
    """Run one program without perfkit, with it, and with each fault; ``calls`` limits them to some names.

    The files of some calls fail in one run, each once; what one failure hides from the next is repeated. Where the
    outcome differs, each is repeated alone.
    """
    plain, again = (server.run(program, perfkit=False)[0] for _ in range(2))
    if not plain.same_as(again):  # every fault would differ from it
        raise RuntimeError(f"without perfkit {program} ended in two ways: {plain} and {again}")
    whole, known, _ = server.run(program)
    rows = [Row(program, "no fault", frozenset(), whole.same_as(plain), "".join(whole.stderr))]

    def meet(chosen: Iterable[str]) -> tuple[set[str], bool, str]:
        outcome, _, failed = server.run(program, **server.faults(sorted(chosen)))
        stderr = "".join(outcome.stderr)
        return failed & known, outcome.same_as(plain) and "Traceback" not in perfkits(stderr), stderr

    for group in [tuple(calls)] if calls else TOGETHER:
        left = {one for one in known if one.split(" ", 1)[0] in group}
        together = True
        while left:
            chosen = left if together else {min(left)}
            reached, equal, stderr = meet(chosen)
            together = together and bool(reached & left)
            left -= reached if together else reached | chosen
            for one in sorted(reached):
                call, kind = one.split(" ", 1)
                _, alone_equal, alone = (reached, equal, stderr) if equal or len(reached) == 1 else meet([one])
                rows.append(Row(program, call, frozenset([kind]), alone_equal, alone))
    for name, faults in {} if calls else lasting(str(server.run_folder.parent)).items():
        outcome, _, _ = server.run(program, faults=faults)
        rows.append(Row(program, name, frozenset(), outcome.same_as(plain), "".join(outcome.stderr)))
    return rows


def perfkits(stderr: str) -> str:
    """The lines of stderr without the program's own error."""
    return re.sub(r"Traceback[^§]*?ValueError: the program's own error\n", "", stderr)


def shown(kind: str) -> str:
    """What failed, as on the page."""
    if kind.endswith((".pyc", ".py", ".zip", ".json", "METADATA")) and not kind.startswith("@"):
        return "modules and sources"
    return re.sub(r"^@/?(run/?)?", "", re.sub(r"rank-\d+", "rank-N", kind)) or "(the run's folder)"


def page(rows: Sequence[Row]) -> str:
    """The text of docs/faults.md."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.call, row.program), []).append(row)
    programs = [name for name in SUITE if any(row.program == name for row in rows)]
    calls = ["no fault", *ERRORS, *PYTHON, *lasting("")]
    table = []
    for call in calls:
        cells = []
        for program in programs:
            of_cell = found.get((call, program), [])
            bad = [row for row in of_cell if not row.equal]
            cells.append("differs" if bad else "equal" if of_cell else "no such call")
        if any(cell != "no such call" for cell in cells):
            error = f": {os.strerror(ERRORS[call])}" if call in ERRORS else ""
            table.append(f"| {PYTHON.get(call, call)}{error} | {' | '.join(cells)} |")
    files = []
    for call in (*ERRORS, *PYTHON):
        kinds = {shown(kind) for row in rows if row.call == call for kind in row.kinds}
        if kinds:
            files.append(f"- {PYTHON.get(call, call)}: {', '.join(f'`{kind}`' for kind in sorted(kinds))}")
    head = [
        "# Faults",
        "",
        "<!-- Generated: python -m tests.faults.matrix -->",
        "",
        "Each system call that perfkit makes in a recorded run on the run's files and on its cache is made to fail,",
        "once for each file, in each of these programs, and so is each file that it opens elsewhere, each process and",
        "each thread. *Equal*: the program's exit codes and its output, which ends in a digest of its weights,",
        "are those of a run without perfkit, and perfkit prints no traceback. The files of a call fail in one run;",
        "what the failure of one hides is repeated. Each program runs in a fork of a process that has imported torch,",
        "on a CPU. The machine's limits are not measured, and only the plain loop is diagnosed at its end.",
        "",
        *(f"- {name}: {SUITE[name][0]}" for name in programs),
        *(f"- {name}: {SUITE[name][0]}; not run yet" for name in SUITE if name not in programs),
        "",
        f"| fault | {' | '.join(programs)} |",
        f"|{' --- |' * (len(programs) + 1)}",
        *table,
        "",
        "What failed (`*`: numbers that differ from run to run):",
        "",
        *files,
        "",
    ]
    return "\n".join(head)


def measure(folder: Path, library: Path, programs: Iterable[str] = tuple(SUITE)) -> list[Row]:
    """The whole matrix; minutes."""
    rows = []
    with ForkServer(folder / "case", library) as server:
        for program in programs:
            rows += measure_program(server, program)
            bad = [row for row in rows if row.program == program and not row.equal]
            print(
                program, len(rows), [(row.call, sorted(row.kinds), row.stderr[-1500:]) for row in bad], file=sys.stderr
            )
    return rows


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        measured = measure(Path(made), compile_injector(Path(made)), sys.argv[1:] or tuple(SUITE))
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(measured))
