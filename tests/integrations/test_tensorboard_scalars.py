"""log_scalars: what a training's SummaryWriter or Lightning logger is given while perfkit records."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

import perfkit
from perfkit.integrations.tensorboard import log_scalars, scalars
from perfkit.run.records import Phases, Step, StepFlops

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard.*"),
]

#: One window, of steps 4 and 5.
SCHEDULE = perfkit.schedule(wait=3, warmup=1, active=2, repeat=1)


class Notebook:
    """A SummaryWriter that a test reads; it takes what torch's and tensorboardX's take."""

    def __init__(self) -> None:
        self.scalars: dict[str, dict[int, float]] = {}
        self.texts: dict[str, str] = {}
        self.threads: set[str] = set()

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int) -> None:
        assert type(scalar_value) is float  # a tensor would be read from its device
        self.threads.add(threading.current_thread().name)
        self.scalars.setdefault(tag, {})[global_step] = scalar_value

    def add_text(self, tag: str, text: str, global_step: int) -> None:
        self.texts[tag] = text

    def flush(self) -> None:
        pass


def train(recording: Any, steps: int = 16) -> perfkit.profile:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording as prof:
        for (x,) in prof.steps(DataLoader(TensorDataset(torch.ones(2 * steps, 4)), batch_size=2)):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            prof.log(samples=2)
    assert isinstance(prof, perfkit.profile)
    return prof


def rows_of(run: Path) -> list[Step]:
    written = (run / "rank-0" / "steps.jsonl").read_bytes()
    return [msgspec.json.decode(line, type=Step) for line in written.splitlines()]


def test_each_step_outside_windows_is_a_point_and_its_phases_sum_up(tmp_path: Path) -> None:
    notebook = Notebook()
    train(log_scalars(perfkit.profile(tmp_path / "run", schedule=SCHEDULE, quiet=True), notebook))

    rows = rows_of(tmp_path / "run")
    calm = {row.step: row for row in rows if row.kind in ("timed", "dry")}
    assert notebook.scalars["perfkit/step_ms"] == {step: row.wall_ns / 1e6 for step, row in calm.items()}
    assert len(calm) < len(rows) == 16
    for step, row in calm.items():
        phases = [values[step] for name, values in notebook.scalars.items() if name.endswith("_ms") and step in values]
        assert sum(phases) == pytest.approx(2 * row.wall_ns / 1e6)  # the step, and its phases once more
        assert notebook.scalars["perfkit/samples_per_s"][step] == pytest.approx(2e9 / row.wall_ns)


def test_the_verdict_of_the_whole_run_is_written_as_text(tmp_path: Path) -> None:
    notebook = Notebook()
    prof = train(log_scalars(perfkit.profile(tmp_path / "run", schedule=SCHEDULE, quiet=True), notebook))

    assert prof.diagnosis is not None
    assert prof.diagnosis.verdict[:20] in notebook.texts["perfkit/verdict"]


def test_points_come_while_training_goes_on_and_from_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scalars, "_EVERY_S", 0.01)
    notebook = Notebook()
    with log_scalars(perfkit.profile(tmp_path / "run", recorders=(), quiet=True), notebook) as prof:
        for _ in prof.steps(range(100_000)):
            if notebook.scalars:
                break

    assert notebook.threads >= {"perfkit scalars"}


def test_torchs_summary_writer_keeps_what_tensorboard_shows(tmp_path: Path) -> None:
    writer = SummaryWriter(str(tmp_path / "tb"))
    train(log_scalars(perfkit.profile(tmp_path / "run", schedule=SCHEDULE, quiet=True), writer))
    writer.close()

    read = EventAccumulator(str(tmp_path / "tb"))
    read.Reload()
    assert {"perfkit/step_ms", "perfkit/data_ms", "perfkit/samples_per_s"} <= set(read.Tags()["scalars"])
    assert "perfkit/verdict/text_summary" in read.Tags()["tensors"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_lightning_logger_is_written_to_as_well(tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    board, table = TensorBoardLogger(str(tmp_path), name="board"), CSVLogger(str(tmp_path), name="table")
    for number, logger in enumerate((board, table)):
        train(log_scalars(perfkit.profile(tmp_path / f"run{number}", schedule=SCHEDULE, quiet=True), logger))

    read = EventAccumulator(board.log_dir)
    read.Reload()
    assert "perfkit/data_ms" in read.Tags()["scalars"]
    assert "perfkit/verdict/text_summary" in read.Tags()["tensors"]
    assert "perfkit/data_ms" in Path(table.log_dir, "metrics.csv").read_text().splitlines()[0]


def test_short_steps_are_taken_together() -> None:
    half = Phases(data=500_000)
    rows = [
        Step(step=i, start_ns=0, wall_ns=1_000_000 * (i + 1), phases_ns=half, memory_bytes=i * 2**20, syncs=2)
        for i in range(50)
    ]

    parts = scalars._parts(rows)

    assert len(parts) <= scalars._MAX_POINTS
    first = scalars._values(parts[0], None)
    assert first["perfkit/step_ms"] == 2.0  # the mean of 1, 2 and 3 ms
    assert first["perfkit/data_ms"] == 0.5
    assert first["perfkit/memory_mib"] == 2.0
    assert first["perfkit/syncs"] == 2.0
    assert "perfkit/forward_ms" not in first


def test_mfu_is_of_each_step_once_the_operations_are_counted() -> None:
    row = Step(step=0, start_ns=0, wall_ns=10_000_000, phases_ns=Phases())
    # Half of what an H100 computes in 10 ms: its dense bfloat16 peak is 989.4 TFLOP/s.
    flops = StepFlops(step=3, by_precision={"bfloat16": round(989.4e12 * 0.005)}, device="NVIDIA H100 80GB HBM3")

    assert scalars._values([row], flops)["perfkit/mfu"] == pytest.approx(0.5, rel=0.01)


def test_a_writer_that_fails_is_told_once_and_training_goes_on(tmp_path: Path) -> None:
    class Full(Notebook):
        def add_scalar(self, tag: str, scalar_value: Any, global_step: int) -> None:
            raise OSError("No space left on device")

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", perfkit.PerfkitWarning)
        prof = train(log_scalars(perfkit.profile(tmp_path / "run", schedule=SCHEDULE, quiet=True), Full()))

    assert prof.diagnosis is not None
    assert ["No space left" in str(one.message) for one in told if one.category is perfkit.PerfkitWarning] == [True]


def test_an_error_of_the_loop_passes_through_and_what_came_before_is_written(tmp_path: Path) -> None:
    notebook = Notebook()

    def fail() -> None:
        with log_scalars(perfkit.profile(tmp_path / "run", recorders=(), quiet=True), notebook) as prof:
            for i in prof.steps(range(8)):
                if i == 5:
                    raise KeyError("the user's")

    with pytest.raises(KeyError, match="the user's"):
        fail()
    assert len(notebook.scalars["perfkit/step_ms"]) >= 5


def test_a_run_that_goes_on_is_written_on(tmp_path: Path) -> None:
    class Once(Notebook):
        def add_scalar(self, tag: str, scalar_value: Any, global_step: int) -> None:
            assert global_step not in self.scalars.get(tag, {})
            super().add_scalar(tag, scalar_value, global_step)

    notebook = Once()
    recording = log_scalars(perfkit.profile(tmp_path / "run", recorders=(), quiet=True), notebook)

    for _ in range(2):
        train(recording, steps=5)

    rows = rows_of(tmp_path / "run")
    assert len(rows) == 10
    assert list(notebook.scalars["perfkit/step_ms"]) == [row.step for row in rows if row.kind not in ("lines", "ops")]


def test_what_cannot_write_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(perfkit.UsageError, match="add_scalar"):
        log_scalars(perfkit.profile(tmp_path / "run"), object())


def test_switched_off_nothing_is_recorded_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFKIT_DISABLE", "1")
    notebook = Notebook()

    train(log_scalars(perfkit.profile(tmp_path / "run", quiet=True), notebook))

    assert (notebook.scalars, notebook.texts, list(tmp_path.iterdir())) == ({}, {}, [])
