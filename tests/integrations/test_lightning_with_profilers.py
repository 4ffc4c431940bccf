"""The callback beside what a Trainer has of its own: profilers, loggers, other callbacks, folders."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import perfkit


def test_the_users_profiler_goes_on_as_it_was(either: Any) -> None:
    prof = either.callback()
    trainer = either.trainer(prof, profiler="simple")

    trainer.fit(either.model(), either.batches(5))

    durations = trainer.profiler.recorded_durations
    assert len(durations["run_training_batch"]) == 5
    # Also what means nothing to perfkit, and what is empty.
    assert len(durations["[LightningModule]Tiny.on_train_batch_end"]) == 5
    assert len(either.rows(prof.profile.folder)) == 5
    either.assert_put_back(trainer)


def test_a_profiler_with_a_profile_method_of_its_own_is_called_through_it(lightning: Any) -> None:
    asked: list[str] = []

    class Own(lightning.module("profilers").PassThroughProfiler):
        def profile(self, action_name: str) -> Any:
            asked.append(action_name)
            return super().profile(action_name)

    prof = lightning.callback()
    lightning.trainer(prof, profiler=Own()).fit(lightning.planted_model(), lightning.batches(6))

    assert asked.count("run_training_batch") == 6
    lightning.assert_planted(lightning.rows(prof.profile.folder), "backward")


def test_an_exception_of_the_users_profiler_is_the_users(lightning: Any) -> None:
    class Strict(lightning.module("profilers").PassThroughProfiler):
        def start(self, action_name: str) -> None:
            if action_name == "run_training_batch":
                raise LookupError("planted")

    trainer = lightning.trainer(lightning.callback(), profiler=Strict())

    with pytest.raises(LookupError, match="planted"):
        trainer.fit(lightning.model(), lightning.batches(2))

    lightning.assert_put_back(trainer)


def test_beside_a_pytorch_profiler_windows_are_skipped_and_that_is_said(
    lightning: Any, recwarn: pytest.WarningsRecorder
) -> None:
    schedule = perfkit.schedule(wait=1, warmup=0, active=2)
    prof = lightning.callback(schedule=schedule, recorders=("kineto",))
    trainer = lightning.trainer(prof, profiler="pytorch")

    trainer.fit(lightning.model(), lightning.batches(9))

    assert "PyTorchProfiler" in str(recwarn.pop(perfkit.PerfkitWarning).message)
    assert len(lightning.rows(prof.profile.folder)) == 9
    assert not list((lightning.folder / "run").rglob("*.pt.trace.json.gz"))
    lightning.assert_put_back(trainer)


def keeping(lightning: Any, kept: list[tuple[dict[str, Any], int]], fail: bool = False) -> Any:
    """A logger that keeps what it is given, or cannot write it."""

    class Keeping(lightning.module("loggers").Logger):
        name, version = "keeping", 0

        def log_metrics(self, metrics: Any, step: Any = None) -> None:
            if fail and "perfkit/step_ms" in metrics:
                raise OSError(30, "Read-only file system")
            kept.append((dict(metrics), step))

        def log_hyperparams(self, *_: Any, **__: Any) -> None:
            pass

    return Keeping()


def logging_model(lightning: Any) -> Any:
    def step(model: Any, batch: Any, batch_idx: int) -> Any:
        loss = model.layer(batch).sum()
        model.log("loss", loss)
        return loss

    return lightning.model(training_step=step)


def test_the_trainers_loggers_get_plain_floats_at_the_trainers_own_x(lightning: Any) -> None:
    class Waiting(torch.utils.data.IterableDataset[torch.Tensor]):
        """What goes to a logger is timed by the adapter's own clock, not by perfkit's."""

        def __iter__(self) -> Iterator[torch.Tensor]:
            for _ in range(12):
                time.sleep(0.005)
                yield torch.ones(4)

    kept: list[tuple[dict[str, Any], int]] = []
    prof = lightning.callback()
    trainer = lightning.trainer(prof, logger=keeping(lightning, kept), log_every_n_steps=3)

    trainer.fit(logging_model(lightning), torch.utils.data.DataLoader(Waiting()))

    ours = [(metrics, at) for metrics, at in kept if "perfkit/step_ms" in metrics]
    theirs = [at for metrics, at in kept if "loss" in metrics]
    assert [at for _, at in ours] == [at + 1 for at in theirs[:3]] == [3, 6, 9]
    for metrics, _ in ours:
        assert {type(value) for value in metrics.values()} == {float}
        assert 4 < metrics["perfkit/data_ms"] < metrics["perfkit/step_ms"]
    rows = lightning.rows(prof.profile.folder)
    assert len(rows) == 12
    lightning.assert_sums(rows)


def test_loggers_get_nothing_where_that_is_not_wanted(lightning: Any) -> None:
    kept: list[tuple[dict[str, Any], int]] = []
    trainer = lightning.trainer(lightning.callback(log=False), logger=keeping(lightning, kept), log_every_n_steps=1)

    trainer.fit(logging_model(lightning), lightning.batches(4))

    assert not [metrics for metrics, _ in kept if "perfkit/step_ms" in metrics]


def said(recwarn: pytest.WarningsRecorder) -> list[str]:
    return [str(warning.message) for warning in recwarn if warning.category is perfkit.PerfkitWarning]


def test_a_logger_that_cannot_write_is_said_once_and_training_goes_on(
    lightning: Any, recwarn: pytest.WarningsRecorder
) -> None:
    prof = lightning.callback()
    trainer = lightning.trainer(prof, logger=keeping(lightning, [], fail=True), log_every_n_steps=1)

    trainer.fit(lightning.model(), lightning.batches(6))

    (text,) = said(recwarn)
    assert "step times are no longer logged to the Trainer's loggers" in text
    assert "Read-only file system" in text
    rows = lightning.rows(prof.profile.folder)
    assert len(rows) == 6
    lightning.assert_sums(rows)


def test_of_two_callbacks_only_the_first_records_with_a_warning(
    lightning: Any, recwarn: pytest.WarningsRecorder
) -> None:
    first, second = lightning.callback(), lightning.callback(lightning.folder / "second")

    lightning.trainer(first, second).fit(lightning.model(), lightning.batches(3))

    (text,) = said(recwarn)
    assert "2 ProfilerCallbacks; only the first one records" in text
    assert len(lightning.rows(first.profile.folder)) == 3
    assert not (lightning.folder / "second").exists()


def test_wrong_options_and_folders_are_told_where_they_are_written(lightning: Any) -> None:
    with pytest.raises(perfkit.UsageError, match="budget"):
        lightning.callback(budget=0)
    with pytest.raises(TypeError, match="bugdet"):
        lightning.callback(bugdet=0.1)
    (lightning.folder / "file").write_text("")
    with pytest.raises(perfkit.UsageError, match="file"):
        lightning.callback(lightning.folder / "file" / "run")
