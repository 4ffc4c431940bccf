"""Files that want to harm their reader, and what perfkit answers.

``python tests/hostile/cases.py FOLDER`` makes each of them below FOLDER, lets every path that reads it read it, and
prints the answers as JSON, or with ``--table`` docs/hostile_input.md; ``--light`` and ``--heavy`` choose some of them.
It is a process of its own, so that its memory can be measured.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import re
import shutil
import signal
import sqlite3
import sys
import time
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from perfkit.commands import main
from perfkit.diagnosis import diagnose
from perfkit.errors import PerfkitError
from perfkit.integrations.tensorboard.drawings import draw
from perfkit.run.rank_writer import RankWriter, write_record
from perfkit.run.records import Lines, Phases, RangeRow, Rank, Run, Step

#: What may reach no terminal and no page; a line feed ends a line of perfkit's own.
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
#: Seconds after which a case counts as a hang; the machine of the tests may be busy, so it is no measure of speed.
HANG_S = 240
DIGITS = "9" * 400
DEEP = 500_000
MANY_RANKS = '{"schema": 2, "launch_id": "a", "command": [], "folder": "x", "world_size": 1000000000000}'
BIDI = "\u202edetrevni\u202c \u2066x\u2069"
LONG = "names of 10 MB, with marks of direction, markup and terminal commands"
LONG_NAME = f"[bold]{BIDI}\x1b]0;title\x07" + "x" * 10_000_000


class Case(NamedTuple):
    """A hostile file: which, what is in it, how it is made, what perfkit says of it, and whether it is of a run.

    ``says`` is a regular expression; after a "=", what is done where nothing needs to be said. A heavy one takes
    seconds of the processor.
    """

    file: str
    what: str
    make: Callable[[Path], Path]
    says: str
    is_run: bool = True
    is_heavy: bool = False

    @property
    def name(self) -> str:
        """The file, and what is in it."""
        return f"{self.file}: {self.what}"


class Answer(NamedTuple):
    """What perfkit answered: exit codes, the sentence about the file, all text, and what it took."""

    file: str
    what: str
    codes: dict[str, int]
    sentence: str
    text: str
    cpu_s: float
    peak_bytes: int
    problem: str


def sound_run(folder: Path) -> Path:
    """A run that perfkit recorded of 20 steps."""
    run = folder / "run"
    run.mkdir()
    write_record(run, Run(launch_id="a", command=("train.py",), folder="/x", world_size=1))
    writer = RankWriter(run, 0)
    phases = Phases(data=10**6, other=9 * 10**6)
    writer.append_steps([Step(step=n, start_ns=n * 10**7, wall_ns=10**7, phases_ns=phases) for n in range(20)])
    writer.write(Rank(rank=0, launch_id="a", host="h", pid=1, start_ns=0, end_ns=10**9, ending="completed", steps=20))
    times = {"count": 3, "total_ns": 9, "self_ns": 8, "min_ns": 1, "max_ns": 4, "hist": (0,) * 64}
    writer.write_ranges((RangeRow(name="r", category="", domain="d", thread="t", **times),))
    writer.close()
    (run / "rank-0" / "lines.json").write_bytes(msgspec.json.encode(Lines(period_ns=10**7, steps=20)))
    return run


# -- making them


def in_run(name: str, change: Callable[[Path], object]) -> Callable[[Path], Path]:
    """A sound run in which ``change`` was made to the path of one file."""

    def make(folder: Path) -> Path:
        run = sound_run(folder)
        change(run / name)
        return run

    return make


def fifo(path: Path) -> None:
    """A named pipe that nobody writes to."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def link(target: str) -> Callable[[Path], None]:
    """A symbolic link."""

    def make(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return make


def secret(path: Path) -> None:
    """A link to a sound file that is not in the folder."""
    outside = path.parents[2] / "outside"
    path.rename(outside)
    path.symlink_to(outside)


def linked_rank(path: Path) -> None:
    """The folder of a rank is a link to one outside."""
    path.rename(path.parents[1] / "other")
    path.symlink_to(path.parents[1] / "other")


def row(text: str) -> Callable[[Path], None]:
    """Another row at the end of a steps.jsonl."""

    def make(path: Path) -> None:
        with path.open("a") as file:
            file.write(text + "\n")

    return make


def text(content: str) -> Callable[[Path], None]:
    """A file with this content."""

    def make(path: Path) -> None:
        path.write_text(content)

    return make


def sparse(path: Path) -> None:
    """A file that claims to have 1 TB and takes no room on the disk."""
    with path.open("wb") as file:
        file.truncate(10**12)


def npz(header: str, size: int = 64) -> Callable[[Path], None]:
    """A ranges.npz whose first array has this header."""

    def make(path: Path) -> None:
        raw = header.encode() + b"\n"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("name.npy", b"\x93NUMPY\x01\x00" + len(raw).to_bytes(2, "little") + raw + bytes(size))

    return make


def npz_pickle(path: Path) -> None:
    """An array of Python objects, which numpy would unpickle."""
    np.savez(path, name=np.array([{"a": 1}], dtype=object))


def record(change: dict[str, Any]) -> Callable[[Path], None]:
    """A JSON record with other values."""

    def make(path: Path) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    return make


EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1000, "dur": 500}


