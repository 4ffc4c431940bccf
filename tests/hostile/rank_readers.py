"""Folders of several ranks as `perfkit ranks` reads them, and node metrics of DCGM, mutated; fuzzing.py runs these."""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from perfkit.diagnosis import diagnose
from perfkit.measures.gathering import measure
from perfkit.measures.ranks.observed_gpus import ObservedGpus, RankPlace, gpu_of_trace
from perfkit.ranks.diagnosing import compare_columns
from perfkit.ranks.mapping import map_rank
from perfkit.ranks.path_diagnosis import DiagnosedRanks, diagnose_sources
from perfkit.ranks.rank_columns import RankColumns
from perfkit.ranks.rank_sources import find_ranks
from perfkit.reports.figures.ranks import figures_of_ranks
from perfkit.reports.html import render_html
from perfkit.reports.ranks.markdown import write_ranks_markdown
from perfkit.reports.ranks.terminal import print_ranks, print_ranks_verdict
from perfkit.run import records
from perfkit.run.reading import read_run
from perfkit.trace.dcgm import read_node_metrics
from tests.hostile.cases import UNSAFE
from tests.hostile.readers import ALL_VALUES, EVERYTHING, IMPOSSIBLE, Reader, show
from tests.hostile.run_readers import sound_value
from tests.ranks.build import MS, late_rank_traces
from tests.trace.dcgm_texts import dmon, exposition

START_MS = 1_760_000_000_000
#: Values of a GPU, by dmon's headers and the exporter's names.
VALUES = {"SMCLK": 900, "SMMAX": 1980, "DVCCTR": 0x48, "TMPTR": 91, "POWER": 300.5, "GPUTL": 97, "FBUSD": 4000}
NAMES = {
    "DCGM_FI_DEV_SM_CLOCK": 900.0,
    "DCGM_FI_DEV_MAX_SM_CLOCK": 1980.0,
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 72.0,
    "DCGM_FI_DEV_GPU_TEMP": 91.0,
    "DCGM_FI_DEV_FB_USED": 4000.0,
    "DCGM_FI_DEV_XID_ERRORS": 31.0,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 1.0,
    "DCGM_FI_DEV_UNKNOWN": 1.0,
}
#: A rank whose reading ended in an error that is not perfkit's.
FAILED = re.compile(r"\b\w+(?:Error|Exception): ")


UUIDS = [f"{gpu:08d}-7e50-af0b-85f9-6d2b8b8d1c11" for gpu in range(4)]


