"""Adapters to other frameworks. An adapter imports its framework, perfkit's public names and `perfkit._patches`.

`tensorboard` and `trackers` are also reports: they read run folders as the modules of perfkit.reports do.

lightning     ``ProfilerCallback`` for ``lightning.pytorch`` and ``pytorch_lightning``
huggingface   ``ProfilerCallback`` for ``transformers.Trainer`` and what is built on it
trackers      ``log_run``, which writes a run's numbers to Weights & Biases, MLflow or TensorBoard
tensorboard   ``trace_handler`` for ``torch.profiler.profile`` and ``perfkit.profile``

Always spelled ``perfkit.integrations.<name>``. This package imports none of them until one is used. `trace_handler` and
`ProfilerCallback` are here for those who look for them in `perfkit`: see ``perfkit/__init__.py``.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfkit.integrations.tensorboard.handler import TraceHandler

if __name__ != "perfkit.integrations":
    # In a checkout the folder is found under its own name too; its modules would exist twice.
    raise ImportError(f"write perfkit.integrations, not {__name__}: from perfkit.integrations import lightning")

_ADAPTERS = ("huggingface", "lightning", "tensorboard")


def __getattr__(name: str) -> Any:
    if name not in _ADAPTERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it has {', '.join(_ADAPTERS)}")
    return import_module(f"{__name__}.{name}")


def trace_handler(
    logdir: str | os.PathLike[str], worker_name: str | None = None, *, writer: Any = None
) -> TraceHandler:
    """``perfkit.integrations.tensorboard.trace_handler``, which documents it."""
    # The adapter loads what draws and diagnoses, which `import perfkit` must not.
    from perfkit.integrations import tensorboard

    return tensorboard.trace_handler(logdir, worker_name, writer=writer)


def ProfilerCallback(*args: object, **kwargs: object) -> Any:
    """Two classes have this name, one for each Trainer: import the one of the framework in use.

    Raises:
        UsageError: always; it names both imports.
    """
    from perfkit import UsageError  # perfkit is still being imported when this package is

    raise UsageError(
        "perfkit.ProfilerCallback has one class per framework. Write "
        "`from perfkit.integrations.lightning import ProfilerCallback` for Lightning, or "
        "`from perfkit.integrations.huggingface import ProfilerCallback` for transformers"
    )