def trace(*texts: str) -> Callable[[Path], Path]:
    """A Kineto trace of sound events and these."""

    def make(folder: Path) -> Path:
        sound = [json.dumps({**EVENT, "ts": 1000 * n}) for n in range(1, 20)]
        file = folder / "trace.json"
        file.write_text('{"schemaVersion": 1, "traceEvents": [\n' + ",\n".join([*sound, *texts]) + "\n]}")
        return file

    return make


def event(**change: Any) -> str:
    """An event of a Kineto trace as JSON; a text that begins with # stands in it as it is, without the #."""
    return re.sub(r'"#([^"]*)"', r"\1", json.dumps({**EVENT, **change}))


def file(name: str, change: Callable[[Path], object]) -> Callable[[Path], Path]:
    """One file alone."""

    def make(folder: Path) -> Path:
        change(folder / name)
        return folder / name

    return make


def gzip_bomb(path: Path) -> None:
    """5 MB that inflate to 5 GB."""
    part = gzip.compress(b" " * 2**26, 9)
    with path.open("wb") as out:
        out.write(gzip.compress(b'{"traceEvents": ['))
        for _ in range(80):
            out.write(part)


def blob(path: Path) -> None:
    """An nsys export with 0.9 GB in the column of a time."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("pragma journal_mode = off")
        database.execute("create table StringIds (id, value)")
        database.execute("insert into StringIds values (1, 'gemm')")
        table = "CUPTI_ACTIVITY_KIND_KERNEL"
        database.execute(f"create table {table} (start, end, deviceId, streamId, correlationId, demangledName)")
        for start, end in ((10, "20"), (30, "zeroblob(900000000)"), (50, "60")):
            database.execute(f"insert into {table} values ({start}, {end}, 0, 7, 1, 1)")
        database.commit()


class Command:
    """What a pickle would run."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.system, ("touch /tmp/perfkit-was-here",))


def pickled(path: Path) -> None:
    """A pickle that runs a command."""
    path.write_bytes(pickle.dumps({"segments": [Command()]}))


def pickle_bomb(path: Path) -> None:
    """A pickle of some bytes that doubles a list 60 times."""
    path.write_bytes(b"\x80\x02]q\x00" + b"".join(b"(h\x00h\x00l2h\x00" for _ in range(60)) + b".")


def csv(path: Path) -> None:
    """A report of ncu with numbers that no float holds and a name of 10 MB."""
    path.write_text(
        '"ID","Process ID","Kernel Name","gpu__time_duration.sum"\n"","","","ns"\n'
        f'"0","7","gemm","1e400"\n"1","7","gemm","{DIGITS}"\n"2","7","{"k" * 10_000_000}","5"\n"3","7","sound","100"\n'
    )


STEPS = "rank-0/steps.jsonl"
ROW = '{{"step": 20, "start_ns": 200000000, "wall_ns": {}, "phases_ns": {{"data": {}}}}}'

