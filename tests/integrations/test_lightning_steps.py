"""Which batches of a Trainer are steps, over its whole life: fit, fit again, evaluations, resumed fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import perfkit


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        return iter([torch.ones(4)] * 5)


def five(bench: Any) -> Any:
    return bench.batches(5)


@pytest.mark.parametrize(
    ("methods", "loader", "steps"),
    [
        pytest.param({"training_step": lambda *_: None}, five, 5, id="training_step gives None"),
        pytest.param({}, lambda bench: DataLoader(Stream()), 5, id="IterableDataset"),
        pytest.param(
            {"on_train_batch_start": lambda model, batch, batch_idx: -1 if batch_idx == 3 else None},
            five,
            3,
            id="the rest of the epoch is skipped",
        ),
        pytest.param(
            {
                "training_step": lambda model, dataloader_iter: model.layer(next(dataloader_iter)[0]).sum(),
                # Lightning finds this form by the argument's name, and wants the batch in no other hook.
                "on_train_batch_start": lambda model, batch, batch_idx: None,
            },
            five,
            5,
            id="training_step takes the iterator",
        ),
    ],
)
def test_a_finished_batch_is_a_step(
    lightning: Any, methods: dict[str, Any], loader: Callable[[Any], Any], steps: int
) -> None:
    prof = lightning.callback()

    lightning.trainer(prof).fit(lightning.model(**methods), loader(lightning))

    assert len(lightning.rows(prof.profile.folder)) == steps


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_an_evaluation_alone_is_recorded_batch_by_batch(either: Any, stage: str) -> None:
    prof = either.callback()
    trainer = either.trainer(prof)

    getattr(trainer, stage)(either.model(), either.batches(6, 1.0))

    rows = either.rows(prof.profile.folder)
    assert len(rows) == 6
    assert {row.mode for row in rows} == {{"validate": "validation"}.get(stage, stage)}
    assert all(row.phases_ns.validation for row in rows)
    either.assert_planted(rows, "data")
    assert either.seconds(rows, "validation") == either.about([0.0] * 6)
    either.assert_put_back(trainer)


def test_a_second_fit_and_evaluations_go_on_in_the_same_run(lightning: Any) -> None:
    prof = lightning.callback()
    folders = []

    for stage, size in (("fit", 4), ("fit", 3), ("validate", 2), ("test", 2)):
        trainer = lightning.trainer(prof)
        getattr(trainer, stage)(lightning.model(), lightning.batches(size))
        folders.append(prof.profile.folder)
        lightning.assert_put_back(trainer)

    assert set(folders) == {lightning.folder / "run"}
    rows = lightning.rows(folders[0])
    assert [row.step for row in rows] == list(range(11))
    assert [row.mode for row in rows] == 7 * ["train"] + 2 * ["validation"] + 2 * ["test"]


def test_a_resumed_fit_records_the_batches_that_it_trains(lightning: Any) -> None:
    first = lightning.trainer(max_epochs=1)
    first.fit(lightning.model(), lightning.batches(4))
    first.save_checkpoint(lightning.folder / "last.ckpt")
    prof = lightning.callback()

    lightning.trainer(prof, max_epochs=3).fit(
        lightning.model(), lightning.batches(4), ckpt_path=lightning.folder / "last.ckpt"
    )

    assert len(lightning.rows(prof.profile.folder)) == 8


def test_checkpoints_hold_nothing_of_the_callback(lightning: Any) -> None:
    trainer = lightning.trainer(lightning.callback())
    trainer.fit(lightning.model(), lightning.batches(2))

    trainer.save_checkpoint(lightning.folder / "last.ckpt")

    assert torch.load(lightning.folder / "last.ckpt", weights_only=True)["callbacks"] == {}


def test_windows_hold_the_steps_that_rows_have_the_same_number_for(lightning: Any) -> None:
    schedule = perfkit.schedule(wait=2, warmup=1, active=2, repeat=2)
    prof = lightning.callback(schedule=schedule, recorders=("kineto",))

    lightning.trainer(prof, max_epochs=2).fit(lightning.model(), lightning.batches(7))

    windows = [(window.first_step, window.last_step) for window in lightning.rank(prof.profile.folder).windows]
    assert windows == [(3, 4), (8, 9)]
    trace = perfkit.diagnose(prof.profile.folder / "rank-0" / "window-0.pt.trace.json.gz")
    assert trace.step.steps == 2
    assert trace.step.phases_ns.data is not None


@pytest.mark.parametrize(
    ("options", "batches"),
    [({}, 8), ({"max_epochs": -1, "max_steps": 4, "accumulate_grad_batches": 2}, 8), ({"limit_train_batches": 8}, 60)],
    ids=["batches", "steps", "a limit"],
)
def test_the_window_of_a_short_fit_fits_into_it(lightning: Any, options: dict[str, Any], batches: int) -> None:
    prof = lightning.callback(recorders=("kineto",))

    lightning.trainer(prof, **options).fit(lightning.model(), lightning.batches(batches))

    assert len(lightning.rows(prof.profile.folder)) == 8
    (window,) = lightning.rank(prof.profile.folder).windows
    assert window.last_step < 8
