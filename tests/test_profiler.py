"""`perfkit.profile` around real torch loops: what is recorded, and that training's own outcome never changes."""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader, Dataset, TensorDataset

import perfkit
from perfkit.errors import UsageError
from perfkit.run.reading import RankFolder, read_run
from perfkit.trace import read_trace

SHORT = perfkit.schedule(wait=2, warmup=1, active=2, repeat=1)


class Training:
    """A small plain training loop."""

    def __init__(self, batches: int = 12) -> None:
        torch.manual_seed(0)
        self.loader = DataLoader(TensorDataset(torch.randn(batches * 4, 8)), batch_size=4)
        self.model = torch.nn.Linear(8, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.losses: list[float] = []

    def step(self, batch: list[torch.Tensor]) -> None:
        loss = self.model(batch[0]).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def run(self, batches: Any = None) -> list[float]:
        for batch in self.loader if batches is None else batches:
            self.step(batch)
        return self.losses


def record(folder: Path, **options: Any) -> perfkit.profile:
    return perfkit.profile(folder, quiet=True, **{"schedule": SHORT, **options})


def rank_of(folder: Path) -> RankFolder:
    return read_run(folder).ranks[0]


@pytest.fixture
def plain_losses() -> list[float]:
    return Training().run()


def test_a_loop_is_recorded_without_a_word_in_it_and_computes_the_same(
    tmp_path: Path, plain_losses: list[float]
) -> None:
    with record(tmp_path / "x", detect_syncs="auto") as prof:
        losses = Training().run()

    rows = rank_of(tmp_path / "x").steps
    assert losses == plain_losses
    assert [row.step for row in rows] == list(range(12))
    assert prof.step_num == 12
    assert all(row.samples == 4 for row in rows)


def test_steps_takes_any_iterable_and_each_iteration_is_a_step(tmp_path: Path) -> None:
    training = Training()
    batches = (batch for batch in list(training.loader))
    with record(tmp_path / "x") as prof:
        training.run(prof.steps(batches))

    assert len(rank_of(tmp_path / "x").steps) == 12


def test_steps_keeps_the_length_and_attributes_of_what_it_wraps(tmp_path: Path) -> None:
    training = Training()
    with record(tmp_path / "x") as prof:
        wrapped: Any = prof.steps(training.loader)
        assert len(wrapped) == 12
        assert wrapped.batch_size == 4


def test_a_break_closes_the_last_step(tmp_path: Path) -> None:
    training = Training()
    with record(tmp_path / "x") as prof:
        for number, batch in enumerate(prof.steps(training.loader)):
            training.step(batch)
            if number == 4:
                break

    assert len(rank_of(tmp_path / "x").steps) == 5


def test_step_by_hand_records_the_users_numbers(tmp_path: Path) -> None:
    with record(tmp_path / "x") as prof:
        for _ in range(6):
            torch.ones(3).sum()
            prof.step(samples=7, tokens=70)

    rows = rank_of(tmp_path / "x").steps
    assert [(row.samples, row.tokens) for row in rows] == [(7, 70)] * 6


def test_phases_can_be_named_by_hand(tmp_path: Path) -> None:
    with record(tmp_path / "x") as prof:
        prof.begin("checkpoint")
        prof.end("checkpoint")
        prof.step()

    assert rank_of(tmp_path / "x").steps[0].phases_ns.checkpoint is not None


def test_an_unknown_phase_is_refused_with_the_list(tmp_path: Path) -> None:
    with record(tmp_path / "x") as prof, pytest.raises(perfkit.UsageError, match="phase must be one of data, transfer"):
        prof.begin("coffee")  # type: ignore[arg-type]  # the mistake under test


def test_the_window_holds_the_steps_it_promises_under_the_runs_numbers(tmp_path: Path) -> None:
    counters.clear()  # where this process has compiled, operations are not counted
    with record(tmp_path / "x"):
        Training().run()

    rank = rank_of(tmp_path / "x")
    assert rank.rank is not None
    window = rank.rank.windows[0]
    assert (window.first_step, window.last_step, window.complete) == (3, 4, True)
    assert read_trace(rank.windows[0]).steps.number.tolist() == [3, 4]
    # Warm-up, window, and the steps after it: a pause, and those for lines, traced by line, and two whose ops are
    # counted and compared. None is timed.
    assert [row.kind for row in rank.steps[:5]] == ["timed", "timed", "warmup", "window", "window"]
    assert [row.kind for row in rank.steps[5:]][:6] == ["lines", "lines", "lines", "ops", "ops", "timed"]


def test_a_window_that_repeats_gives_a_trace_each_time(tmp_path: Path) -> None:
    with record(tmp_path / "x", schedule=perfkit.schedule(wait=1, warmup=1, active=1, repeat=3)):
        Training().run()

    assert len(rank_of(tmp_path / "x").windows) == 3


def test_a_window_in_which_the_run_ends_is_saved_and_reported(tmp_path: Path) -> None:
    with record(tmp_path / "x", schedule=perfkit.schedule(wait=8, warmup=1, active=20)) as prof:
        Training().run()

    rank = rank_of(tmp_path / "x")
    assert len(rank.windows) == 1
    assert rank.rank is not None
    assert rank.rank.windows[0].problem == "closed early: the run ended inside it"
    assert prof.diagnosis is not None
    assert any("window 0 is incomplete" in text for text in prof.diagnosis.missing)


def test_a_window_that_never_opened_is_reported_with_the_cause(tmp_path: Path) -> None:
    with record(tmp_path / "x", schedule=perfkit.schedule(wait=100, warmup=1, active=1)) as prof:
        Training().run()

    assert prof.diagnosis is not None
    assert any("no window was recorded: the run had 12 steps" in text for text in prof.diagnosis.missing)


def test_a_handler_of_torchs_gets_the_profiler_and_can_export_again(tmp_path: Path) -> None:
    handler = torch.profiler.tensorboard_trace_handler(str(tmp_path / "tb"), use_gzip=True)
    with record(tmp_path / "x", on_trace_ready=handler):
        Training().run()

    (exported,) = (tmp_path / "tb").iterdir()
    assert read_trace(exported).steps.number.tolist() == [3, 4]


def test_a_failing_handler_is_reported_and_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], plain_losses: list[float]
) -> None:
    def broken(profiler: Any) -> None:
        raise RuntimeError("handler broke")

    with record(tmp_path / "x", handlers=[broken]):
        losses = Training().run()

    assert losses == plain_losses
    assert "the trace handler broken: RuntimeError: handler broke (training goes on)" in capsys.readouterr().err
    assert len(rank_of(tmp_path / "x").windows) == 1


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", [0, 3, 5, 11])
def test_an_exception_passes_through_and_what_ran_is_on_disk(tmp_path: Path, error: BaseException, at: int) -> None:
    training = Training()
    with pytest.raises(type(error)), record(tmp_path / "x", detect_syncs="auto"):  # noqa: PT012 - the loop is the test
        for number, batch in enumerate(training.loader):
            if number == at:
                raise error
            training.step(batch)

    assert not torch.autograd._profiler_enabled()
    if at:
        rank = rank_of(tmp_path / "x")
        # The step in which it broke was not finished.
        assert [row.step for row in rank.steps] == list(range(at - 1)) or len(rank.steps) == at
        assert rank.rank is not None
        assert rank.rank.ending is not None
        assert rank.rank.ending.startswith(type(error).__name__)