CASES = (
    Case(
        "steps.jsonl",
        "a whole number of 400 digits",
        in_run(STEPS, row(ROW.format(DIGITS, 1))),
        "1 of 21 rows are damaged",
    ),
    Case(
        "steps.jsonl",
        "a negative duration",
        in_run(STEPS, row(ROW.format(10**7, -(10**9)))),
        "1 of 21 rows are damaged",
    ),
    Case("steps.jsonl", "NaN as a duration", in_run(STEPS, row(ROW.format("NaN", 1))), "1 of 21 rows are damaged"),
    Case(
        "steps.jsonl",
        "a row nested 500,000 deep",
        in_run(STEPS, row('{"x": ' + "[" * DEEP)),
        "1 of 21 rows are damaged",
    ),
    Case("steps.jsonl", "a pipe", in_run(STEPS, fifo), "a pipe, not a file"),
    Case("steps.jsonl", "a link to /dev/zero", in_run(STEPS, link("/dev/zero")), "a device, not a file"),
    Case("steps.jsonl", "a link to a file outside the folder", in_run(STEPS, secret), "a link leads out"),
    Case("steps.jsonl", "1 TB, sparse", in_run(STEPS, sparse), "larger than 4096 MiB"),
    Case("lines.json", "a pipe", in_run("rank-0/lines.json", fifo), "a pipe, not a file"),
    Case(
        "lines.json",
        "a whole number of 400 digits",
        in_run("rank-0/lines.json", text(f'{{"schema": 2, "period_ns": {DIGITS}, "steps": 1}}')),
        "lines.json: damaged",
    ),
    Case("rank.json", "a link to /dev/zero", in_run("rank-0/rank.json", link("/dev/zero")), "a device, not a file"),
    Case(
        "rank.json",
        "a negative count of steps",
        in_run("rank-0/rank.json", record({"steps": -5})),
        "rank.json: damaged",
    ),
    Case(
        "rank.json",
        LONG,
        in_run("rank-0/rank.json", record({"host": LONG_NAME, "notes": [LONG_NAME[:999]], "ending": LONG_NAME[:999]})),
        "=Names are cut to 400 characters, and what is unsafe in them is shown as an escape or a ?.",
        is_heavy=True,
    ),
    Case("rank.json", "a note of 20 MB", in_run("rank-0/rank.json", record({"notes": [2 * LONG_NAME]})), "than 16 MiB"),
    Case("rank-0", "a link to a folder outside", in_run("rank-0", linked_rank), "it is a link, not read"),
    Case("run.json", "10^12 ranks", in_run("run.json", text(MANY_RANKS)), "run.json: damaged"),
    Case("run.json", "nested 500,000 deep", in_run("run.json", text('{"x": ' * DEEP)), "nested too deeply"),
    Case(
        "run.json", "a link to a file outside the folder", in_run("run.json", link("/etc/passwd")), "a link leads out"
    ),
    Case(
        "ranges.npz",
        "a header that claims 10^12 elements",
        in_run("rank-0/ranges.npz", npz("{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,)}")),
        "claims 1,000,000,000,000",
    ),
    Case(
        "ranges.npz",
        "a header that claims 10^12 elements of no size",
        in_run("rank-0/ranges.npz", npz("{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,)}")),
        "claim 1,000,000,000,000",
    ),
    Case(
        "ranges.npz",
        "1 GB of zeros in 1 MB",
        in_run("rank-0/ranges.npz", npz("{'descr': '<i8', 'fortran_order': False, 'shape': (125000000,)}", 10**9)),
        "larger than 256 MiB",
    ),
    Case("ranges.npz", "pickled objects", in_run("rank-0/ranges.npz", npz_pickle), "Object arrays"),
    Case("trial.json", "a link to /dev/zero", in_run("trial.json", link("/dev/zero")), "a device, not a file"),
    Case("figures.json", "a pipe", in_run("figures.json", fifo), "a pipe, not a file"),
    Case("figures.json", "nested 500,000 deep", in_run("figures.json", text('{"x": ' * DEEP)), "nested too deeply"),
    Case("diagnosis.json", "a pipe", in_run("diagnosis.json", fifo), "=The run is diagnosed again."),
    Case("a Kineto trace", "a pipe", file("trace.json", fifo), "a pipe, not a file", False),
    Case("a Kineto trace", "a link to /dev/zero", file("trace.json", link("/dev/zero")), "a device, not a file", False),
    Case(
        "a Kineto trace",
        "arguments nested 500,000 deep",
        trace(event(args="#" + "[" * DEEP + "]" * DEEP)),
        "The file is cut",
        False,
    ),
    Case("a Kineto trace", "a time of 400 digits", trace(event(ts="#" + DIGITS)), "1 of 20 events could not", False),
    Case("a Kineto trace", "NaN as a duration", trace(event(dur="#NaN")), "1 of 20 events could not", False),
    Case("a Kineto trace", "a negative duration", trace(event(dur=-(10**6))), "negative duration", False),
    Case(
        "a Kineto trace",
        LONG,
        trace(event(name=LONG_NAME, dur=10**6)),
        "=Names are cut to 400 characters, and what is unsafe in them is shown as an escape or a ?.",
        False,
        is_heavy=True,
    ),
    Case(
        "a Kineto trace",
        "5 MB of gzip that inflate to 5 GB",
        file("trace.json.gz", gzip_bomb),
        "longer than 64 MiB",
        False,
        is_heavy=True,
    ),
    Case("an nsys export", "a blob of 0.9 GB", file("report.sqlite", blob), "1 of 3 events", False, is_heavy=True),
    Case(
        "an ncu report",
        "numbers that no float holds, and a name of 10 MB",
        file("report.csv", csv),
        "2 of its values are",
        False,
    ),
    Case(
        "a memory snapshot",
        "a pickle that runs a command",
        in_run("rank-0/memory-0.pickle", pickled),
        "class or a function",
    ),
    Case(
        "a memory snapshot",
        "a pickle that repeats itself",
        in_run("rank-0/memory-0.pickle", pickle_bomb),
        "what no snapshot contains",
    ),
    Case("a memory snapshot", "a pipe", in_run("rank-0/memory-0.pickle", fifo), "a link, a pipe or a device"),
)


