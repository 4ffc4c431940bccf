"""ProfilerCallback in real Trainers of both names of Lightning, with planted sleeps."""

from __future__ import annotations

import importlib
import pickle
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import perfkit
from perfkit.integrations import lightning as adapter
from perfkit.integrations.lightning import phase_of
from perfkit.run.records import PHASES, Rank, Step

pytestmark = [
    # Lightning advises on workers, loggers and step counts of runs that are as small as these are meant to be.
    pytest.mark.filterwarnings("ignore::UserWarning:lightning.*"),
    pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning.*"),
    # Lightning's own use of what torch and others have deprecated.
    pytest.mark.filterwarnings("ignore::FutureWarning:lightning.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pytorch_lightning.*"),
    # torch says once per process that a window's events are cleared at its end, which is what perfkit wants.
    pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning"),
]

NAMESPACES = ("lightning.pytorch", "pytorch_lightning")

#: Planted per step, seconds.
PLANTED = {"data": 0.020, "forward": 0.010, "backward": 0.006, "optimizer": 0.008, "callbacks": 0.009}


class Rows(Dataset[torch.Tensor]):
    def __init__(self, size: int, seconds: float = 0.0) -> None:
        self.size = size
        self.seconds = seconds

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.ones(4)


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.ones(4)] * 5)


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        time.sleep(PLANTED["backward"])
        return grad


class SlowSGD(torch.optim.SGD):
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss = super().step(closure)
        time.sleep(PLANTED["optimizer"])
        return loss


@pytest.fixture(params=NAMESPACES)
def framework(request: pytest.FixtureRequest) -> Any:
    return importlib.import_module(request.param)


@pytest.fixture
def one_framework() -> Any:
    """One of the two, for what does not depend on the namespace."""
    return importlib.import_module("lightning.pytorch")


def tiny(framework: Any, **methods: Any) -> Any:
    """A model that trains one weight; ``methods`` replace its own."""

    class Tiny(framework.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch).sum()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.layer(batch)

        test_step = predict_step = validation_step

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return type("Tiny", (Tiny,), methods)()


def planted(framework: Any, *, manual: bool) -> Any:
    def loss_of(model: Any, batch: Any) -> Any:
        time.sleep(PLANTED["forward"])
        return SlowBackward.apply(model.layer(batch)).sum()

    def manual_step(model: Any, batch: Any, batch_idx: int) -> None:
        loss = loss_of(model, batch)
        model.optimizers().zero_grad()
        model.manual_backward(loss)
        model.optimizers().step()

    return tiny(
        framework,
        automatic_optimization=not manual,
        training_step=manual_step if manual else lambda model, batch, batch_idx: loss_of(model, batch),
        configure_optimizers=lambda model: SlowSGD(model.parameters(), lr=0.1),
    )


def slow_callback(framework: Any) -> Any:
    def on_train_batch_end(*_: Any) -> None:
        time.sleep(PLANTED["callbacks"])

    return type("Slow", (framework.Callback,), {"on_train_batch_end": on_train_batch_end})()


def trainer_with(framework: Any, callbacks: list[Any], tmp_path: Path, **options: Any) -> Any:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    settings = {"enable_checkpointing": False, "max_epochs": 1, "default_root_dir": tmp_path, **quiet, **options}
    return framework.Trainer(callbacks=callbacks, **settings)


def callback(tmp_path: Path, **options: Any) -> Any:
    return adapter.ProfilerCallback(tmp_path / "run", quiet=True, **{"recorders": (), **options})


def batches(count: int, seconds: float = 0.0) -> DataLoader[torch.Tensor]:
    return DataLoader(Rows(count, seconds))


def rows_of(prof: Any) -> list[Step]:
    return msgspec.json.Decoder(Step).decode_lines((prof.profile.folder / "rank-0" / "steps.jsonl").read_bytes())


def rank_of(prof: Any) -> Rank:
    return msgspec.json.decode((prof.profile.folder / "rank-0" / "rank.json").read_bytes(), type=Rank)


def median(rows: list[Step], phase: str) -> float:
    return statistics.median(getattr(row.phases_ns, phase) for row in rows)