def test_another_torch_profiler_stays_on_and_the_skipped_window_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with torch.profiler.profile() as theirs, record(tmp_path / "x"):
        Training().run()

    assert "another torch profiler is running" in capsys.readouterr().err
    assert rank_of(tmp_path / "x").windows == ()
    assert theirs.key_averages()


@pytest.mark.parametrize(
    ("at", "what"), [(2, "the warm-up"), (3, "the window"), (4, "the window's last step"), (6, "the step for lines")]
)
def test_a_profiler_that_the_program_starts_gets_its_events_and_ends_what_perfkit_records(
    tmp_path: Path, at: int, what: str
) -> None:
    theirs = torch.profiler.profile()
    training = Training()
    with record(tmp_path / "x") as prof:
        for number, batch in enumerate(prof.steps(training.loader)):
            if number == at:
                theirs.start()
            training.step(batch)
            if number == at + 1:
                theirs.stop()

    rank = rank_of(tmp_path / "x")
    assert [row.name for row in theirs.events()].count("aten::linear") == 2
    assert rank.rank is not None
    assert rank.rank.errors == ()
    (window,) = rank.rank.windows
    assert window.complete == (what == "the step for lines")
    if not window.complete:
        assert window.problem == "the program started a torch profiler of its own in it, which ended it"


def test_two_profiles_at_once_leave_the_first_in_charge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with record(tmp_path / "x"), record(tmp_path / "y") as inner:
        Training().run(inner.steps(Training().loader))

    assert len(rank_of(tmp_path / "x").steps) == 12
    assert not (tmp_path / "y").exists()
    assert "another profile is recording already" in capsys.readouterr().err