# -- reading them


def paths(path: Path, is_run: bool) -> dict[str, Callable[[], object]]:
    """Every path of perfkit that reads a run folder or a trace, by name."""
    read: dict[str, Callable[[], object]] = {"the tab": lambda: draw(str(path))}
    if is_run:
        read["watch"] = lambda: main(["watch", str(path), "--once"])
    read["the notebook"] = lambda: diagnose(path)._repr_html_()
    # Last, because it writes diagnosis.json and figures.json.
    read["the page"] = lambda: main(["diagnose", str(path), "--all", "--html", str(path.parent / "page.html")])
    return read


def peak_bytes() -> int:
    """The largest resident memory of this process since `forget_peak`."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024  # type: ignore[index]


def forget_peak() -> None:
    """Let the kernel measure the peak anew (proc_pid_clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def ask(case: Case, folder: Path) -> Answer:
    """Make one hostile file, and let all paths read it."""
    folder.mkdir()
    path = case.make(folder)
    forget_peak()
    said, codes, problem = io.StringIO(), {}, ""
    began_s = time.process_time()
    signal.alarm(HANG_S)
    for name, read in paths(path, case.is_run).items():
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                answer = read()
            codes[name] = answer if isinstance(answer, int) else 0
            said.write(answer.decode() if isinstance(answer, bytes) else answer if isinstance(answer, str) else "")
        except PerfkitError as error:
            codes[name] = 2
            said.write(f"perfkit: {error}\n")
        except Exception:  # noqa: BLE001 - the test fails with it
            problem = f"{name}: {traceback.format_exc()}"
        said.write("\n")
    signal.alarm(0)
    page = folder / "page.html"
    whole = said.getvalue().replace(str(folder), "FOLDER")
    # The page's own script and style have no text from outside.
    shown = re.sub(r"<(style|script)>.*?</\1>", "", page.read_text(), flags=re.S) if page.exists() else ""
    shutil.rmtree(folder)  # one of them has a gigabyte
    return Answer(
        file=case.file,
        what=case.what,
        codes=codes,
        sentence=sentence_about(case, whole),
        text=f"{whole}\n{shown}",
        cpu_s=time.process_time() - began_s,
        peak_bytes=peak_bytes(),
        problem=problem,
    )


def sentence_about(case: Case, said: str) -> str:
    """What was printed about the hostile part; empty where nothing was."""
    if case.says.startswith("="):
        return case.says[1:]
    found = [line for line in said.splitlines() if re.search(case.says, line)]
    return re.search(rf"(?:Note: |perfkit: )?([^\"]*(?:{case.says})[^\"]*)", found[0])[1] if found else ""  # type: ignore[index]


_TABLE = """\
# Hostile input

A trace or a run folder may come from anyone. Each of these files is read in the tests by the command line, the HTML
page, the TensorBoard tab and a notebook, and in a run folder by `perfkit watch`. None of them ends in a traceback,
takes 10 s of processor time or 1 GB of memory, runs anything, or brings a control character, a mark of direction or
markup to a terminal or a page. Where a part is refused, the rest is read.

Only regular files of a run folder are opened, and no link out of it is followed: JSON records up to 16 MiB, arrays up
to 256 MiB and 4,000,000 elements, steps.jsonl up to 4 GiB (of which 40,000 rows are kept), memory snapshots up to
128 MiB, and gzip that inflates to at most 256 MiB or 150 times its size.

This table is generated: `python tests/hostile/cases.py FOLDER --table`.

| file | what is in it | what perfkit answers |
|---|---|---|
"""


def table(answers: list[Answer]) -> str:
    """The text of docs/hostile_input.md."""
    rows = [(one.file, one.what, re.sub(r"FOLDER/(run/)?(rank-0/)?", "", one.sentence)) for one in answers]
    return _TABLE + "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows)


def give_up(number: int, frame: Any) -> None:
    """A hang: say where, and end."""
    traceback.print_stack(frame)
    os._exit(3)


if __name__ == "__main__":
    os.environ["COLUMNS"] = "400"
    signal.signal(signal.SIGALRM, give_up)
    left_out = {"--light": True, "--heavy": False}.get(sys.argv[-1])
    chosen = [case for case in CASES if case.is_heavy is not left_out]
    answers = [ask(case, Path(sys.argv[1], str(number))) for number, case in enumerate(chosen)]
    sys.stdout.write(table(answers) if "--table" in sys.argv else json.dumps([one._asdict() for one in answers]))
