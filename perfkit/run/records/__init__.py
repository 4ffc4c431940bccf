"""The records of a run folder: frozen Structs, times in integer nanoseconds; not measured is None, never zero.

One module for each file of the folder: `steps` (steps.jsonl), `rank` (run.json, rank.json, failure.json) with
`program`, `gpu` and `energy`, `lines` and `needless_work` (lines.json, stacks-N.lines.npz), `syncs` (syncs.json),
`ranges` (ranges.npz, ranges-N.npz), `limits` (limits.json), `memory` (peak-N.json), `changes` (changes.json), `trial`
(trial.json), `sweep` (sweep.json).
All names can be imported from here.
"""

from perfkit.run.records.changes import *  # noqa: F403 - the names are listed once, in the files that define them
from perfkit.run.records.energy import *  # noqa: F403
from perfkit.run.records.gpu import *  # noqa: F403
from perfkit.run.records.limits import *  # noqa: F403
from perfkit.run.records.lines import *  # noqa: F403
from perfkit.run.records.memory import *  # noqa: F403
from perfkit.run.records.needless_work import *  # noqa: F403
from perfkit.run.records.program import *  # noqa: F403
from perfkit.run.records.ranges import *  # noqa: F403
from perfkit.run.records.rank import *  # noqa: F403
from perfkit.run.records.steps import *  # noqa: F403
from perfkit.run.records.sweep import *  # noqa: F403
from perfkit.run.records.syncs import *  # noqa: F403
from perfkit.run.records.trial import *  # noqa: F403
from perfkit.run.records.version import *  # noqa: F403