def test_steps_and_step_of_a_profile_that_was_never_started_say_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prof = perfkit.profile(tmp_path / "run")

    assert list(prof.steps([1, 2])) == [1, 2]
    prof.step()
    prof.step()

    shown = capsys.readouterr().err.splitlines()
    assert [line.split(" records")[0] for line in shown] == ["perfkit: steps()", "perfkit: step()"]
    assert "with perfkit.profile(...) as prof" in shown[0]
    assert not (tmp_path / "run").exists()


def test_step_inside_a_loop_over_steps_ends_no_step_and_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with perfkit.profile(tmp_path / "run", quiet=True, recorders=()) as prof:
        for _ in prof.steps(range(5)):
            prof.step(samples=3)

    assert capsys.readouterr().err.count("each iteration is a step") == 1
    rows = read_run(tmp_path / "run").ranks[0].steps
    assert [row.samples for row in rows] == [3] * 5


def test_stop_after_ends_the_program_cleanly_with_the_steps_it_was_given(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended, record(tmp_path / "x", stop_after=6, schedule=None):
        Training().run()

    rank = rank_of(tmp_path / "x")
    assert ended.value.code == 0
    assert len(rank.steps) == 6
    assert len(rank.windows) == 1
    assert rank.rank is not None
    assert rank.rank.ending == "stopped after 6 steps"


def test_a_run_is_never_mixed_with_an_older_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        with record(tmp_path / "x"):
            Training().run()

    assert len(rank_of(tmp_path / "x").steps) == len(rank_of(tmp_path / "x-2").steps) == 12
    assert "holds another run; this one is recorded into" in capsys.readouterr().err


def test_a_full_disk_is_reported_once_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], plain_losses: list[float]
) -> None:
    from perfkit.run.rank_writer import RankWriter

    def full(*anything: Any) -> None:
        raise OSError(28, "No space left on device")

    with record(tmp_path / "x"):
        monkeypatch.setattr(RankWriter, "append_steps", full)
        losses = Training().run()

    assert losses == plain_losses
    assert capsys.readouterr().err.count("No space left on device") == 1


def test_disabled_means_that_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFKIT_DISABLE", "1")
    with record(tmp_path / "x") as prof:
        training = Training()
        assert prof.steps(training.loader) is training.loader
        training.run()

    assert not (tmp_path / "x").exists()


def test_without_a_profile_steps_is_the_iterable_itself() -> None:
    items = [1, 2]

    assert perfkit.steps(items) is items
    perfkit.step()


def test_the_module_functions_act_on_the_active_profile(tmp_path: Path) -> None:
    training = Training()
    with record(tmp_path / "x"):
        training.run(perfkit.steps(training.loader))

    assert len(rank_of(tmp_path / "x").steps) == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"run": "nosuchsystem://bucket/x"}, "is not a URL that fsspec supports"),
        ({"recorders": ("coffee",)}, "recorders may hold 'kineto', .*, got 'coffee'"),
        ({"handlers": [3]}, "a handler must be callable"),
        ({"detect_syncs": "always"}, "detect_syncs must be"),
        ({"budget": 0}, "budget must be a share"),
        ({"stop_after": 0}, "stop_after must be an integer of at least 1 step, got 0"),
        ({"schedule": 3}, "schedule must be"),
    ],
)
def test_wrong_arguments_are_refused_before_the_first_step(options: dict[str, Any], message: str) -> None:
    with pytest.raises(perfkit.UsageError, match=message):
        perfkit.profile(**options)


def test_syncs_of_cuda_are_refused_where_torch_has_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(perfkit.UsageError, match="needs a torch that is built for CUDA: use 'dry'"):
        perfkit.profile(detect_syncs="cuda")


def test_a_forked_worker_writes_nothing_into_its_parents_folder(tmp_path: Path) -> None:
    training = Training()
    training.loader = DataLoader(training.loader.dataset, batch_size=4, num_workers=2, multiprocessing_context="fork")
    with record(tmp_path / "x"):
        training.run()

    rank = rank_of(tmp_path / "x")
    assert [row.step for row in rank.steps] == list(range(12))
    assert rank.rank is not None
    assert rank.rank.loaders[0].num_workers == 2


def test_lines_of_the_loop_are_known_after_the_window(tmp_path: Path) -> None:
    with record(tmp_path / "x"):
        Training().run()

    lines = rank_of(tmp_path / "x").lines
    assert lines is not None
    here = [row for row in lines.traced if row.file == __file__]
    assert any(row.function == "Training.step" and row.phase == "forward" and row.runs == 1 for row in here)
    assert any(row.loop_line is not None and row.function == "Training.run" for row in here)


