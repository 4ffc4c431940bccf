"""The named actions of a Lightning Trainer: their phase, and whether they do anything."""

from __future__ import annotations

import re
from typing import Any

from perfkit import Phase

#: The callback's name inside the Trainer, under both names of Lightning.
STATE_KEY = "ProfilerCallback"
OWN = f"[Callback]{STATE_KEY}."

#: Actions are not documented, but have been the same from Lightning 2.0 to 2.6; a test fails when one changes.
#: The first pattern that matches is used.
_PATTERNS: tuple[tuple[str, Phase], ...] = (
    (r"\.(train_dataloader|val|test|predict)_next$", "data"),
    (r"^\[Strategy\].*\.batch_to_device$", "transfer"),
    (r"^\[Lightning(Data)?Module\].*\.(on_before_batch_transfer|transfer_batch_to_device)$", "transfer"),
    (r"^\[Lightning(Data)?Module\].*\.on_after_batch_transfer$", "transfer"),
    (r"^\[Strategy\].*\.training_step$", "forward"),
    (r"^\[Strategy\].*\.(validation|test|predict)_step$", "validation"),
    (r"^\[Strategy\].*\.backward$", "backward"),
    # Manual optimization announces this name, once per optimizer.
    (r"^optimizer_step$", "optimizer"),
    (r"^\[LightningModule\].*\.(optimizer_step|configure_gradient_clipping|lr_scheduler_step)$", "optimizer"),
    (r"^\[LightningModule\].*\.(optimizer_zero_grad|on_before_zero_grad)$", "optimizer"),
    (r"\.on_save_checkpoint$", "checkpoint"),
    (r"^\[Callback\]", "callbacks"),
    # Other hooks of the module, the strategy and the data module.
    (r"^\[", "other"),
)

#: The fetch that begins a step: in training, and in a Trainer that only evaluates.
TRAINING_FETCH = re.compile(r"\.train_dataloader_next$")
EVALUATION_FETCH = re.compile(r"\.(val|test|predict)_next$")
EVALUATION_END = re.compile(r"\.on_(validation|test|predict)_epoch_end$")
_HOOK = re.compile(r"^\[(Callback|LightningModule|Strategy)\](.*)\.(\w+)$")

#: Hooks whose default implementation, Lightning's, does the work.
_WORKING_HOOKS = frozenset(
    {
        "transfer_batch_to_device",
        "optimizer_step",
        "optimizer_zero_grad",
        "configure_gradient_clipping",
        "lr_scheduler_step",
        "backward",
    }
)


def phase_of(action: str) -> Phase | None:
    """The phase of an action; None: that of the enclosing action.

    It is None for "run_training_batch", for example, and for actions that users announce themselves.
    """
    return next((phase for pattern, phase in _PATTERNS if re.search(pattern, action)), None)


def is_lightnings(instance: Any, method: str, module: str) -> bool:
    """Whether a method is Lightning's own, from a module whose name contains ``module``."""
    if method in vars(instance):
        return False
    owner = next((kind for kind in type(instance).__mro__ if method in vars(kind)), None)
    name = f"{owner.__module__}." if owner is not None else ""
    return name.startswith(("lightning.pytorch.", "pytorch_lightning.")) and module in name


def is_empty_hook(name: str, trainer: Any, module: Any) -> bool:
    """Whether an action is a hook that no class overrides: Lightning calls those too."""
    match = _HOOK.match(name)
    if match is None:
        return False
    kind, owner, hook = match.groups()
    if kind == "Strategy":
        return hook.startswith("on_") and is_lightnings(trainer.strategy, hook, ".strategies.")
    if kind == "LightningModule":
        return hook not in _WORKING_HOOKS and is_lightnings(module, hook, ".core.")
    owners = [callback for callback in trainer.callbacks if callback.state_key == owner]
    return bool(owners) and all(is_lightnings(callback, hook, ".callbacks.callback") for callback in owners)
