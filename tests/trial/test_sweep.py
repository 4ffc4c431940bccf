"""A sweep: which values are run, what their reruns show, and which value is recommended."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfkit.commands import main
from perfkit.errors import UsageError
from perfkit.measures.memory.batch_line import fit_line
from perfkit.run.reading import read_run
from perfkit.run.records import AppliedChange, Loader, Phases, Rank, Step, Sweep, SweepPoint
from perfkit.trial.reruns import CannotTry, RerunPlan, RerunResult, TriedProgram
from perfkit.trial.sweep import Sweeping, SweepValues, parse_sweep
from perfkit.trial.sweep_results import accumulation, halves_of, noise_of, recommend, verdict_of

MS = 1_000_000


def row(number: int, ms: float = 10.0, samples: int | None = 8, elements: int | None = 80, **other: Any) -> Step:
    return Step(
        step=number, start_ns=0, wall_ns=round(ms * MS), phases_ns=Phases(), samples=samples,
        batch_elements=elements, **other,
    )  # fmt: skip


# -- what the rows of a rerun show


def test_throughput_leaves_out_the_warm_up_validation_and_steps_that_were_not_timed() -> None:
    rows = [
        row(0, 500.0),
        row(1, 100.0),
        *(row(number) for number in range(2, 6)),
        row(6, 900.0, kind="window"),
        *(row(number) for number in range(7, 10)),
        msgspec.structs.replace(row(10, 30.0), phases_ns=Phases(validation=20 * MS)),
    ]
    first, second = halves_of(rows)

    assert (first.steps, second.steps) == (4, 4)
    assert first.per_s == second.per_s == pytest.approx(800)


def test_a_smaller_last_batch_counts_with_its_samples() -> None:
    rows = [row(number, elements=80 if number % 4 else 20) for number in range(2 + 8)]
    first, second = halves_of(rows)

    assert first.amount == second.amount == 3 * 8 + 2


def test_samples_of_different_lengths_count_as_the_loaders_batch_size() -> None:
    rows = [row(number, elements=60 + number) for number in range(12)]

    assert [half.amount for half in halves_of(rows)] == [40, 40]


def test_steps_are_counted_where_the_samples_are_not_known() -> None:
    rows = [row(number, samples=None) for number in range(12)]

    assert [half.amount for half in halves_of(rows)] == [5, 5]


def test_too_few_steps_have_no_throughput() -> None:
    assert halves_of([row(number) for number in range(7)]) == []


def test_the_memory_line_is_fitted_by_least_squares_with_its_largest_deviation() -> None:
    line = fit_line({8: 1080, 16: 1160, 32: 1320})
    assert line is not None
    assert (line.fixed_bytes, line.bytes_per_sample, line.points) == (1000, 10, 3)
    assert line.deviation == pytest.approx(0, abs=1e-9)
    assert line.at(64) == 1640

    bent = fit_line({1: 100, 2: 100, 3: 130})
    assert bent is not None
    # By hand: slope 15, and 80 + 15 * batch is 95, 110, 125.
    assert (bent.fixed_bytes, bent.bytes_per_sample) == (80, 15)
    assert bent.deviation == pytest.approx(10 / 100)


def test_two_points_are_no_line() -> None:
    assert fit_line({8: 1080, 16: 1160}) is None


def point(value: int, per_s: float, left: int | None = 500, **other: Any) -> SweepPoint:
    return SweepPoint(value=value, per_s=per_s, left_bytes=left, **other)


def test_the_smallest_batch_within_five_percent_of_the_best_is_recommended() -> None:
    points = [point(8, 500), point(16, 900), point(32, 955), point(64, 1000), point(128, 990)]

    assert recommend(points, 1000) is points[2]
    assert recommend([point(8, 949), point(16, 1000)], 1000) == point(16, 1000)


def test_a_batch_that_leaves_less_than_a_tenth_of_the_memory_is_not_recommended() -> None:
    points = [point(16, 500, left=400), point(32, 900, left=100), point(64, 2000, left=99)]

    assert recommend(points, 1000) is points[1]
    assert recommend([point(16, 500, left=10)], 1000) is None
    assert recommend([point(16, 500, left=None)], None) == point(16, 500, left=None)


def test_accumulation_keeps_the_effective_batch_where_it_divides_it() -> None:
    assert [accumulation(32, chosen) for chosen in (8, 16, 32, 64, 12)] == [4, 2, 1, None, None]


def test_noise_is_half_of_what_the_halves_of_a_value_differ_by() -> None:
    points = [point(8, 100, low=99, high=101), point(16, 200, low=170, high=210), SweepPoint(value=32)]

    assert noise_of(points) == pytest.approx(0.1)
    assert noise_of([]) == 0.0


# -- which values are run


class Program:
    """What reruns would find: a step takes 10 ms and 0.1 ms per sample, and memory grows by 1 MB per sample."""

    def __init__(self, folder: Path, **facts: Any) -> None:
        self.folder = folder
        self.now = 0.0
        self.started: list[str] = []
        self.own, self.workers = 32, 0
        self.total, self.device, self.rerun_s = 10_000 * 10**6, True, 10.0
        self.out_of_memory_above = 10**9
        self.samples = 10**9
        self.by_hand = False
        self.failing: tuple[int, ...] = ()
        self.per_step = 10.0
        self.slower = 0.0
        for name, value in facts.items():
            setattr(self, name, value)

    @contextmanager
    def start(self, program: TriedProgram, plan: RerunPlan, workspace: Path) -> Iterator[Any]:
        """In place of `start_rerun`."""
        self.started.append(", ".join(plan.changes))
        self.plan = plan
        yield self

    def wait(self, limit_s: float) -> RerunResult:
        """The result of the rerun that was started last."""
        self.now += self.rerun_s
        changed = self.plan.changes[0].partition("=") if self.plan.changes else ("", "", "")
        given = int(changed[2]) if changed[2] else None
        batch = given if changed[0] == "batch-size" and given is not None and not self.by_hand else self.own
        workers = given if changed[0] == "workers" and given is not None else self.workers
        ending: Any = "out-of-memory" if batch > self.out_of_memory_above else "failed" if given in self.failing else ""
        held = min(batch, self.samples)
        ms = self.per_step + 0.1 * held + 20 / (1 + workers)
        steps = 0 if ending else self.plan.steps
        # A machine on which each rerun is slower than the one before.
        ms *= 1 + self.slower * len(self.started)
        rows = [row(number, ms, None if self.by_hand else batch, held * 10) for number in range(steps)]
        folder = self.folder / f"run-{len(self.started)}"
        rank = folder / "rank-0"
        rank.mkdir(parents=True)
        (rank / "steps.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in rows))
        loader = Loader(
            dataset="D", batch_size=batch, num_workers=workers, pin_memory=False, prefetch_factor=None,
            persistent_workers=False,
        )  # fmt: skip
        facts = Rank(
            rank=0, launch_id="", host="", pid=1, start_ns=0, loaders=(loader,),
            settings={"cuda:0.total_bytes" if self.device else "memory_bytes": str(self.total)},
        )  # fmt: skip
        (rank / "rank.json").write_bytes(msgspec.json.encode(facts))
        peak = (1000 + batch) * 10**6
        return RerunResult(
            ending=ending or "stopped",
            message=ending or "stopped after its steps",
            folder=folder,
            steps=steps,
            losses=(),
            applied=tuple(AppliedChange(change=one, count=int(not self.by_hand)) for one in self.plan.changes),
            peak_bytes=peak,
            peak_device_bytes=peak if self.device else None,
        )


@pytest.fixture
def swept(tmp_path: Path) -> Callable[..., tuple[Sweep, list[str]]]:
    """Sweep a program of these facts: the result, and the changes of each rerun."""

    def sweep(asked: str = "batch-size", budget_s: float = 10_000.0, **facts: Any) -> tuple[Sweep, list[str]]:
        program = Program(Path(tempfile.mkdtemp(dir=tmp_path)), **facts)
        sweeping = Sweeping(
            TriedProgram("train.py"), tmp_path, steps=40, budget_s=budget_s, start=program.start,
            clock=lambda: program.now,
        )  # fmt: skip
        return sweeping.run(parse_sweep(asked)), program.started

    return sweep


def test_batches_are_doubled_until_they_are_no_faster_and_measured_again_downwards(
    swept: Callable[..., tuple[Sweep, list[str]]],
) -> None:
    sweep, started = swept()

    sizes = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
    upwards = ["", *(f"batch-size={size}" for size in sizes if size != 32)]
    assert started == [*upwards, *(f"batch-size={size}" if size != 32 else "" for size in reversed(sizes))]
    assert [one.value for one in sweep.points] == sizes
    assert {one.reruns for one in sweep.points} == {2}
    point = sweep.points[2]
    assert point.step_ns == pytest.approx(36.4 * MS)
    assert point.per_s == point.low == point.high == pytest.approx(64 / 0.0364)
    assert sweep.line is not None
    assert (sweep.line.fixed_bytes, sweep.line.bytes_per_sample) == (1000 * 10**6, 10**6)
    assert sweep.notes == ()


def test_running_out_of_memory_is_a_result_and_ends_the_climb(
    swept: Callable[..., tuple[Sweep, list[str]]],
) -> None:
    sweep, started = swept(out_of_memory_above=300)

    assert [(one.value, one.outcome) for one in sweep.points] == [
        (16, "measured"), (32, "measured"), (64, "measured"), (128, "measured"), (256, "measured"),
        (512, "out-of-memory"),
    ]  # fmt: skip
    assert started.count("batch-size=512") == 1
    assert sweep.recommended == 256
    assert sweep.accumulate is None
    assert "The effective batch becomes 8 times as large" in sweep.verdict


def test_a_batch_that_leaves_no_reserve_is_reported_and_not_recommended(
    swept: Callable[..., tuple[Sweep, list[str]]],
) -> None:
    sweep, _ = swept("batch-size=32,64,128", total=1250 * 10**6)

    last = sweep.points[-1]
    assert (last.left_bytes, last.note) == (122 * 10**6, "leaves less than 10% of 1.2 GB")
    assert (sweep.memory, sweep.recommended) == ("device", 64)


def test_a_smaller_batch_comes_with_the_accumulation_that_keeps_the_effective_one(
    swept: Callable[..., tuple[Sweep, list[str]]],
) -> None:
    sweep, started = swept("batch-size=256,64,128", own=4096, per_step=-19.0)

    assert started[:4] == ["", "batch-size=64", "batch-size=128", "batch-size=256"]
    assert (sweep.recommended, sweep.accumulate) == (256, 16)
    assert "Accumulating gradients over 16 steps keeps the effective batch of 4096." in sweep.verdict


def test_a_machine_without_a_device_is_not_made_to_swap(swept: Callable[..., tuple[Sweep, list[str]]]) -> None:
    sweep, started = swept(device=False, total=1300 * 10**6)

    assert sweep.memory == "resident"
    assert [one.value for one in sweep.points] == [16, 32, 64, 128, 256]
    assert (sweep.points[-1].outcome, sweep.points[-1].note) == (
        "not-tried",
        "it would need about 1.3 GB of 1.3 GB",
    )
    assert "batch-size=256" not in started


def test_a_batch_larger_than_the_data_ends_the_climb(swept: Callable[..., tuple[Sweep, list[str]]]) -> None:
    sweep, _ = swept(samples=100)

    assert [(one.value, one.outcome) for one in sweep.points][-2:] == [(64, "measured"), (128, "not-full")]
    assert sweep.points[-1].per_s is None


def test_values_that_fail_are_reported_and_the_others_are_measured(
    swept: Callable[..., tuple[Sweep, list[str]]],
) -> None:
    sweep, _ = swept("workers=0,2,4", failing=(2,))

    assert [(one.value, one.outcome) for one in sweep.points] == [(0, "measured"), (2, "failed"), (4, "measured")]
    assert (sweep.own, sweep.recommended, sweep.line) == (0, 4, None)
    assert sweep.verdict == "workers=4 is the fastest with 1,860 samples/s; 964 with the program's own 0."


def test_a_program_that_builds_its_batches_by_hand_gets_an_error(
    swept: Callable[..., tuple[Sweep, list[str]]],
) -> None:
    with pytest.raises(CannotTry, match="read its batches from a DataLoader with a batch_size"):
        swept(by_hand=True)


def test_a_program_that_fails_unchanged_gets_an_error(swept: Callable[..., tuple[Sweep, list[str]]]) -> None:
    with pytest.raises(CannotTry, match="the unchanged program must run before a change is tried: out-of-memory"):
        swept(out_of_memory_above=4)


def test_a_machine_that_becomes_slower_does_so_to_all_values_and_noise_is_named(
    swept: Callable[..., tuple[Sweep, list[str]]],
) -> None:
    quiet, _ = swept("batch-size=64,128,256", slower=0.001)
    loud, _ = swept("batch-size=64,128,256", slower=0.05)

    assert quiet.notes == ()
    assert loud.notes[0].startswith("The throughput of one value varied by 1")
    ratios = [late.per_s / early.per_s for late, early in zip(loud.points, quiet.points, strict=True)]
    # One after the other, the last value would be measured 15 % slower than the first.
    assert max(ratios) / min(ratios) < 1.03


def test_what_the_budget_has_no_time_for_is_named(swept: Callable[..., tuple[Sweep, list[str]]]) -> None:
    sweep, started = swept("batch-size=64,128", budget_s=25)

    assert started == ["", "batch-size=64"]
    assert (sweep.points[-1].outcome, sweep.points[-1].note) == ("not-tried", "the budget had no time for it")
    assert sweep.notes == ("The budget had no time to measure each value twice.",)


# -- what a user writes


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("batch-size", SweepValues("batch-size")),
        ("batch-size=64,16, 32,16", SweepValues("batch-size", (16, 32, 64))),
        ("workers=0,4", SweepValues("workers", (0, 4))),
    ],
)
def test_a_sweep_is_named_with_or_without_values(text: str, asked: SweepValues) -> None:
    assert parse_sweep(text) == asked


@pytest.mark.parametrize("text", ["tf32", "", "batch-size=", "batch-size=0", "workers=many", "batch_size=3"])
def test_another_sweep_is_an_error_that_shows_how_it_is_written(text: str) -> None:
    with pytest.raises(UsageError, match=r"--sweep must name batch-size or workers|must have a whole number"):
        parse_sweep(text)


def test_the_verdict_says_what_the_programs_own_batch_reaches() -> None:
    points = (point(16, 900), point(32, 980), point(64, 1000))
    sweep = Sweep(program="train.py", verdict="", own=32, points=points, reserve=0.1, recommended=32, accumulate=1)

    assert verdict_of(sweep) == (
        "batch-size=32 is the smallest within 5% of the best throughput: 980 samples/s, and 1,000 with 64. "
        "The program has this value already."
    )
    none = msgspec.structs.replace(sweep, recommended=None)
    assert verdict_of(none) == "No batch-size that was measured leaves 10% of the memory."


# -- real programs

TRAIN = """
import sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(20_000, 4), torch.randn(20_000, 1))
for inputs, targets in DataLoader(data, batch_size=8):
    if len(inputs) > 128:
        raise MemoryError("no more than 128")
    time.sleep(0.01 + 0.0002 * len(inputs))
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
"""
BY_HAND = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
"""


