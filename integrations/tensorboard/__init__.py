"""perfkit in TensorBoard.

handler         ``trace_handler``: each window's trace into a log directory, with what perfkit found in it
scalars         ``log_scalars``: each step's numbers and the verdict, to any SummaryWriter or Lightning logger
writers         how either is written to
plugin          the entry point of TensorBoard's tab "perfkit"; guards everything below
tab             the tab's routes
log_directory   the runs and traces below a log directory, and the only way to a file of them
drawings        figure data of a run or a trace, made in a process of its own
static/         the tab's own script and style; what it draws with is perfkit.reports.page

TensorBoard imports this package for its tab: neither torch, tensorboard nor the rest of perfkit is imported here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfkit.integrations.tensorboard.handler import trace_handler as trace_handler
    from perfkit.integrations.tensorboard.scalars import log_scalars as log_scalars

__all__ = ["log_scalars", "trace_handler"]

_HOMES = {"log_scalars": "scalars", "trace_handler": "handler"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