def job(run: Path, ranks: int = 4, steps: int = 12) -> Path:
    """A run whose last rank computes 20 ms longer in each step, which the others wait for."""
    run.mkdir(parents=True)
    facts = records.Run(launch_id="a", command=("train.py",), folder="", world_size=ranks)
    (run / "run.json").write_bytes(msgspec.json.encode(facts))
    health = msgspec.convert(sound_value(records.NodeHealth), records.NodeHealth)
    for rank in range(ranks):
        folder, late = run / f"rank-{rank}", 20 * MS * (rank == ranks - 1)
        folder.mkdir()
        of_rank = records.Rank(
            rank=rank,
            launch_id="a",
            host="node0",
            pid=7,
            start_ns=0,
            end_ns=1,
            steps=steps,
            devices=("NVIDIA H100",),
            clock_pairs=(records.ClockPair(0, START_MS * MS), records.ClockPair(10**10, START_MS * MS + 10**10)),
            # Some GPUs are found by their UUID, others by their number.
            node=msgspec.structs.replace(health, uuid=UUIDS[rank] if rank % 2 else ""),
        )
        rows = [
            records.Step(
                step=step,
                start_ns=step * 100 * MS,
                wall_ns=100 * MS,
                phases_ns=records.Phases(data=10 * MS, forward=30 * MS + late, backward=60 * MS - late),
                waited_phases_ns=records.Waits(backward=25 * MS - late),
                tokens=512,
            )
            for step in range(steps)
        ]
        (folder / "rank.json").write_bytes(msgspec.json.encode(of_rank))
        (folder / "steps.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(rows))
    return run


def node_files(folder: Path, gpus: int = 4) -> dict[Path, bytes]:
    """The metrics of four nodes: of the first with times, which is the job's."""
    rows = [(f"GPU {n % gpus}", VALUES if n % 5 else {**VALUES, "TMPTR": None}) for n in range(12)]
    rows += [("GPU-I 0", VALUES), ("GPU 0 LINK 3", {})]
    scrapes = [(START_MS + 100 * n, dict.fromkeys(range(gpus), NAMES)) for n in range(4)]
    texts = {
        "node0.prom": exposition(scrapes, uuids=dict(enumerate(UUIDS))),
        "node1.txt": dmon(rows, header_every=8),
        "node2.prom.gz": exposition([(None, {0: NAMES})] * 3, "node2"),
        "node3.txt.gz": dmon(rows),
    }
    packed = {name: gzip.compress(text.encode()) for name, text in texts.items() if name.endswith(".gz")}
    return {folder / name: packed.get(name, text.encode()) for name, text in texts.items()}


class NodeMetricsFiles(Reader):
    """What `dcgmi dmon` prints and dcgm-exporter serves, plain and gzip, one file and a folder of them."""

    def make(self) -> None:
        self.run = job(self.folder / "run")
        self.places = [RankPlace.of_record(rank.rank) for rank in read_run(self.run).ranks.values() if rank.rank]
        for file, data in node_files(self.folder / "nodes").items():
            self.add(file, data)

    def read(self, file: Path, depth: int) -> None:
        metrics = read_node_metrics(file.parent if depth >= ALL_VALUES else file)
        health = [gpu.health() for gpu in metrics.gpus]
        shown = [*metrics.notes, *(gpu.shown for gpu in metrics.gpus)]
        records_of = msgspec.json.decode(msgspec.json.encode(health), type=list[records.NodeHealth])
        assert len(records_of) == len(metrics.gpus)
        if depth >= ALL_VALUES:
            observed = ObservedGpus(metrics, self.places)
            for rank in read_run(self.run).ranks.values():
                if rank.rank is not None:
                    observed.health_of(rank.rank, rank.steps)
            shown += observed.notes
        assert not UNSAFE.search("".join(shown))
        if depth == EVERYTHING:
            show(diagnose(measure(self.run, node_metrics=metrics)), self.run)
            gpu_of_trace(read_node_metrics(file), [0])


class Here(Executor):
    """Does each task at once, in this process, which is the one with limits."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class JobFolders(Reader):
    """A run of four ranks with its node metrics, a trace of each of four ranks, and what is kept of ranks."""

    def make(self) -> None:
        self.run, self.traces = job(self.folder / "run"), late_rank_traces(self.folder / "traces")
        self.nodes, self.kept = self.folder / "nodes", self.folder / "kept"
        for file, data in node_files(self.nodes).items():
            self.add(file, data)
        for folder in (self.run, self.traces):
            for file in sorted(one for one in folder.rglob("*") if one.is_file()):
                self.add(file, file.read_bytes())
            found = find_ranks(folder)
            for source in found.rows or found.traces:
                self.add(self.kept / f"{source.origin}-{source.rank}.rank", map_rank(source).to_bytes())

    def read(self, file: Path, depth: int) -> None:
        if file.parent == self.kept:
            RankColumns.load(file).to_bytes()
            if depth >= ALL_VALUES:
                of_kind = sorted(self.kept.glob(f"{file.name.partition('-')[0]}-*.rank"))
                compare_columns([RankColumns.load(one) for one in of_kind]).diagnosis.to_json()
            return
        sources = find_ranks(self.traces if file.parent == self.traces else self.run)
        if depth < ALL_VALUES:
            for source in (*sources.rows, *sources.traces):
                if Path(source.path) in (file, file.parent):
                    assert len(RankColumns.from_bytes(map_rank(source).to_bytes())) >= 0
            return
        metrics = read_node_metrics(self.nodes) if sources.rows else None
        found = diagnose_sources(sources, Here(), node_metrics=metrics)
        failed = [sentence for sentence in found.diagnosis.missing if FAILED.search(sentence)]
        assert not failed, failed
        if depth == EVERYTHING:
            show_ranks(found)


def show_ranks(found: DiagnosedRanks) -> None:
    """Show a diagnosis of ranks in every way, and see that nothing unsafe is shown."""
    out = io.StringIO()
    console = Console(file=out, width=120)
    print_ranks(found, console)
    print_ranks_verdict(found, console)
    write_ranks_markdown(found, out)
    out.write(found.diagnosis.to_json() + repr(found.diagnosis))
    render_html(figures_of_ranks(found))
    text = out.getvalue()
    assert not UNSAFE.search(text), "something unsafe is shown"
    impossible = IMPOSSIBLE.search(text)
    assert impossible is None, text[max(0, impossible.start() - 300) : impossible.end() + 100]
