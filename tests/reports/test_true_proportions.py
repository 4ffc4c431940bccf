"""The flame graph and the lines show the proportions of steps that nothing recorded: those of the step clock."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import perfkit
from perfkit._location import Location
from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.measures.host.phase_scale import clock_phases, scale_to, scaled_paths, scaled_rows
from perfkit.measures.results.steps import TypicalStep
from perfkit.reports.figures import FigureData, figures_of
from perfkit.reports.figures.flame import flame_of_samples
from perfkit.run.records import CallPaths, LineRow, Lines, Phases

MS = 1_000_000


class Characters(Dataset[torch.Tensor]):
    """Encodes each item anew, character by character: Python that tracing makes several times as slow."""

    codes = {chr(code): code for code in range(128)}
    text = "characters of a text that is encoded anew " * 60

    def __len__(self) -> int:
        return 1600

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([self.codes.get(letter.lower(), 0) for letter in self.text], dtype=torch.float32)[:128]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Diagnosis, FigureData]:
    """A run like the demo's: a slow loader in Python, and a model."""
    folder = tmp_path_factory.mktemp("runs") / "demo-like"
    model = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with perfkit.profile(folder, quiet=True) as prof:
        for batch in prof.steps(DataLoader(Characters(), batch_size=8)):
            optimizer.zero_grad()
            for _ in range(3):
                loss = model(batch.repeat(64, 1)).pow(2).mean()
            loss.backward()
            optimizer.step()
    assert prof.diagnosis is not None
    return prof.diagnosis, figures_of(prof.diagnosis, folder)


def test_the_flame_graph_has_the_phases_of_the_step_clock(drawn: tuple[Diagnosis, FigureData]) -> None:
    diagnosis, figures = drawn
    assert diagnosis.step is not None
    assert figures.flame is not None
    flame, clock = figures.flame, clock_phases(diagnosis.step.phases_ns)
    roots = {flame.names[flame.name[i]]: i for i, parent in enumerate(flame.parent) if parent < 0}
    below: dict[int, int] = defaultdict(int)
    for i, parent in enumerate(flame.parent):
        below[parent] += flame.total[i]

    assert {name: flame.total[i] for name, i in roots.items()} == clock
    assert flame.total_ns == pytest.approx(diagnosis.step.wall_ns, rel=0.01)
    for phase, ns in clock.items():
        if ns >= 0.05 * diagnosis.step.wall_ns:
            assert below[roots[phase]] == pytest.approx(ns, rel=0.05), phase


def test_the_lines_sum_to_the_step_of_the_step_clock(drawn: tuple[Diagnosis, FigureData]) -> None:
    diagnosis, figures = drawn
    assert diagnosis.step is not None
    assert figures.lines is not None
    lines = [line for file in figures.lines.files for line in file.lines]
    loader = [line.host_ns or 0 for line in lines if line.text is not None and "self.codes.get" in line.text]

    assert sum(line.host_ns or 0 for line in lines) == pytest.approx(diagnosis.step.wall_ns, rel=0.05)
    # The loader's line is part of the data phase, whatever tracing made of it; collating is the loop's own line.
    data_ns = diagnosis.step.phases_ns.data or 0
    assert 0.4 * data_ns < sum(loader) < 1.01 * data_ns
    assert all((line.total_ns or 0) >= (line.host_ns or 0) for line in lines)


def test_the_page_says_how_many_samples_its_pictures_have(drawn: tuple[Diagnosis, FigureData]) -> None:
    _, figures = drawn
    assert figures.flame is not None
    assert figures.lines is not None

    assert figures.flame.unit == "samples"
    assert "samples of steps that nothing recorded" in figures.flame.notes[0]
    assert "on the step clock" in figures.lines.source


def test_one_number_stands_for_the_step(drawn: tuple[Diagnosis, FigureData]) -> None:
    diagnosis, figures = drawn
    assert diagnosis.step is not None
    step = next(fact.value for fact in figures.facts if fact.label == "step")

    assert "mean" not in step
    assert "median" not in step
    assert figures.bars[0].total_ns == diagnosis.step.wall_ns
    assert figures.wall_ns == diagnosis.step.wall_ns


# -- the scale


def test_a_phase_that_is_known_while_it_runs_is_scaled_by_itself() -> None:
    scale = scale_to({"data": 30 * MS, "forward": 10 * MS}, {"data": 60, "forward": 5})

    assert scale == {"data": {"data": 0.5 * MS}, "forward": {"forward": 2 * MS}}