def low(rows: list[Step], phase: str) -> float:
    """The lower quartile."""
    return statistics.quantiles((getattr(row.phases_ns, phase) for row in rows), n=4)[0]


def assert_put_back(trainer: Any) -> None:
    assert not {"start", "stop"} & set(vars(trainer.profiler))
    assert not torch.autograd._profiler_enabled()


# -- phases


@pytest.mark.parametrize("manual", [False, True], ids=["automatic", "manual"])
def test_phases_have_the_proportions_of_what_was_planted(framework: Any, manual: bool, tmp_path: Path) -> None:
    prof = callback(tmp_path)
    trainer = trainer_with(framework, [slow_callback(framework), prof], tmp_path)

    trainer.fit(planted(framework, manual=manual), batches(18, PLANTED["data"]))

    rows = rows_of(prof)[2:]
    # A busy machine only ever makes a sleep longer, so the faster half of the steps says what was planted.
    measured = {phase: low(rows, phase) for phase in PLANTED}
    for phase, seconds in PLANTED.items():
        share = measured[phase] / sum(measured.values())
        assert share == pytest.approx(seconds / sum(PLANTED.values()), rel=0.15), (phase, measured)
    # What is left is the Trainer's own work: small beside 53 planted milliseconds.
    rest = sum(low(rows, phase) for phase in PHASES if phase not in PLANTED)
    assert rest < 0.15 * sum(measured.values())


def test_the_phases_of_every_step_sum_to_its_wall_time(framework: Any, tmp_path: Path) -> None:
    prof = callback(tmp_path)
    trainer = trainer_with(framework, [prof], tmp_path, val_check_interval=3, max_epochs=2)

    trainer.fit(tiny(framework), batches(6), batches(2))

    rows = rows_of(prof)
    assert [row.step for row in rows] == list(range(12))
    for row in rows:
        times = [getattr(row.phases_ns, phase) for phase in PHASES]
        assert None not in times  # a Trainer can tell all phases
        assert sum(times) == row.wall_ns


def test_accumulation_books_the_optimizer_to_the_batch_that_steps(one_framework: Any, tmp_path: Path) -> None:
    prof = callback(tmp_path)
    trainer = trainer_with(one_framework, [prof], tmp_path, accumulate_grad_batches=2)

    trainer.fit(planted(one_framework, manual=False), batches(8))

    rows = rows_of(prof)
    assert len(rows) == 8
    assert median(rows[1::2], "optimizer") > 5 * median(rows[0::2], "optimizer")
    assert median(rows[0::2], "backward") == pytest.approx(median(rows[1::2], "backward"), rel=0.5)


def test_validation_inside_the_epoch_is_one_phase_of_its_step_and_the_sanity_check_none(
    one_framework: Any, tmp_path: Path
) -> None:
    prof = callback(tmp_path)
    trainer = trainer_with(one_framework, [prof], tmp_path, val_check_interval=3, num_sanity_val_steps=2)

    trainer.fit(tiny(one_framework), batches(9), batches(2, 0.010))

    rows = rows_of(prof)
    assert [row.step for row in rows if row.phases_ns.validation] == [2, 5, 8]
    assert len(rows) == 9
    assert sorted(loader.role for loader in rank_of(prof).loaders) == ["train", "validation"]
    # The waits for validation batches are validation, not data.
    assert median(rows[2::3], "validation") > 2 * median(rows[2::3], "data")


