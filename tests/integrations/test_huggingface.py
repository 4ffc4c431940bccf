"""ProfilerCallback in real transformers.Trainers, with planted sleeps, and perfkit in an Accelerate loop."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import Dataset, Subset
from transformers import Trainer, TrainerCallback, TrainingArguments

import perfkit
from perfkit.integrations.huggingface import ProfilerCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:transformers.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    # A loader asked to pin memory where there is no GPU.
    pytest.mark.filterwarnings("ignore:.*pin_memory:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning"),
]


class Examples(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, bench: Any, size: int, seconds: float) -> None:
        self.bench, self.size, self.seconds = bench, size, seconds

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if self.seconds:
            self.bench.plant("data", self.seconds)
        return {"input_ids": torch.ones(4, dtype=torch.long), "labels": torch.ones(1)}


class Model(torch.nn.Module):
    def __init__(self, forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.work = forward

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        out = self.work(self.layer(input_ids.float()))
        return {"loss": (out - labels).square().mean(), "logits": out}


def planted_work(bench: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def work(x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            bench.plant("forward")
        return bench.slow_backward.apply(x)

    return work


def trainer_of(
    bench: Any,
    *callbacks: TrainerCallback,
    size: int = 8,
    seconds: float = 0.0,
    work: Callable[[Any], Any] = lambda x: x,
    optimizer: type[torch.optim.Optimizer] = torch.optim.SGD,
    kind: type[Trainer] = Trainer,
    **options: Any,
) -> Trainer:
    defaults = {"num_train_epochs": 1, "report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    arguments = TrainingArguments(
        str(bench.folder / "out"),
        per_device_train_batch_size=1,
        per_device_eval_batch_size=1,
        **{**defaults, **options},
    )
    model = Model(work)
    examples = Examples(bench, size, seconds)
    return kind(
        model,
        arguments,
        train_dataset=examples,
        eval_dataset=Subset(examples, range(2)),
        optimizers=(optimizer(model.parameters(), lr=0.1), None),  # type: ignore[call-arg, arg-type]  # None: its own
        callbacks=list(callbacks),
    )


def callback_of(bench: Any, run: str = "run", **options: Any) -> ProfilerCallback:
    return ProfilerCallback(bench.folder / run, quiet=True, **{"recorders": (), **options})


def hooked(**hooks: Callable[..., None]) -> TrainerCallback:
    return type("Hooked", (TrainerCallback,), {name: staticmethod(hook) for name, hook in hooks.items()})()


def assert_put_back(trainer: Trainer) -> None:
    assert not {"training_step", "get_batch_samples", "log", "evaluate"} & set(vars(trainer))
    assert "call_event" not in vars(trainer.callback_handler)
    assert not {"backward", "clip_grad_norm_"} & set(vars(trainer.accelerator))
    assert not torch.autograd._profiler_enabled()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_phases_have_the_shares_of_what_was_planted(bench: Any, accumulate: int) -> None:
    prof = callback_of(bench)
    slow = hooked(on_step_end=lambda *_, **__: bench.plant("callbacks"))
    trainer = trainer_of(
        bench,
        prof,
        slow,
        size=12 * accumulate,
        seconds=1.0,
        work=planted_work(bench),
        optimizer=bench.slow_sgd,
        gradient_accumulation_steps=accumulate,
    )

    trainer.train()

    rows = bench.rows(prof.profile.folder)
    assert len(rows) == 12  # steps of the optimizer
    bench.assert_sums(rows)
    bench.assert_shares(rows, fetched_ahead=1)
    assert {(row.samples, row.tokens) for row in rows} == {(accumulate, 4 * accumulate)}
    assert_put_back(trainer)


def test_evaluation_logging_and_checkpoints_are_phases_of_their_own(bench: Any) -> None:
    class Saving(Trainer):
        def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            bench.plant("checkpoint", 2.0)

    prof = callback_of(bench)
    writer = hooked(on_log=lambda *_, logs, **__: None if "eval_loss" in logs else bench.plant("logging"))
    trainer = trainer_of(
        bench,
        prof,
        writer,
        kind=Saving,
        work=lambda x: x if torch.is_grad_enabled() else (bench.plant("validation", 1.5), x)[1],
        eval_strategy="steps",
        save_strategy="steps",
        **{"eval_steps": 2, "save_steps": 2, "logging_steps": 2},
    )

    trainer.train()

    rows = bench.rows(prof.profile.folder)
    assert len(rows) == 8
    bench.assert_sums(rows)
    # Two batches are evaluated each time.
    for phase, seconds in (("validation", 3.0), ("logging", 1.0), ("checkpoint", 2.0)):
        assert bench.seconds(rows, phase) == bench.about([0.0, seconds] * 4)


def test_an_evaluation_after_each_epoch_belongs_to_its_last_step_and_one_before_training_to_none(bench: Any) -> None:
    prof = callback_of(bench)
    trainer = trainer_of(bench, prof, size=3, num_train_epochs=2, eval_strategy="epoch", eval_on_start=True)

    trainer.train()

    rows = bench.rows(prof.profile.folder)
    assert [row.step for row in rows if row.phases_ns.validation] == [2, 5]
    assert len(rows) == 6


def test_the_trainers_logs_get_plain_floats_unless_they_are_not_wanted(bench: Any) -> None:
    wanted = trainer_of(bench, callback_of(bench), logging_steps=2)
    unwanted = trainer_of(bench, callback_of(bench, "other", log=False), logging_steps=2)

    wanted.train()
    unwanted.train()

    logged = [logs for logs in wanted.state.log_history if "perfkit/step_ms" in logs]
    assert [logs["step"] for logs in logged] == [2, 4, 6, 8]
    for logs in logged:
        assert type(logs["perfkit/step_ms"]) is type(logs["perfkit/data_ms"]) is float
        assert 0 < logs["perfkit/data_ms"] < logs["perfkit/step_ms"]
    assert not [logs for logs in unwanted.state.log_history if "perfkit/step_ms" in logs]


@pytest.mark.parametrize("error", [ValueError("planted"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
@pytest.mark.parametrize("place", ["forward", "callback"])
def test_an_exception_passes_through_and_keeps_the_steps_until_then(
    bench: Any, error: BaseException, place: str
) -> None:
    calls = []

    def fail_at_four(*arguments: Any, **_: Any) -> Any:
        calls.append(None)
        if len(calls) == 5:
            raise error
        return arguments[0]

    schedule = perfkit.schedule(wait=2, warmup=0, active=10)
    prof = callback_of(bench, schedule=schedule, recorders=("kineto",))
    failing = hooked(on_step_begin=lambda *_, **__: fail_at_four(None)) if place == "callback" else TrainerCallback()
    work = fail_at_four if place == "forward" else lambda x: x
    trainer = trainer_of(bench, prof, failing, work=work)

    with pytest.raises(type(error)):
        trainer.train()

    assert [row.step for row in bench.rows(prof.profile.folder)] == [0, 1, 2, 3]
    assert bench.rank(prof.profile.folder).ending.startswith(type(error).__name__)
    assert [window.file for window in bench.rank(prof.profile.folder).windows] == ["window-0.pt.trace.json.gz"]
    assert_put_back(trainer)


def test_a_program_that_dies_where_no_method_is_watched_keeps_its_run(bench: Any) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from transformers import Trainer\n"
        "from train import *\n"
        "def fail(*_): raise ValueError('in the loop itself')\n"
        "trainer.floating_point_ops = fail\n"
        "trainer.train()\n"
    )
    (bench.folder / "train.py").write_text(
        "import torch\n"
        "from transformers import Trainer, TrainingArguments\n"
        "from perfkit.integrations.huggingface import ProfilerCallback\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(4, 1)\n"
        "    def forward(self, x, labels=None):\n"
        "        return {'loss': self.layer(x).sum()}\n"
        "trainer = Trainer(Model(), TrainingArguments('out', report_to=[], use_cpu=True, disable_tqdm=True),\n"
        "    train_dataset=[{'x': torch.ones(4)}] * 40, callbacks=[ProfilerCallback('run')])\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script, str(bench.folder)],
        cwd=bench.folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert "ValueError: in the loop itself" in done.stderr
    assert bench.rank(bench.folder / "run").ending == "ValueError: in the loop itself"


def test_training_again_goes_on_in_the_same_run(bench: Any) -> None:
    prof = callback_of(bench)
    trainer = trainer_of(bench, prof, size=4)

    trainer.train()
    first = prof.profile.folder
    trainer.train()

    assert prof.profile.folder == first
    assert [row.step for row in bench.rows(first)] == list(range(8))
    assert_put_back(trainer)


@pytest.mark.since_torch((2, 6), "a training that transformers resumes")
def test_a_resumed_training_records_the_steps_that_it_does(bench: Any) -> None:
    trainer_of(bench, size=6, save_strategy="steps", save_steps=4).train()
    prof = callback_of(bench)

    trainer_of(bench, prof, size=6).train(resume_from_checkpoint=str(bench.folder / "out" / "checkpoint-4"))

    assert len(bench.rows(prof.profile.folder)) == 2


def test_stop_after_ends_the_program_cleanly(bench: Any) -> None:
    prof = callback_of(bench, stop_after=3)
    trainer = trainer_of(bench, prof)

    with pytest.raises(SystemExit) as ended:
        trainer.train()

    assert ended.value.code == 0
    assert len(bench.rows(prof.profile.folder)) == 3
    assert bench.rank(prof.profile.folder).ending == "stopped after 3 steps"
    assert_put_back(trainer)


def test_a_window_of_a_short_training_fits_into_it(bench: Any) -> None:
    prof = callback_of(bench, recorders=("kineto",))

    trainer_of(bench, prof, size=8).train()

    (window,) = bench.rank(prof.profile.folder).windows
    assert window.last_step < 8
    trace = perfkit.diagnose(prof.profile.folder / "rank-0" / window.file)
    assert trace.step.steps == window.last_step - window.first_step + 1


def test_the_verdict_is_printed_at_the_end_and_kept_as_data(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    prof = ProfilerCallback(bench.folder / "run", recorders=())

    trainer_of(bench, prof, seconds=0.5).train()

    assert prof.profile.diagnosis.phases.data > 0
    assert capsys.readouterr().err.count("A step takes") == 1
    assert (bench.folder / "run" / "diagnosis.json").is_file()


def test_of_two_callbacks_only_the_first_records_with_a_warning(bench: Any) -> None:
    first, second = callback_of(bench), callback_of(bench, "second")
    trainer = trainer_of(bench, first, second)

    with pytest.warns(perfkit.PerfkitWarning, match="2 ProfilerCallbacks; only the first one records"):
        trainer.train()

    assert len(bench.rows(first.profile.folder)) == 8
    assert not (bench.folder / "second").exists()


def test_a_trainer_that_is_built_on_another_is_timed_through_its_own_methods(bench: Any) -> None:
    class Tuning(Trainer):
        """As TRL's SFTTrainer: its own training_step and log around the ones below."""

        def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            bench.plant("forward", 0.5)
            return super().training_step(*args, **kwargs)

        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            bench.plant("logging", 0.5)
            super().log(logs, start_time)

    prof = callback_of(bench)
    trainer_of(bench, prof, kind=Tuning, logging_steps=1).train()

    rows = bench.rows(prof.profile.folder)
    bench.assert_sums(rows)
    for phase in ("forward", "logging"):
        assert bench.seconds(rows, phase) == bench.about([0.5] * 8)


