"""Compile the models.

At the first call of a model in training, that model and every other one whose weights an optimizer updates is compiled
(``module.compile()``), with torch's default backend. The first steps take as long as compiling does: it pays after a
number of steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfkit.trial.patches.edits import BeforeLoop, TrainerArgument
from perfkit.trial.site import Site

ID = "compile"
ANSWERS = ("unfused-elementwise", "launch-bound", "many-small-ops", "memory-bound", "cuda-graph-candidate")
KIND = "numeric"
SLOW_START = True
LINES = "model.compile()"
EDITS = (BeforeLoop("{model}.compile()"),)
TRAINER = TrainerArgument(huggingface="torch_compile=True", accelerate='dynamo_backend="inductor"')


def apply(site: Site, value: None) -> None:
    """Compile the models at the first call with gradients."""
    import torch  # where a change is applied, not where changes are listed

    from perfkit.record.live_objects import instances_of, subclasses_of  # imports torch
    from perfkit.record.windows.model_ranges import roots, trained_modules  # imports torch
    from perfkit.trial.changes._roots import around_models  # imports torch

    def around(call: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if module.training and torch.is_grad_enabled():
            # Once: Dynamo must find torch's own `Module.__call__`, and compiles again where that changes.
            site.patches.undo()
            optimizers = instances_of(subclasses_of(torch.optim.Optimizer))
            for one in {module, *roots(trained_modules(optimizers))}:
                if not isinstance(one, torch._dynamo.OptimizedModule) and one._compiled_call_impl is None:
                    site.used()
                    one.compile()
        return call(module, *args, **kwargs)

    around_models(site, around)
