"""Ranks that a script starts itself, by ``torch.multiprocessing.spawn``: each of them records, and the script does not.

What starts them (``torch.multiprocessing.start_processes``, which Lightning and Accelerate call too) gets a function
that records while it runs the script's own one. The script's process, which then waits, leaves its run folder to them.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from perfkit import _env
from perfkit._code_owner import claim
from perfkit._patches import Patches
from perfkit.profiler import profile
from perfkit.run.folder_claim import clear_folder


class RankAdditions(Protocol):
    """What happens to a rank beside its recording: see `perfkit.script.Additions`."""

    def start(self, prof: profile) -> None:
        """Apply the changes, and start the profile."""

    def stop(self, prof: profile, error: BaseException | None) -> None:
        """Undo them, and write what became of them."""


class SpawnedRank:
    """What a rank runs in place of the script's function; it is pickled, and called with the rank's number first."""

    def __init__(
        self,
        function: Callable[..., Any],
        ranks: int,
        arguments: Mapping[str, Any],
        script: str,
        additions: RankAdditions,
    ) -> None:
        self._function, self._ranks, self._arguments, self._script = function, ranks, arguments, script
        self._additions = additions
        #: Whether it came to another process by pickling; a forked one has the script's process with its changes.
        self._pickled = False
        functools.update_wrapper(self, function, updated=())

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pickled": True}

    def __call__(self, index: int, *args: Any) -> Any:
        """Run the script's function as rank ``index``, and record it."""
        _env.set_spawned(index, self._ranks)
        claim(self._script)
        prof = profile(**self._arguments)
        prof.started_by = "perfkit run"
        if self._pickled:
            self._additions.start(prof)
        else:
            prof.start()
        error: BaseException | None = None
        try:
            return self._function(index, *args)
        except BaseException as raised:
            error = raised
            raise
        finally:
            prof.stop(error)
            self._additions.stop(prof, error)


def record_spawned_ranks(
    prof: profile, arguments: Mapping[str, Any], script: str, for_rank: Callable[[], RankAdditions]
) -> Patches:
    """Let the ranks that the script starts record into the folder of ``prof``, until the patches are undone.

    ``arguments`` are those of `perfkit.profile` but for the folder; ``for_rank`` makes what happens to each rank
    beside its recording.
    """

    def around(start_processes: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(start_processes)
        def wrapper(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if (folder := _hand_over(prof)) is not None:
                given = inspect.signature(start_processes).bind(fn, *args, **kwargs).arguments
                of_ranks = {**arguments, "run": folder, "overwrite": False}
                fn = SpawnedRank(fn, given.get("nprocs", 1), of_ranks, script, for_rank())
            return start_processes(fn, *args, **kwargs)

        return wrapper

    patches = Patches()
    for name in ("torch.multiprocessing.spawn", "torch.multiprocessing"):
        # As modules: the package has a function of the first one's name.
        if hasattr(sys.modules.get(name), "start_processes"):
            patches.wrap(sys.modules[name], "start_processes", around)
    return patches


def _hand_over(prof: profile) -> Path | None:
    """The folder of a profile that has recorded no step, which ends without a verdict; None: it stays as it is."""
    if prof.folder is None or prof.step_num or not prof.diagnoses:
        return None
    folder = prof.folder.absolute()
    prof.diagnoses = False
    prof.stop()
    clear_folder(folder)
    return folder
