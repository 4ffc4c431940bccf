"""How a recording ends: with the fit, with an exception, Ctrl-C, stop_after; and what is told then."""

from __future__ import annotations

import contextlib
import signal
from typing import Any

import pytest

import perfkit
from perfkit.integrations import lightning as adapter


@pytest.mark.parametrize("error", [ValueError("planted"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_an_exception_passes_through_and_keeps_the_steps_until_then(lightning: Any, error: BaseException) -> None:
    def fail_at_four(model: Any, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 4:
            raise error
        return model.layer(batch).sum()

    prof = lightning.callback(schedule=perfkit.schedule(wait=2, warmup=0, active=10), recorders=("kineto",))
    trainer = lightning.trainer(prof)
    interrupt = signal.getsignal(signal.SIGINT)  # Lightning leaves it ignored after a Ctrl-C

    # What the caller sees of a Ctrl-C is Lightning's matter: SystemExit, or nothing before 2.5.
    expected = pytest.raises(ValueError) if isinstance(error, ValueError) else contextlib.suppress(SystemExit)
    try:
        with expected:
            trainer.fit(lightning.model(training_step=fail_at_four), lightning.batches(8))
    finally:
        signal.signal(signal.SIGINT, interrupt)

    folder = prof.profile.folder
    assert [row.step for row in lightning.rows(folder)] == [0, 1, 2, 3]
    assert lightning.rank(folder).ending.startswith(type(error).__name__)
    assert [window.file for window in lightning.rank(folder).windows] == ["window-0.pt.trace.json.gz"]
    lightning.assert_put_back(trainer)


def test_stop_after_ends_the_program_cleanly(lightning: Any) -> None:
    prof = lightning.callback(stop_after=3)
    trainer = lightning.trainer(prof)

    with pytest.raises(SystemExit) as ended:
        trainer.fit(lightning.model(), lightning.batches(8))

    assert ended.value.code == 0
    assert len(lightning.rows(prof.profile.folder)) == 3
    assert lightning.rank(prof.profile.folder).ending == "stopped after 3 steps"
    lightning.assert_put_back(trainer)


def test_the_verdict_is_printed_once_at_the_end_and_kept_as_data(
    lightning: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    prof = adapter.ProfilerCallback(lightning.folder / "run", recorders=())

    lightning.trainer(prof).fit(lightning.model(), lightning.batches(8, 1.0))

    assert prof.profile.diagnosis.phases.data > 0
    assert capsys.readouterr().err.count("A step takes") == 1
    assert (lightning.folder / "run" / "diagnosis.json").is_file()


def test_syncs_in_the_users_hooks_are_found_by_the_dry_run(lightning: Any) -> None:
    def step_that_reads(model: Any, batch: Any, batch_idx: int) -> Any:
        loss = model.layer(batch).sum()
        loss.item()
        return loss

    schedule = perfkit.schedule(wait=1, warmup=1, active=1, repeat=1)
    prof = lightning.callback(schedule=schedule, recorders=("kineto",), detect_syncs="dry")

    lightning.trainer(prof).fit(lightning.model(training_step=step_that_reads), lightning.batches(20))

    found = [
        f for f in prof.profile.diagnosis.findings if f.rule == "sync-in-step" and f.spent and f.spent.file == __file__
    ]
    assert [finding.spent.line for finding in found] == [step_that_reads.__code__.co_firstlineno + 2]


def test_switched_off_nothing_is_patched_or_written(lightning: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFKIT_DISABLE", "1")
    patched: list[bool] = []
    looking = lightning.hook(on_train_batch_end=lambda trainer, *_: patched.append("start" in vars(trainer.profiler)))

    lightning.trainer(lightning.callback(), looking).fit(lightning.model(), lightning.batches(2))

    assert patched == [False, False]
    assert not (lightning.folder / "run").exists()
