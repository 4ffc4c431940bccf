"""Lightning's action strings: they are undocumented, so these tests must fail loudly when one of them moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from perfkit.integrations._lightning_actions import phase_of

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


def actions_of(lightning: Any, run: Callable[[Any], None]) -> set[str]:
    seen: set[str] = set()
    methods = {"start": lambda self, name: seen.add(name), "stop": lambda self, name: None}
    listening = type("Listening", (lightning.module("profilers").Profiler,), methods)()
    run(lightning.trainer(lightning.callback(overwrite=True), profiler=listening, enable_checkpointing=True))
    return seen


def test_lightning_announces_the_actions_that_phases_are_read_from(either: Any) -> None:
    def optimizers(model: Any) -> Any:
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        return [sgd], [{"scheduler": torch.optim.lr_scheduler.StepLR(sgd, 1), "interval": "step"}]

    def step_by_hand(model: Any, batch: Any, batch_idx: int) -> None:
        model.manual_backward(model.layer(batch).sum())
        model.optimizers().step()

    automatic = either.model(configure_optimizers=optimizers)
    manual = either.model(automatic_optimization=False, training_step=step_by_hand)

    seen = actions_of(either, lambda t: t.fit(automatic, either.batches(2), either.batches(1)))
    seen_manual = actions_of(either, lambda t: t.fit(manual, either.batches(2)))
    seen_alone = {
        stage: actions_of(either, lambda t, stage=stage: getattr(t, stage)(either.model(), either.batches(1)))
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


def test_lightnings_own_hooks_are_known_as_empty_and_a_written_one_as_not(either: Any) -> None:
    from perfkit.integrations._lightning_actions import is_lightnings

    model, written = either.model(), either.model(on_train_batch_start=lambda *_: None)
    callback = either.framework.Callback()
    trainer = either.trainer()

    assert is_lightnings(model, "on_train_batch_start", ".core.")
    assert not is_lightnings(written, "on_train_batch_start", ".core.")
    assert is_lightnings(callback, "on_train_batch_start", ".callbacks.callback")
    assert not is_lightnings(either.hook(on_train_batch_start=print), "on_train_batch_start", ".callbacks.callback")
    assert is_lightnings(trainer.strategy, "on_train_batch_start", ".strategies.")
    assert is_lightnings(trainer.profiler, "profile", ".profilers.profiler")
    assert type(trainer.profiler).__name__ == "PassThroughProfiler"