def sweep_of(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str, asked: str) -> Sweep:
    user = folder / "user"
    user.mkdir()
    monkeypatch.chdir(user)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (user / "train.py").write_text(source)
    return Sweeping(TriedProgram("train.py"), folder / "space", steps=30, budget_s=240).run(parse_sweep(asked))


@pytest.mark.slow
def test_a_real_program_becomes_faster_with_its_batch_until_it_has_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfkit.trial.sweep._MEASURED_NS", 1e9)
    sweep = sweep_of(tmp_path, monkeypatch, TRAIN, "batch-size=8,32,128,256,512")

    assert [(one.value, one.outcome) for one in sweep.points] == [
        (8, "measured"), (32, "measured"), (128, "measured"), (256, "out-of-memory"), (512, "not-tried"),
    ]  # fmt: skip
    small, middle, large = (one.per_s or 0.0 for one in sweep.points[:3])
    # The sleeps alone: 690, 1950 and 3600 samples per second; they are never shorter.
    assert small < 700
    assert middle < 1960
    assert large < 3610
    assert 1.5 < middle / small < 3.5
    assert 1.2 < large / middle < 2.5
    assert sweep.points[3].note.startswith("MemoryError: no more than 128")
    assert (sweep.own, sweep.recommended, sweep.memory) == (8, 128, "resident")
    assert sweep.line is not None
    assert sweep.line.fixed_bytes > 100e6


@pytest.mark.slow
def test_a_real_program_without_a_loader_gets_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotTry, match="builds them by hand"):
        sweep_of(tmp_path, monkeypatch, BY_HAND, "batch-size")


@pytest.mark.slow
def test_the_command_keeps_its_result_in_a_run_folder_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("perfkit.trial.sweep._MEASURED_NS", 1e8)
    (tmp_path / "train.py").write_text(TRAIN)

    assert main(["try", "--sweep", "batch-size=4", "--steps", "20", "--json", "train.py"]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    kept = read_run(folder).sweep
    assert kept is not None
    assert [(one.value, one.reruns) for one in kept.points] == [(4, 2), (8, 2)]
    assert msgspec.json.decode(capsys.readouterr().out, type=Sweep) == kept


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sweep", "lr"], "--sweep must name batch-size or workers"),
        (["--sweep", "workers", "--only", "tf32"], "leave out --only, --all and --emit"),
        (["--sweep", "workers", "--run", "nowhere"], "nowhere holds no run"),
    ],
)
def test_a_sweep_that_cannot_be_is_an_error_before_anything_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit(3)")

    assert main(["try", *options, "train.py"]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