def test_a_tracing_debugger_stays_on_and_lines_are_not_traced(tmp_path: Path) -> None:
    def tracer(frame: Any, event: str, arg: Any) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        with record(tmp_path / "x"):
            Training().run()
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)

    rank = rank_of(tmp_path / "x").rank
    assert rank is not None
    assert rank.notes == ("lines were not traced: a debugger or coverage tool is tracing this thread",)


@pytest.fixture(autouse=True)
def no_collection_in_the_middle() -> None:
    """Objects of earlier tests are gone before a test asks which models an optimizer trains."""
    gc.collect()


def test_a_schedule_longer_than_a_run_of_known_length_is_refused_before_the_first_step(tmp_path: Path) -> None:
    long = perfkit.schedule(wait=50, warmup=1, active=1)

    with pytest.raises(perfkit.UsageError, match="first window needs 52 steps, the run has 40"):
        perfkit.profile(tmp_path / "x", schedule=long, total_steps=40)


@pytest.mark.parametrize("explicit", [False, True])
def test_a_window_that_has_not_opened_in_the_first_epoch_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], explicit: bool
) -> None:
    training = Training()
    with perfkit.profile(tmp_path / "x", schedule=perfkit.schedule(wait=100, warmup=1, active=1)) as prof:
        for _ in range(3):
            training.run(prof.steps(training.loader) if explicit else None)

    assert capsys.readouterr().err.count("no window yet: the first epoch had 12 steps") == 1


def test_graphs_that_were_compiled_stand_in_the_step_that_compiled_them(tmp_path: Path) -> None:
    training = Training()
    training.model = torch.compile(training.model, backend="eager", dynamic=False)  # type: ignore[assignment]  # callable
    with record(tmp_path / "x") as prof:
        for number in prof.steps(range(6)):
            training.step([torch.ones(2 if number < 4 else 3, 8)])

    recompiles = [row.recompiles for row in rank_of(tmp_path / "x").steps]
    assert recompiles[0] is None or recompiles[0] >= 1
    assert recompiles[1:] == [0, 0, 0, 1, 0]


