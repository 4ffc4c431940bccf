"""perfkit in TensorBoard.

handler         ``trace_handler``: writes and diagnoses each window's trace
summary         a window's verdict and times, also in a process of its own
scalars         ``log_scalars``: writes each step's numbers, and the verdict
writers         writing to a SummaryWriter or a Lightning logger
plugin          the entry point of TensorBoard's tab "perfkit", which catches its errors
tab             the tab's routes
log_directory   finds the runs and traces below a log directory, and opens their files
drawings        figure data of a run or a trace, made in a separate process
static/         the tab's own script and style; it draws with perfkit.reports.page

TensorBoard imports this package for its tab, so nothing else is imported here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfkit.integrations.tensorboard.handler import trace_handler as trace_handler
    from perfkit.integrations.tensorboard.scalars import log_scalars as log_scalars

__all__ = ["log_scalars", "trace_handler"]

_MODULES = {"log_scalars": "scalars", "trace_handler": "handler"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
