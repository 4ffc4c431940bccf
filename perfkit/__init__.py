"""perfkit: see where a PyTorch training step spends its time, which line it is, and what to change.

Write ``import perfkit`` and use the names from there; ``from perfkit import *`` would hide the builtin
``range``. Importing perfkit imports neither torch, numpy nor any optional package; the first use of any
name here loads the rooms of all of them, which import none of these either.

Why all at once: the interpreter (3.11 and later) turns ``perfkit.range`` in a loop into an array access, but
not for a module that has a ``__getattr__``. So ours stores every name, and removes itself. Measured:
``with perfkit.range("x")`` costs 110 ns without it, 128 with it, in which time nobody listens.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perfkit._version import VERSION as __version__

if TYPE_CHECKING:
    from perfkit.comparison import Comparison as Comparison
    from perfkit.comparison import compare as compare
    from perfkit.diagnosis import Diagnosis as Diagnosis
    from perfkit.diagnosis import diagnose as diagnose
    from perfkit.errors import MissingDependency as MissingDependency
    from perfkit.errors import PerfkitError as PerfkitError
    from perfkit.errors import PerfkitWarning as PerfkitWarning
    from perfkit.errors import RunError as RunError
    from perfkit.errors import SyncBudgetExceeded as SyncBudgetExceeded
    from perfkit.errors import SyncError as SyncError
    from perfkit.errors import TraceError as TraceError
    from perfkit.errors import UsageError as UsageError
    from perfkit.findings import Evidence as Evidence
    from perfkit.findings import Finding as Finding
    from perfkit.latency import measure_latency as measure_latency
    from perfkit.profiler import profile as profile
    from perfkit.profiler import step as step
    from perfkit.profiler import steps as steps
    from perfkit.ranges import annotate_modules as annotate_modules
    from perfkit.ranges import mark as mark
    from perfkit.ranges import range as range
    from perfkit.record.triggers.trigger_watch import triggers as triggers
    from perfkit.record.windows.schedules import schedule as schedule
    from perfkit.run.records import Phase as Phase
    from perfkit.syncs import allow_sync as allow_sync
    from perfkit.syncs import detect_syncs as detect_syncs


_HOMES = {
    "Comparison": "perfkit.comparison",
    "Diagnosis": "perfkit.diagnosis",
    "Evidence": "perfkit.findings",
    "Finding": "perfkit.findings",
    "MissingDependency": "perfkit.errors",
    "PerfkitError": "perfkit.errors",
    "PerfkitWarning": "perfkit.errors",
    "Phase": "perfkit.run.records",
    "RunError": "perfkit.errors",
    "SyncBudgetExceeded": "perfkit.errors",
    "SyncError": "perfkit.errors",
    "TraceError": "perfkit.errors",
    "UsageError": "perfkit.errors",
    "allow_sync": "perfkit.syncs",
    "annotate_modules": "perfkit.ranges",
    "compare": "perfkit.comparison",
    "detect_syncs": "perfkit.syncs",
    "diagnose": "perfkit.diagnosis",
    "mark": "perfkit.ranges",
    "measure_latency": "perfkit.latency",
    "profile": "perfkit.profiler",
    "range": "perfkit.ranges",
    "schedule": "perfkit.record.windows.schedules",
    "step": "perfkit.profiler",
    "steps": "perfkit.profiler",
    "triggers": "perfkit.record.triggers.trigger_watch",
}

__all__ = ["__version__", *_HOMES]


if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'perfkit' has no attribute {name!r}")
        names = globals()
        names[name] = getattr(import_module(_HOMES[name]), name)
        try:
            names.update({other: getattr(import_module(home), other) for other, home in _HOMES.items()})
        except ImportError:
            # A dependency is not installed, which some names need: what does without is found here as before.
            pass
        else:
            # Two threads may come here for their first name.
            names.pop("__getattr__", None)
        return names[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