def test_samples_of_other_that_were_a_forward_count_as_one() -> None:
    """A second forward after an optimizer step is sampled as other, until its backward starts."""
    clock = {"forward": 20 * MS, "other": 1 * MS, "backward": 9 * MS}

    scale = scale_to(clock, {"forward": 10, "other": 11, "backward": 3})  # type: ignore[arg-type]

    sums: dict[str, float] = defaultdict(float)
    for source, samples in (("forward", 10), ("other", 11), ("backward", 3)):
        for target, ns in scale[source].items():  # type: ignore[index]
            sums[target] += samples * ns
    assert sums == pytest.approx(clock)
    assert scale["forward"] == pytest.approx({"forward": MS})


def test_phases_without_samples_are_named_and_not_invented() -> None:
    lines = Lines(period_ns=10 * MS, steps=10, paths=_paths("data", 40))
    scaled = scaled_paths(lines, _step(Phases(data=30 * MS, optimizer=MS)))
    assert scaled is not None

    flame = flame_of_samples(scaled)

    assert scaled.without_samples == {"optimizer": MS}
    assert [flame.names[i] for i in flame.name] == ["data", "read data.py:3", "optimizer"]
    assert flame.total == (30 * MS, 30 * MS, MS)
    assert any("No sample was taken in optimizer" in note for note in flame.notes)


def test_what_comes_in_few_steps_is_not_drawn_as_a_part_of_the_typical_one() -> None:
    lines = Lines(period_ns=10 * MS, steps=10, paths=_paths("validation", 40, more="data"))

    scaled = scaled_paths(lines, _step(Phases(data=30 * MS)))

    assert scaled is not None
    assert scaled.outside == ["validation"]
    assert flame_of_samples(scaled).total_ns == 30 * MS


@pytest.mark.parametrize(
    "broken",
    [
        {"parent": (0, 0)},
        {"parent": (-1, 5)},
        {"frame": (0, 9)},
        {"frame": (0,)},
        {"parent": (-2, 0)},
        {"frame": (-1, 0)},
    ],
    ids=str,
)
def test_a_file_whose_call_paths_do_not_fit_together_has_none(broken: dict[str, tuple[int, ...]]) -> None:
    whole = {"frame": (0, 0), "parent": (-1, 0), "phase": ("data", "data"), "samples": (1, 2)}
    paths = msgspec.structs.replace(_paths("data", 40), **(whole | broken))

    assert scaled_paths(Lines(period_ns=MS, steps=1, paths=paths), None) is None


def test_sampled_rows_have_the_time_of_their_phase_and_workers_keep_theirs() -> None:
    def row(phase: str, samples: int, worker: str | None = None) -> LineRow:
        return LineRow(
            file="a.py",
            line=1,
            function="f",
            phase=phase,
            samples=samples,
            host_ns=7,
            worker=worker,  # type: ignore[arg-type]
        )

    rows = (row("data", 30), row("data", 10), row("data", 99, "Numbers"), row("validation", 5))
    lines = Lines(period_ns=MS, steps=1, rows=rows)

    times = [one.host_ns for one in scaled_rows(lines, _step(Phases(data=40 * MS)))]

    assert times == [30 * MS, 10 * MS, 7, 7]


def test_a_run_without_steps_is_drawn_by_the_samplers_own_time(tmp_path: Path) -> None:
    with perfkit.profile(tmp_path / "run", quiet=True, hooks=False):
        end = time.perf_counter() + 0.6
        while time.perf_counter() < end:
            sum(range(1000))
    figures = figures_of(diagnose(tmp_path / "run"), tmp_path / "run")

    assert figures.flame is not None
    assert figures.flame.steps == 0
    assert "no step was timed" in figures.flame.notes[0]
    assert figures.flame.total_ns == pytest.approx(600 * MS, rel=0.5)


def _paths(phase: str, samples: int, more: str | None = None) -> CallPaths:
    phases = (phase,) if more is None else (phase, more)
    return CallPaths(
        frames=(Location(file="data.py", line=3, function="read"),),
        frame=(0,) * len(phases), parent=(-1,) * len(phases), phase=phases, samples=(samples,) * len(phases),
    )  # type: ignore[arg-type]  # fmt: skip


def _step(phases: Phases) -> TypicalStep:
    wall_ns = sum(clock_phases(phases).values())
    return TypicalStep(
        steps=40, wall_ns=wall_ns, median_ns=wall_ns, p10_ns=wall_ns, p90_ns=wall_ns, phases_ns=phases, source="test"
    )