def test_logging_and_checkpoints_are_kept_apart_from_callbacks(one_framework: Any, tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger

    class SlowLogger(CSVLogger):
        def log_metrics(self, metrics: Any, step: Any = None) -> None:
            time.sleep(0.020)

    def save(callback: Any, trainer: Any, *_: Any) -> None:
        trainer.save_checkpoint(tmp_path / "last.ckpt")

    model = tiny(
        one_framework,
        training_step=lambda model, batch, batch_idx: (loss := model.layer(batch).sum(), model.log("loss", loss))[0],
        on_save_checkpoint=lambda model, checkpoint: time.sleep(0.030),
    )
    saving = type("Saving", (one_framework.Callback,), {"on_train_batch_end": save})()
    prof = callback(tmp_path)
    logger = SlowLogger(tmp_path)
    trainer = trainer_with(one_framework, [saving, prof], tmp_path, logger=logger, log_every_n_steps=1)

    trainer.fit(model, batches(6))

    rows = rows_of(prof)
    assert 1 < median(rows, "checkpoint") / median(rows, "logging") < 2.2
    assert median(rows, "callbacks") < 0.3 * median(rows, "logging")
    assert not {"log_metrics", "save"} & set(vars(logger))


def test_actions_of_the_users_own_belong_to_the_phase_they_happen_in(one_framework: Any, tmp_path: Path) -> None:
    def step_in_parts(model: Any, batch: Any, batch_idx: int) -> Any:
        with model.trainer.profiler.profile("embed"):
            time.sleep(0.010)
        return model.layer(batch).sum()

    prof = callback(tmp_path)
    trainer_with(one_framework, [prof], tmp_path).fit(tiny(one_framework, training_step=step_in_parts), batches(6))

    assert median(rows_of(prof), "forward") > 5 * median(rows_of(prof), "other")


def test_actions_that_never_end_or_never_began_leave_the_other_phases_right(one_framework: Any, tmp_path: Path) -> None:
    def careless_step(model: Any, batch: Any, batch_idx: int) -> Any:
        model.trainer.profiler.start("[LightningModule]Tiny.left_open")
        model.trainer.profiler.stop("never begun")
        return SlowBackward.apply(model.layer(batch)).sum()

    prof = callback(tmp_path)
    trainer_with(one_framework, [prof], tmp_path).fit(tiny(one_framework, training_step=careless_step), batches(6))

    rows = rows_of(prof)
    assert len(rows) == 6
    assert median(rows, "backward") > 0.5 * statistics.median(row.wall_ns for row in rows)


# -- which batches are steps


@pytest.mark.parametrize(
    ("methods", "loader", "steps"),
    [
        pytest.param({"training_step": lambda *_: None}, batches(5), 5, id="training_step gives None"),
        pytest.param({}, DataLoader(Stream()), 5, id="IterableDataset"),
        pytest.param(
            {"on_train_batch_start": lambda model, batch, batch_idx: -1 if batch_idx == 3 else None},
            batches(5),
            3,
            id="the rest of the epoch is skipped",
        ),
        pytest.param(
            {
                "training_step": lambda model, dataloader_iter: model.layer(next(dataloader_iter)[0]).sum(),
                # Lightning finds this form by the argument's name, and wants the batch in no other hook.
                "on_train_batch_start": lambda model, batch, batch_idx: None,
            },
            batches(5),
            5,
            id="training_step takes the iterator",
        ),
    ],
)
def test_a_finished_batch_is_a_step(
    one_framework: Any, methods: dict[str, Any], loader: Any, steps: int, tmp_path: Path
) -> None:
    prof = callback(tmp_path)

    trainer_with(one_framework, [prof], tmp_path).fit(tiny(one_framework, **methods), loader)

    assert len(rows_of(prof)) == steps


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_an_evaluation_alone_is_recorded_batch_by_batch(framework: Any, stage: str, tmp_path: Path) -> None:
    prof = callback(tmp_path)
    trainer = trainer_with(framework, [prof], tmp_path)

    getattr(trainer, stage)(tiny(framework), batches(6, 0.010))

    rows = rows_of(prof)
    assert len(rows) == 6
    assert all(row.phases_ns.validation for row in rows)
    assert median(rows, "data") > median(rows, "validation")
    assert_put_back(trainer)


# -- life


def test_the_second_fit_of_one_callback_is_recorded_too(one_framework: Any, tmp_path: Path) -> None:
    prof = callback(tmp_path)
    lengths = []

    for size in (4, 7):
        trainer = trainer_with(one_framework, [prof], tmp_path)
        trainer.fit(tiny(one_framework), batches(size))
        lengths.append(len(rows_of(prof)))
        assert_put_back(trainer)

    assert lengths == [4, 7]


@pytest.mark.parametrize(
    ("error", "seen"), [(ValueError("planted"), ValueError), (KeyboardInterrupt(), SystemExit)], ids=["error", "Ctrl-C"]
)
def test_an_exception_passes_through_and_keeps_the_steps_until_then(
    one_framework: Any, error: BaseException, seen: type[BaseException], tmp_path: Path
) -> None:
    def fail_at_four(model: Any, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 4:
            raise error
        return model.layer(batch).sum()

    prof = callback(tmp_path, schedule=perfkit.schedule(wait=2, warmup=0, active=10), recorders=("kineto",))
    trainer = trainer_with(one_framework, [prof], tmp_path)
    interrupt = signal.getsignal(signal.SIGINT)  # Lightning leaves it ignored after a Ctrl-C

    try:
        with pytest.raises(seen):
            trainer.fit(tiny(one_framework, training_step=fail_at_four), batches(8))
    finally:
        signal.signal(signal.SIGINT, interrupt)

    assert [row.step for row in rows_of(prof)] == [0, 1, 2, 3]
    assert rank_of(prof).ending.startswith(type(error).__name__)
    assert [window.file for window in rank_of(prof).windows] == ["window-0.pt.trace.json.gz"]
    assert_put_back(trainer)


def test_windows_hold_the_steps_that_rows_have_the_same_number_for(one_framework: Any, tmp_path: Path) -> None:
    schedule = perfkit.schedule(wait=2, warmup=1, active=2, repeat=2)
    prof = callback(tmp_path, schedule=schedule, recorders=("kineto",))

    trainer_with(one_framework, [prof], tmp_path, max_epochs=2).fit(tiny(one_framework), batches(7))

    windows = [(window.first_step, window.last_step) for window in rank_of(prof).windows]
    assert windows == [(3, 4), (8, 9)]
    trace = perfkit.diagnose(prof.profile.folder / "rank-0" / "window-0.pt.trace.json.gz")
    assert trace.step.steps == 2
    assert trace.step.phases_ns.data is not None


def test_syncs_in_the_users_hooks_are_found_by_the_dry_run(one_framework: Any, tmp_path: Path) -> None:
    def step_that_reads(model: Any, batch: Any, batch_idx: int) -> Any:
        loss = model.layer(batch).sum()
        loss.item()
        return loss

    schedule = perfkit.schedule(wait=1, warmup=1, active=1, repeat=1)
    prof = callback(tmp_path, schedule=schedule, recorders=("kineto",), detect_syncs="dry")

    trainer_with(one_framework, [prof], tmp_path).fit(tiny(one_framework, training_step=step_that_reads), batches(10))

    found = [f for f in prof.profile.diagnosis.findings if f.rule == "sync-in-step" and f.file == __file__]
    assert [finding.line for finding in found] == [step_that_reads.__code__.co_firstlineno + 2]


def test_stop_after_ends_the_program_cleanly(one_framework: Any, tmp_path: Path) -> None:
    prof = callback(tmp_path, stop_after=3)
    trainer = trainer_with(one_framework, [prof], tmp_path)

    with pytest.raises(SystemExit) as ended:
        trainer.fit(tiny(one_framework), batches(8))

    assert ended.value.code == 0
    assert len(rows_of(prof)) == 3
    assert rank_of(prof).ending == "stopped after 3 steps"
    assert_put_back(trainer)


def test_the_verdict_is_printed_at_the_end_and_kept_as_data(
    one_framework: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prof = adapter.ProfilerCallback(tmp_path / "run", recorders=())

    trainer_with(one_framework, [prof], tmp_path).fit(tiny(one_framework), batches(8, 0.010))

    assert prof.profile.diagnosis.phases.data > 0
    assert "input-bound" in capsys.readouterr().err
    assert (tmp_path / "run" / "diagnosis.json").is_file()


def test_switched_off_nothing_is_patched_or_written(
    one_framework: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFKIT_DISABLE", "1")
    patched = []

    def look(callback: Any, trainer: Any, *_: Any) -> None:
        patched.append("start" in vars(trainer.profiler))

    looking = type("Looking", (one_framework.Callback,), {"on_train_batch_end": look})()
    trainer_with(one_framework, [callback(tmp_path), looking], tmp_path).fit(tiny(one_framework), batches(2))

    assert patched == [False, False]
    assert not (tmp_path / "run").exists()


# -- beside the Trainer's own


def test_the_users_profiler_goes_on_as_it_was(framework: Any, tmp_path: Path) -> None:
    prof = callback(tmp_path)
    trainer = trainer_with(framework, [prof], tmp_path, profiler="simple")

    trainer.fit(tiny(framework), batches(5))

    assert len(trainer.profiler.recorded_durations["run_training_batch"]) == 5
    assert len(rows_of(prof)) == 5
    assert_put_back(trainer)


def test_beside_a_pytorch_profiler_windows_are_skipped_and_that_is_said(
    one_framework: Any, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    schedule = perfkit.schedule(wait=1, warmup=0, active=2)
    prof = callback(tmp_path, schedule=schedule, recorders=("kineto",))
    trainer = trainer_with(one_framework, [prof], tmp_path, profiler="pytorch")

    trainer.fit(tiny(one_framework), batches(9))

    assert "PyTorchProfiler" in str(recwarn.pop(perfkit.PerfkitWarning).message)
    assert len(rows_of(prof)) == 9
    assert not list((tmp_path / "run").rglob("*.pt.trace.json.gz"))
    assert_put_back(trainer)


def test_checkpoints_hold_nothing_of_the_callback(one_framework: Any, tmp_path: Path) -> None:
    trainer = trainer_with(one_framework, [callback(tmp_path)], tmp_path)
    trainer.fit(tiny(one_framework), batches(2))

    trainer.save_checkpoint(tmp_path / "last.ckpt")

    assert torch.load(tmp_path / "last.ckpt")["callbacks"] == {}


# -- the two names of Lightning


def without(monkeypatch: pytest.MonkeyPatch, *namespaces: str) -> None:
    for name in namespaces:
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_the_callback_is_one_of_the_lightning_that_the_program_has_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    bases = [importlib.import_module(name).Callback for name in NAMESPACES]

    assert [issubclass(adapter.ProfilerCallback, base) for base in bases] == [True, True]
    with monkeypatch.context() as patch:
        without(patch, "pytorch_lightning")
        assert [issubclass(adapter.ProfilerCallback, base) for base in bases] == [True, False]
    without(monkeypatch, "lightning.pytorch")
    assert [issubclass(adapter.ProfilerCallback, base) for base in bases] == [False, True]


def test_a_pickled_callback_of_either_lightning_comes_back_ready_to_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for absent in ((), *((name,) for name in NAMESPACES)):
        with monkeypatch.context() as patch:
            without(patch, *absent)
            prof = callback(tmp_path / str(absent), overwrite=True)
            back = pickle.loads(pickle.dumps(prof))

        assert type(back) is type(prof)

    framework = importlib.import_module("lightning.pytorch")
    trainer_with(framework, [back], tmp_path).fit(tiny(framework), batches(3))
    assert len(rows_of(back)) == 3


def test_without_lightning_the_error_names_the_pip_line() -> None:
    script = (
        "import sys\n"
        "sys.modules['lightning'] = sys.modules['pytorch_lightning'] = None\n"
        "import perfkit\n"
        "try:\n"
        "    from perfkit.integrations.lightning import ProfilerCallback\n"
        "except perfkit.MissingDependency as error:\n"
        "    print(error)\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert "pip install 'perfkit[lightning]'" in done.stdout


def test_importing_the_adapter_imports_no_lightning() -> None:
    script = "import sys, perfkit.integrations.lightning; print([n for n in sys.modules if 'lightning' in n])"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "['perfkit.integrations.lightning']"


# -- wrong use


def test_wrong_options_are_told_where_they_are_written(tmp_path: Path) -> None:
    with pytest.raises(perfkit.UsageError, match="budget"):
        callback(tmp_path, budget=0)
    with pytest.raises(TypeError, match="bugdet"):
        callback(tmp_path, bugdet=0.1)


def test_two_callbacks_in_one_trainer_are_refused_before_the_first_step(one_framework: Any, tmp_path: Path) -> None:
    trainer = trainer_with(one_framework, [callback(tmp_path), callback(tmp_path)], tmp_path)

    with pytest.raises(perfkit.UsageError, match="leave 1 out"):
        trainer.fit(tiny(one_framework), batches(2))

    assert not (tmp_path / "run").exists()


# -- Lightning's action strings: undocumented, so this must fail loudly when one moves

ACTIONS = {
    "[_TrainingEpochLoop].train_dataloader_next": "data",
    "[_EvaluationLoop].val_next": "data",
    "[Strategy]SingleDeviceStrategy.batch_to_device": "transfer",
    "[LightningModule]Tiny.on_before_batch_transfer": "transfer",
    "[LightningModule]Tiny.transfer_batch_to_device": "transfer",
    "[LightningModule]Tiny.on_after_batch_transfer": "transfer",
    "[Strategy]SingleDeviceStrategy.training_step": "forward",
    "[Strategy]SingleDeviceStrategy.validation_step": "validation",
    "[Strategy]SingleDeviceStrategy.backward": "backward",
    "[LightningModule]Tiny.optimizer_step": "optimizer",
    "[LightningModule]Tiny.configure_gradient_clipping": "optimizer",
    "[LightningModule]Tiny.optimizer_zero_grad": "optimizer",
    "[LightningModule]Tiny.lr_scheduler_step": "optimizer",
    "save_checkpoint": "checkpoint",
    "[LightningModule]Tiny.on_save_checkpoint": "checkpoint",
    "[Callback]ProfilerCallback.on_train_batch_end": "callbacks",
    "[Callback]ProfilerCallback.on_before_backward": "callbacks",
    "[Callback]ProfilerCallback.on_after_backward": "callbacks",
    "[Callback]ProfilerCallback.on_validation_start": "callbacks",
    "[Callback]ProfilerCallback.on_validation_end": "callbacks",
    "[Strategy]SingleDeviceStrategy.on_train_batch_start": "other",
    "run_training_epoch": None,
    "run_training_batch": None,
}


def actions_of(framework: Any, run: Callable[[Any], None], tmp_path: Path) -> set[str]:
    profilers = importlib.import_module(f"{framework.__name__}.profilers")
    seen: set[str] = set()
    methods = {"start": lambda self, name: seen.add(name), "stop": lambda self, name: None}
    listening = type("Listening", (profilers.Profiler,), methods)()
    run(trainer_with(framework, [callback(tmp_path)], tmp_path, profiler=listening, enable_checkpointing=True))
    return seen


def test_lightning_announces_the_actions_that_phases_are_read_from(framework: Any, tmp_path: Path) -> None:
    def optimizers(model: Any) -> Any:
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        return [sgd], [{"scheduler": torch.optim.lr_scheduler.StepLR(sgd, 1), "interval": "step"}]

    def step_by_hand(model: Any, batch: Any, batch_idx: int) -> None:
        model.manual_backward(model.layer(batch).sum())
        model.optimizers().step()

    automatic = tiny(framework, configure_optimizers=optimizers)
    manual = tiny(framework, automatic_optimization=False, training_step=step_by_hand)

    seen = actions_of(framework, lambda t: t.fit(automatic, batches(2), batches(1)), tmp_path)
    seen_manual = actions_of(framework, lambda t: t.fit(manual, batches(2)), tmp_path)
    seen_alone = {
        stage: actions_of(framework, lambda t, stage=stage: getattr(t, stage)(tiny(framework), batches(1)), tmp_path)
        for stage in ("validate", "test", "predict")
    }

    assert not set(ACTIONS) - seen
    assert "optimizer_step" in seen_manual
    assert phase_of("optimizer_step") == "optimizer"
    for stage, loop in (("validate", "Evaluation"), ("test", "Evaluation"), ("predict", "Prediction")):
        kind = "val" if stage == "validate" else stage
        assert f"[_{loop}Loop].{kind}_next" in seen_alone[stage]
        hook = "validation" if stage == "validate" else stage
        assert f"[Callback]ProfilerCallback.on_{hook}_epoch_end" in seen_alone[stage]
        assert f"[Callback]ProfilerCallback.on_{hook}_batch_end" in seen_alone[stage]


def test_each_action_counts_as_its_phase() -> None:
    assert {action: phase_of(action) for action in ACTIONS} == ACTIONS
