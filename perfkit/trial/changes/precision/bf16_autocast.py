"""Run the models' forward in bfloat16 autocast.

Each call of a model from outside runs inside ``torch.autocast(dtype=torch.bfloat16)``, and its results become float32
again, so that the loss is computed as before. The backward follows the forward's types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfkit.trial.patches.edits import TrainerArgument, Wrap
from perfkit.trial.site import Site

ID = "bf16-autocast"
ANSWERS = ("low-precision-unused",)
KIND = "numeric"
TOGGLE = True
LINES = "with torch.autocast(device, dtype=torch.bfloat16): output = model(batch)"
EDITS = (
    Wrap(
        'with torch.autocast("cuda" if torch.cuda.is_available() else "cpu", dtype=torch.bfloat16):', until="backward"
    ),
)
TRAINER = TrainerArgument(
    huggingface="bf16=True", lightning='precision="bf16-mixed"', accelerate='mixed_precision="bf16"'
)


def apply(site: Site, value: None) -> None:
    """Run each call of a model inside autocast."""
    import torch  # where a change is applied, not where changes are listed
    from torch.utils._pytree import tree_map  # torch

    from perfkit.trial.changes._roots import around_models  # imports torch

    def as_float32(result: Any) -> Any:
        return result.float() if isinstance(result, torch.Tensor) and result.dtype == torch.bfloat16 else result

    def around(call: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = next(module.parameters()).device.type
        if torch.is_autocast_enabled(device):
            return call(module, *args, **kwargs)
        site.used()
        with torch.autocast(device, dtype=torch.bfloat16):
            result = call(module, *args, **kwargs)
        return tree_map(as_float32, result)

    around_models(site, around)
