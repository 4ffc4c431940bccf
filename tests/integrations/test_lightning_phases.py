"""Which phase of a step a Trainer's work counts as: planted sleeps, in real Trainers of both names of Lightning."""

from __future__ import annotations

from typing import Any

import pytest
import torch


@pytest.mark.parametrize("manual", [False, True], ids=["automatic", "manual"])
def test_phases_have_the_shares_of_what_was_planted(either: Any, manual: bool) -> None:
    prof = either.callback()
    slow = either.hook(on_train_batch_end=lambda *_: either.plant("callbacks"))

    either.trainer(slow, prof).fit(either.planted_model(manual=manual), either.batches(12, 1.0))

    either.assert_shares(either.rows(prof.profile.folder))


def test_the_phases_of_every_step_sum_to_its_wall_time(either: Any) -> None:
    prof = either.callback()

    either.trainer(prof, val_check_interval=3, max_epochs=2).fit(either.model(), either.batches(6), either.batches(2))

    rows = either.rows(prof.profile.folder)
    assert [row.step for row in rows] == list(range(12))
    either.assert_sums(rows)


def test_accumulation_books_the_optimizer_to_the_batch_that_steps(lightning: Any) -> None:
    prof = lightning.callback()

    lightning.trainer(prof, accumulate_grad_batches=2).fit(lightning.planted_model(), lightning.batches(8))

    rows = lightning.rows(prof.profile.folder)
    assert len(rows) == 8
    assert lightning.seconds(rows, "optimizer") == lightning.about([0.0, 1.0] * 4)
    assert lightning.seconds(rows, "backward") == lightning.about([1.0] * 8)


def test_several_optimizers_are_one_phase_of_one_step(lightning: Any) -> None:
    def both(model: Any, batch: Any, batch_idx: int) -> None:
        for optimizer in model.optimizers():
            model.manual_backward(lightning.slow_backward.apply(model.layer(batch)).sum())
            optimizer.step()

    model = lightning.model(
        automatic_optimization=False,
        training_step=both,
        configure_optimizers=lambda model: [lightning.slow_sgd(model.parameters(), lr=0.1) for _ in range(2)],
    )
    prof = lightning.callback()

    lightning.trainer(prof).fit(model, lightning.batches(8))

    rows = lightning.rows(prof.profile.folder)
    assert len(rows) == 8
    lightning.assert_shares(rows)


def test_validation_inside_the_epoch_is_one_phase_of_its_step_and_the_sanity_check_none(lightning: Any) -> None:
    prof = lightning.callback()
    trainer = lightning.trainer(prof, val_check_interval=3, num_sanity_val_steps=2)

    trainer.fit(lightning.model(), lightning.batches(9), lightning.batches(2, 0.5))

    rows = lightning.rows(prof.profile.folder)
    assert [row.step for row in rows if row.phases_ns.validation] == [2, 5, 8]
    assert len(rows) == 9
    loaders = lightning.rank(prof.profile.folder).loaders
    assert sorted(loader.role for loader in loaders) == ["train", "validation"]
    # The waits for validation batches are validation, not data.
    assert lightning.seconds(rows[2::3], "validation") == lightning.about([1.0] * 3)
    assert lightning.seconds(rows, "data") == lightning.about([0.0] * 9)


def test_logging_and_checkpoints_are_kept_apart_from_callbacks(lightning: Any) -> None:
    class SlowLogger(lightning.module("loggers").CSVLogger):
        def log_metrics(self, metrics: Any, step: Any = None) -> None:
            lightning.plant("logging")

    model = lightning.model(
        training_step=lambda model, batch, batch_idx: (loss := model.layer(batch).sum(), model.log("loss", loss))[0],
        on_save_checkpoint=lambda model, checkpoint: lightning.plant("checkpoint"),
    )
    file = lightning.folder / "last.ckpt"
    saving = lightning.hook(on_train_batch_end=lambda trainer, *_: trainer.save_checkpoint(file))
    prof = lightning.callback(log=False)
    logger = SlowLogger(lightning.folder)

    lightning.trainer(saving, prof, logger=logger, log_every_n_steps=1).fit(model, lightning.batches(6))

    rows = lightning.rows(prof.profile.folder)
    lightning.assert_planted(rows, "logging")
    # A checkpoint is written to a disk as well, whose speed is nobody's promise.
    assert min(lightning.seconds(rows, "checkpoint")) >= 1.0
    assert lightning.seconds(rows, "callbacks") == lightning.about([0.0] * 6)
    assert not {"log_metrics", "save"} & set(vars(logger))