class Slow(Dataset[torch.Tensor]):
    """Takes 5 ms of processor time a sample."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> torch.Tensor:
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            sum(range(2_000))
        return torch.ones(8)


def test_the_hot_line_inside_workers_is_in_the_run_and_in_the_verdict(tmp_path: Path) -> None:
    training = Training()
    loader = DataLoader(Slow(), batch_size=4, num_workers=2)
    with record(tmp_path / "x") as prof:
        training.run([batch] for batch in loader)

    lines = rank_of(tmp_path / "x").lines
    assert lines is not None
    assert [workers.dataset for workers in lines.workers] == ["Slow"]
    assert 0 < lines.workers[0].sampling_ns < lines.workers[0].cpu_ns
    assert any(row.worker == "Slow" and row.function == "Slow.__getitem__" for row in lines.rows)
    assert prof.diagnosis is not None
    spent = prof.diagnosis.findings[0].spent
    assert spent is not None
    assert spent.function == "Slow.__getitem__"
    assert not (tmp_path / "x" / "rank-0" / "workers").exists()


def test_the_operations_of_one_step_are_counted_in_a_step_that_is_not_timed(tmp_path: Path) -> None:
    counters.clear()  # another test of this process may have compiled
    with record(tmp_path / "x", detect_syncs="auto"):
        Training(20).run()

    rank = rank_of(tmp_path / "x")
    assert rank.rank is not None
    assert rank.rank.flops is not None
    # 4 samples, 8 weights: 2 operations each forward, and as many backward for the weights.
    assert rank.rank.flops.by_precision == {"float32": 2 * 2 * 4 * 8}
    counted = next(row for row in rank.steps if row.step == rank.rank.flops.step)
    assert counted.kind == "ops"


def test_the_size_of_the_process_is_in_every_fiftieth_row(tmp_path: Path) -> None:
    with record(tmp_path / "x"):
        Training(60).run()

    assert [row.step for row in rank_of(tmp_path / "x").steps if row.rss_bytes] == [49]


def test_a_profile_that_starts_again_continues_the_same_run(tmp_path: Path) -> None:
    prof = record(tmp_path / "x", schedule=perfkit.schedule(wait=14, warmup=1, active=2, repeat=1))
    launches, endings = set(), []
    for _ in range(2):
        with prof, perfkit.range("epoch"):
            Training().run()
        rank = rank_of(tmp_path / "x")
        assert rank.rank is not None
        assert prof.diagnosis is not None
        launches.add(rank.rank.launch_id)
        endings.append((rank.rank.ending, len(rank.steps), len(rank.windows), prof.diagnosis.step is not None))

    assert [row.step for row in rank.steps] == list(range(24))
    assert endings == [("finished", 12, 0, True), ("finished", 24, 1, True)]
    assert len(launches) == 1
    assert not (tmp_path / "x-2").exists()
    assert [row.count for row in rank.ranges if row.name == "epoch"] == [2]


def test_steps_that_do_not_train_are_kept_apart_by_their_mode(tmp_path: Path) -> None:
    with record(tmp_path / "x") as prof:
        for mode in ("train", "validation", "test", "predict"):
            torch.ones(3).sum()
            prof.step(mode=mode)  # type: ignore[arg-type]  # a str that is one of the literals

    assert [row.mode for row in rank_of(tmp_path / "x").steps] == ["train", "validation", "test", "predict"]
    with prof, pytest.raises(perfkit.UsageError, match="mode must be one of train, validation, test, predict"):
        prof.step(mode="coffee")  # type: ignore[arg-type]  # the mistake under test


@pytest.mark.parametrize("torchs", [False, True])
def test_a_window_beyond_the_steps_that_are_looked_up_ahead_opens_at_its_step(tmp_path: Path, torchs: bool) -> None:
    words = torch.profiler.schedule if torchs else perfkit.schedule
    with record(tmp_path / "x", schedule=words(wait=270, warmup=1, active=1, repeat=1)) as prof:
        for _ in prof.steps(range(275)):
            torch.ones(3).sum()

    rank = rank_of(tmp_path / "x").rank
    assert rank is not None
    assert [(window.first_step, window.last_step) for window in rank.windows] == [(271, 271)]


def test_a_users_schedule_is_called_once_for_each_step_when_it_begins(tmp_path: Path) -> None:
    asked: list[int] = []

    def mine(step: int) -> torch.profiler.ProfilerAction:
        asked.append(step)
        return torch.profiler.ProfilerAction.NONE

    with record(tmp_path / "x", schedule=mine) as prof:
        for number in prof.steps(range(80)):
            assert asked[-1] == number

    assert asked == list(range(81))


def test_perfkit_records_its_own_time_and_memory(tmp_path: Path) -> None:
    with record(tmp_path / "x"):
        Training(60).run()

    rank = rank_of(tmp_path / "x").rank
    assert rank is not None
    assert rank.overhead_ns is not None
    assert rank.overhead_ns > 60 * 1_000
    assert rank.overhead_bytes is not None
    assert 1_000 < rank.overhead_bytes < 10_000_000


def test_above_its_budget_perfkit_stops_sampling_in_the_workers_too_and_reports_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfkit.run.rank_recording._REWRITE_NS", 0)
    training = Training()
    loader = DataLoader(Slow(), batch_size=4, num_workers=1)
    before = torch.utils.data._utils.worker._worker_loop
    with record(tmp_path / "x", budget=1e-9) as prof:
        for batch in prof.steps(loader):
            training.step([batch])
            time.sleep(0.1)
        assert torch.utils.data._utils.worker._worker_loop is before
        assert not (tmp_path / "x" / "rank-0" / "workers").exists()

    rank = rank_of(tmp_path / "x").rank
    assert rank is not None
    assert any("more than 0.0% of the step and stopped sampling lines" in note for note in rank.notes)


def test_logged_values_are_in_the_row_of_their_step_only(tmp_path: Path) -> None:
    with perfkit.profile(tmp_path / "run", recorders=(), quiet=True) as prof:
        for number, _ in enumerate(prof.steps(range(3))):
            if number == 1:
                prof.log(samples=4)
                prof.log(loss=0.5)

    rows = read_run(tmp_path / "run").ranks[0].steps
    assert [(row.samples, row.loss) for row in rows] == [(None, None), (4, 0.5), (None, None)]


def test_a_loss_on_a_device_is_refused_because_reading_it_would_wait(tmp_path: Path) -> None:
    with (
        perfkit.profile(tmp_path / "run", quiet=True) as prof,
        pytest.raises(UsageError, match="reading it from a device"),
    ):
        prof.log(loss=torch.zeros((), device="meta"))  # type: ignore[arg-type]  # what a user would do
