"""What the callbacks for Lightning and for Hugging Face share: their options, their one profile, their warnings."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, get_args

import perfkit
from perfkit import PerfkitWarning, Phase

#: All phases except those that every loop shows.
_TRAINER_PHASES: tuple[Phase, ...] = tuple(phase for phase in get_args(Phase) if phase not in ("data", "other"))


class RecordingCallback:
    """A callback that records into one run for as long as its process lives.

    A subclass patches the Trainer through an observer, and puts everything back when a training ends.
    """

    def __init__(self, run: Any = None, *, log: bool = True, **options: Any) -> None:
        super().__init__()
        # Not used: wrong options raise here, where they are written, and not when training begins.
        perfkit.profile(run, hooks=False, **options)
        self._run = run
        self._log = log
        self._options = options
        #: The profile of everything that this callback has recorded in this process: its folder, its diagnosis.
        self.profile: perfkit.profile | None = None
        self._observer: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # A profile belongs to one process; a spawned child makes its own.
        return {**vars(self), "profile": None, "_observer": None}

    def _is_first_of(self, callbacks: Iterable[Any]) -> bool:
        """Whether this is the Trainer's first ProfilerCallback; warns if it is not."""
        ours = [callback for callback in callbacks if isinstance(callback, RecordingCallback)]
        if not ours or ours[0] is self:
            return True
        warn(f"this Trainer has {len(ours)} ProfilerCallbacks; only the first one records, remove the others")
        return False

    def _start(self, total_steps: int | None, **overrides: Any) -> perfkit.profile | None:
        """Start the profile or continue it; None if nothing is recorded, which perfkit has reported then.

        ``total_steps`` is the length of the run, None if unknown; ``overrides`` replace options of the user.
        """
        if self.profile is None:
            options = {**self._options, **overrides}
            if options.get("schedule") is None and options.get("total_steps") is None:
                # The default schedule adapts to the length of the run.
                options["total_steps"] = total_steps
            self.profile = perfkit.profile(self._run, hooks=False, **options)
        self.profile.start()
        if self.profile.folder is None:
            return None  # PERFKIT_DISABLE=1, or another profile records
        self.profile.drop_step()  # the time until the first fetch belongs to no step
        return self.profile


def declare_phases(profile: perfkit.profile) -> None:
    """Declare that a Trainer shows all phases: one that does not occur in a step took no time, which is known."""
    profile.step()
    for phase in _TRAINER_PHASES:
        profile.begin(phase)
        profile.end(phase)
    profile.drop_step()


def warn(text: str) -> None:
    """Warn; training continues."""
    warnings.warn(f"perfkit: {text}", PerfkitWarning, stacklevel=3)
