"""A run folder with every file that one can have, how a mutated one is read, and requests to TensorBoard's tab."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import msgspec
import msgspec.inspect
import numpy as np

from perfkit._text import printable
from perfkit.comparison import compare
from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.errors import PerfkitError
from perfkit.history.gathering import read_history
from perfkit.integrations.tensorboard.drawings import draw
from perfkit.measures.memory.memory_snapshot import measure_memory_snapshot
from perfkit.reports.figures import figures_of, read_figures, write_figures
from perfkit.reports.html import render_html
from perfkit.reports.live import live_line
from perfkit.reports.live_ranks import LateRank
from perfkit.run import records
from perfkit.run.arrays import read_line_times, write_line_times, write_spans
from perfkit.run.follower import RunFollower
from perfkit.run.reading import RankFolder, RunFolder, read_run
from perfkit.trace import read_trace
from perfkit.trace.memory_snapshot import read_memory_snapshot
from tests.hostile.cases import UNSAFE, sound_run
from tests.hostile.mutations import mutate_bytes
from tests.hostile.readers import ALL_VALUES, EVERYTHING, Reader, show, snapshot, trace_text


def sound_value(kind: Any) -> Any:
    """A value that a type of a record takes, as it is in JSON."""
    inspect = msgspec.inspect
    simple: dict[type, Any] = {inspect.BoolType: True, inspect.StrType: "x", inspect.NoneType: None}
    of = kind if isinstance(kind, inspect.Type) else inspect.type_info(kind)
    if isinstance(of, inspect.IntType):
        return max(3, of.ge or 0)
    if isinstance(of, inspect.FloatType):
        return 0.5
    if isinstance(of, inspect.LiteralType):
        return of.values[0]
    if isinstance(of, inspect.UnionType):
        return sound_value(of.types[0])
    if isinstance(of, inspect.DictType):
        return {sound_value(of.key_type): sound_value(of.value_type)}
    if isinstance(of, inspect.VarTupleType):
        return [sound_value(of.item_type)] * 2
    if isinstance(of, inspect.TupleType):
        return [sound_value(one) for one in of.item_types]
    if isinstance(of, inspect.StructType):
        values = {field.encode_name: sound_value(field.type) for field in of.fields}
        return [*values.values()] if of.array_like else values
    return simple[type(of)]


def record(kind: type[msgspec.Struct], **values: Any) -> bytes:
    """A sound record of a run folder, with each of its fields."""
    data = msgspec.json.encode(sound_value(kind) | values)
    msgspec.json.decode(data, type=kind)
    return data


def full_run(folder: Path) -> Path:
    """A run with every file that a run folder can have."""
    run = sound_run(folder)
    rank, schema = run / "rank-0", records.SCHEMA
    files: dict[str, bytes] = {
        "changes.json": record(records.AppliedChanges, schema=schema),
        "limits.json": record(records.MachineLimits, schema=schema),
        "lines.json": record(records.Lines, schema=schema),
        "syncs.json": record(records.Syncs, schema=schema),
        "peak-0.json": record(records.MemorySteps, schema=schema),
        "peak-0.pt.trace.json.gz": gzip.compress(trace_text()),
        "stacks-0.pt.trace.json.gz": gzip.compress(trace_text()),
        "window-0.pt.trace.json.gz": gzip.compress(trace_text()),
        "memory-0.pickle": snapshot(),
    }
    for name, data in files.items():
        (rank / name).write_bytes(data)
    window = sound_value(records.Window) | {"index": 0, "file": "window-0.pt.trace.json.gz"}
    known = json.loads((rank / "rank.json").read_bytes())
    (rank / "rank.json").write_bytes(record(records.Rank, **(known | {"windows": [window], "versions": {"x": "1"}})))
    span = {"name": "r", "category": "", "domain": "d", "thread": "t", "depth": 0, "start_ns": 5, "end_ns": 9}
    write_spans(rank / "ranges-0.npz", [records.RangeSpan(**span)] * 3, 0)
    code = msgspec.convert(sound_value(records.UserCode), records.UserCode)
    columns = {name: np.arange(4) % 2 for name in ("code", "line", "depth")}
    times = records.LineTimes(
        thread=1, codes=(code,) * 2, files={"x": "x"}, complete=True, time_ns=np.arange(4), **columns
    )
    write_line_times(rank / "stacks-0.lines.npz", times)
    (run / "trial.json").write_bytes(record(records.Trial, schema=records.TRIAL_SCHEMA))
    (run / "sweep.json").write_bytes(record(records.Sweep, schema=records.SWEEP_SCHEMA))
    return run


def watch(run: Path) -> None:
    """Read a run as `perfkit watch` does."""
    live, late = RunFollower(run), LateRank()
    live.ranks[0].poll()
    late.update(live)
    assert not UNSAFE.search(printable(live_line(live, live.ranks[0], late.now)))


class RunFolders(Reader):
    """Every file of a run folder."""

    every = 800
    #: What reads a file of a rank's folder.
    reads: dict[str, Callable[[RankFolder], object]] = {
        "changes.json": lambda rank: rank.changes,
        "limits.json": lambda rank: rank.limits,
        "lines.json": lambda rank: rank.lines,
        "syncs.json": lambda rank: rank.syncs,
        "ranges.npz": lambda rank: rank.ranges,
        "ranges-0.npz": lambda rank: rank.spans(0),
        "peak-0.json": lambda rank: rank.memory_steps(rank.folder / "peak-0.pt.trace.json.gz"),
        "stacks-0.lines.npz": lambda rank: read_line_times(rank.folder / "stacks-0.pt.trace.json.gz", rank.lost),
    }

    def __init__(self, folder: Path, real: Path | None = None) -> None:
        super().__init__(folder)
        for made in [full_run(folder), *(sorted(file.parent for file in real.rglob("run.json")) if real else ())]:
            self.add_run(made, folder / "runs" / f"fuzzed-{len(self.files)}")
        (folder / "other").mkdir()
        self.other = sound_run(folder / "other")

    def add_run(self, made: Path, run: Path) -> None:
        """Take the files of a run."""
        for file in sorted(made.rglob("*")):
            if file.is_file() and file.suffix in (".json", ".jsonl", ".npz", ".gz", ".pickle") and file.name[0] != ".":
                self.add(run / file.relative_to(made), file.read_bytes())
        if not (run / "figures.json").exists():
            diagnosis = diagnose(run)
            self.add(run / "diagnosis.json", diagnosis.to_json().encode())
            write_figures(run, figures_of(diagnosis, run, read_sources=False))
            self.add(run / "figures.json", (run / "figures.json").read_bytes())

    def read(self, file: Path, depth: int) -> None:
        run = next(folder for folder in file.parents if folder.name.startswith("fuzzed-"))
        if file.name == "diagnosis.json":
            diagnosis = Diagnosis.from_json(file.read_bytes())
            if depth == EVERYTHING:
                show(diagnosis, run)
        elif file.name == "figures.json":
            figures = read_figures(run)
            if depth == EVERYTHING:
                render_html(figures)
        elif depth == EVERYTHING:
            self.read_whole(run)
        elif file.suffix == ".gz":
            read_trace(file)
        elif file.suffix == ".pickle":
            measure_memory_snapshot(read_memory_snapshot(file))
        elif (read := self.reads.get(file.name)) is not None:
            repr(read(RankFolder(file.parent, 0)))
        elif file.parent == run and file.name != "run.json":
            opened = RunFolder(run, None, {}, [])
            repr((opened.trial, opened.sweep, opened.lost))
        else:
            opened = read_run(run)
            repr([(rank.rank, rank.steps, rank.windows, rank.lost) for rank in opened.ranks.values()])
            repr((opened.missing_ranks, opened.lost))
            if depth == ALL_VALUES:
                watch(run)

    def read_whole(self, run: Path) -> None:
        """Read a run as the commands do."""
        watch(run)
        show(diagnose(run), run)
        draw(str(run))
        for read in (lambda: compare(self.other, run), lambda: read_history(run.parent)):
            with contextlib.suppress(PerfkitError):
                assert not UNSAFE.search(read().to_json())


class Requests(Reader):
    """What a browser requests from the tab of TensorBoard; no file is mutated."""

    def __init__(self, folder: Path, real: Path | None = None) -> None:
        super().__init__(folder)
        # Only this reader needs TensorBoard.
        from werkzeug.test import Client

        from perfkit.integrations.tensorboard.tab import Tab

        logs = folder / "logs"
        logs.mkdir()
        sound_run(logs)
        (logs / "run" / "rank-0" / "window-0.pt.trace.json").write_text("{}")
        (folder / "secret").write_text("the text of a file outside")
        (logs / "link").symlink_to(folder)
        apps = Tab(SimpleNamespace(logdir=str(logs), flags=None)).get_plugin_apps()
        self.clients = {route: Client(app) for route, app in apps.items()}

    def one(self, number: int) -> None:
        rng = random.Random(number)
        parts = [
            "..",
            "/",
            "run",
            "rank-0",
            "window-0.pt.trace.json",
            "link",
            "secret",
            "%2e",
            "\\",
            "\0",
            "~",
            "\u202e",
            "run.json",
            "%",
            "?",
            "#",
            "&",
        ]
        text = "".join(rng.choice(parts) for _ in range(rng.randrange(6)))
        name = (
            quote(text, safe="/%&?#")
            if rng.random() < 0.5
            else mutate_bytes(rng, quote(text).encode()).decode("latin-1")
        )
        route = rng.choice([route for route in self.clients if route in ("/runs", "/trace", "/figures")])
        if route == "/figures" and text in ("run",):
            return  # it is drawn by a process of its own, which takes a second
        method = rng.choice(("get", "get", "get", "head", "post", "put"))
        answer = getattr(self.clients[route], method)(f"{route}?run={name}&trace={quote(rng.choice(parts))}")
        assert answer.status_code < 500, (route, name, answer.status_code)
        assert b"the text of a file outside" not in answer.data, (route, name)