def test_a_hook_counts_where_it_was_written_whether_in_a_class_or_on_the_instance(lightning: Any) -> None:
    on_instance = lightning.framework.Callback()
    on_instance.on_train_batch_start = lambda *_: lightning.plant("callbacks")
    model = lightning.model(on_train_batch_start=lambda *_: lightning.plant("other", 2.0))
    prof = lightning.callback()

    lightning.trainer(on_instance, prof).fit(model, lightning.batches(8))

    rows = lightning.rows(prof.profile.folder)
    lightning.assert_planted(rows, "callbacks")
    lightning.assert_planted(rows, "other")


def test_the_transfer_is_what_moves_a_batch(lightning: Any) -> None:
    def move(model: Any, batch: Any, *_: Any) -> Any:
        lightning.plant("transfer")
        return batch

    prof = lightning.callback()

    lightning.trainer(prof).fit(lightning.model(transfer_batch_to_device=move), lightning.batches(8))

    rows = lightning.rows(prof.profile.folder)
    lightning.assert_planted(rows, "transfer")
    assert lightning.seconds(rows, "data") == lightning.about([0.0] * 8)


def test_actions_of_the_users_own_belong_to_the_phase_they_happen_in(lightning: Any) -> None:
    def step_in_parts(model: Any, batch: Any, batch_idx: int) -> Any:
        with model.trainer.profiler.profile("embed") as name:
            lightning.plant("forward")
        assert name == "embed"
        return model.layer(batch).sum()

    prof = lightning.callback()
    lightning.trainer(prof).fit(lightning.model(training_step=step_in_parts), lightning.batches(6))

    rows = lightning.rows(prof.profile.folder)
    lightning.assert_planted(rows, "forward")
    assert lightning.seconds(rows, "other") == lightning.about([0.0] * 6)


def test_actions_that_never_end_or_never_began_leave_the_other_phases_right(lightning: Any) -> None:
    def careless_step(model: Any, batch: Any, batch_idx: int) -> Any:
        model.trainer.profiler.start("[LightningModule]Tiny.left_open")
        model.trainer.profiler.stop("never begun")
        return lightning.slow_backward.apply(model.layer(batch)).sum()

    prof = lightning.callback()
    lightning.trainer(prof).fit(lightning.model(training_step=careless_step), lightning.batches(6))

    rows = lightning.rows(prof.profile.folder)
    assert len(rows) == 6
    lightning.assert_planted(rows, "backward")


def test_without_phases_only_the_wait_for_data_is_told_from_the_rest(lightning: Any) -> None:
    prof = lightning.callback(phases=False)

    lightning.trainer(prof, val_check_interval=4).fit(
        lightning.planted_model(), lightning.batches(8, 1.0), lightning.batches(1)
    )

    rows = lightning.rows(prof.profile.folder)
    assert len(rows) == 8
    for row in rows:
        told = {phase: getattr(row.phases_ns, phase) for phase in ("data", "forward", "other")}
        assert sum(told.values()) == row.wall_ns
        assert told["forward"] == 0
    # A forward, a backward and a step of the optimizer.
    assert lightning.seconds(rows, "other") == lightning.about([3.0] * 8)
    assert lightning.seconds(rows, "data") == lightning.about([1.0] * 8)


def test_an_iterable_dataset_is_waited_for_one_batch_ahead(lightning: Any) -> None:
    class SlowStream(torch.utils.data.IterableDataset[torch.Tensor]):
        def __iter__(self) -> Any:
            for _ in range(6):
                lightning.plant("data")
                yield torch.ones(4)

    prof = lightning.callback()
    lightning.trainer(prof).fit(lightning.model(), torch.utils.data.DataLoader(SlowStream()))

    rows = lightning.rows(prof.profile.folder)
    assert len(rows) == 6
    assert lightning.seconds(rows[1:], "data") == lightning.about([1.0] * 4 + [0.0])
