"""The public names of perfkit and their modules: the one list of them, which `perfkit.__getattr__` reads too."""

from perfkit.comparison import Comparison as Comparison
from perfkit.comparison import compare as compare
from perfkit.diagnosis import Diagnosis as Diagnosis
from perfkit.diagnosis import diagnose as diagnose
from perfkit.diagnosis import diagnose_ranks as diagnose_ranks
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
from perfkit.integrations import trace_handler as trace_handler
from perfkit.latency import measure_latency as measure_latency
from perfkit.profiler import profile as profile
from perfkit.profiler import step as step
from perfkit.profiler import steps as steps
from perfkit.ranges import annotate_modules as annotate_modules
from perfkit.ranges import mark as mark
from perfkit.ranges import range as range
from perfkit.record.triggers.trigger_settings import triggers as triggers
from perfkit.record.windows.schedules import schedule as schedule
from perfkit.replay.results import WhatIf as WhatIf
from perfkit.replay.what_if import what_if as what_if
from perfkit.run.records import Phase as Phase
from perfkit.run.records import Trial as Trial
from perfkit.syncs import allow_sync as allow_sync
from perfkit.syncs import detect_syncs as detect_syncs
from perfkit.trial.applied import changes as changes
from perfkit.trial.trying import try_changes as try_changes

__version__: str
__all__: list[str]