def test_a_pickled_callback_comes_back_ready_to_record(bench: Any) -> None:
    back = pickle.loads(pickle.dumps(callback_of(bench)))

    trainer_of(bench, back, size=3).train()

    assert len(bench.rows(back.profile.folder)) == 3


def test_wrong_options_are_told_where_they_are_written(bench: Any) -> None:
    with pytest.raises(perfkit.UsageError, match="budget"):
        callback_of(bench, budget=0)
    (bench.folder / "file").write_text("")
    with pytest.raises(perfkit.UsageError, match="file"):
        callback_of(bench, "file/run")


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        ("sys.modules['transformers'] = None", "pip install 'perfkit[huggingface]'"),
        (
            "import types; old = sys.modules['transformers'] = types.ModuleType('transformers')\n"
            "old.__version__ = '4.40.0'; old.TrainerCallback = type('TrainerCallback', (), {})",
            "needs transformers 4.46 or later, this is 4.40.0: pip install -U 'perfkit[huggingface]'",
        ),
    ],
    ids=["missing", "too old"],
)
def test_transformers_that_is_missing_or_too_old_is_told_with_the_pip_line(prepare: str, said: str) -> None:
    script = (
        f"import sys\n{prepare}\nimport perfkit\n"
        "try:\n"
        "    from perfkit.integrations.huggingface import ProfilerCallback\n"
        "except perfkit.MissingDependency as error:\n"
        "    print(error)\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert said in done.stdout


def test_an_accelerate_loop_is_timed_as_a_plain_one(bench: Any) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Linear(4, 1)
    model, optimizer, loader = accelerator.prepare(
        model, bench.slow_sgd(model.parameters(), lr=0.1), bench.batches(16, 1.0)
    )

    with perfkit.profile(bench.folder / "run", recorders=(), quiet=True) as prof:
        for batch in prof.steps(loader):
            with accelerator.accumulate(model):
                bench.plant("forward")
                accelerator.backward(bench.slow_backward.apply(model(batch)).sum())
                optimizer.step()
                optimizer.zero_grad()

    rows = bench.rows(Path(prof.folder))
    assert len(rows) == 16  # a step is a batch here
    # accelerate fetches one batch ahead: the first step waits for two, and the last one for none.
    for phase in ("data", "forward", "backward"):
        assert bench.seconds(rows[1:-1], phase) == bench.about([1.0] * 14)
    assert bench.seconds(rows, "optimizer") == bench.about([0.0, 1.0] * 8)
