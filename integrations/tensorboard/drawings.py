"""Figure data of a run or a trace, made in a separate process, so that a hostile trace cannot harm TensorBoard.

``python -m perfkit.integrations.tensorboard.drawings PATH`` prints it; `Drawings` runs that, and caches the answers.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import OrderedDict
from pathlib import Path

from perfkit._background import BackgroundError, BackgroundProcess

#: Two million events take 12 s; ten times as many still fit.
_TIMEOUT_S = 180.0
#: Figures of any trace are limited to some MB.
_MAX_BYTES = 64 * 2**20
#: The cache of the latest answers: some MB each, so it holds the runs that a person compares.
_CACHE_BYTES = 128 * 2**20
#: Two million events take 0.4 GB; a file that needs thirty times that is not a trace of a few steps.
_MAX_MEMORY = 12 * 2**30
#: figures.json is written when a run ends, after its records; copying files may change their order by this much.
_TOLERANCE_S = 60.0


class Drawings:
    """The answers for the page, as JSON: figure data, or ``{"error": reason}``."""

    def __init__(self) -> None:
        self._cache: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        # One process at a time: TensorBoard's machine has other work.
        self._lock = threading.Lock()

    def of(self, path: str, version: str) -> bytes:
        """The answer for a run folder or trace; ``version`` differs whenever its files have changed."""
        with self._lock:
            key = (path, version)
            if key not in self._cache:
                self._cache[key] = _make(path)
                while len(self._cache) > 1 and sum(map(len, self._cache.values())) > _CACHE_BYTES:
                    self._cache.popitem(last=False)
            self._cache.move_to_end(key)
            return self._cache[key]


def _make(path: str) -> bytes:
    try:
        return BackgroundProcess(__name__, path, timeout_s=_TIMEOUT_S, max_bytes=_MAX_BYTES).output()
    except BackgroundError as error:
        return json.dumps({"error": str(error)}).encode()


def draw(path: str) -> bytes:
    """Figure data of a run folder, a trace or a URL of one, as JSON.

    No source file is read, because those are outside the log directory; lines that figures.json holds are shown.

    Raises:
        PerfkitError: nothing in it can be drawn.
    """
    # TensorBoard's own process imports this module, but not what only the separate process needs.
    import msgspec

    # See above.
    from perfkit import Diagnosis, RunError, diagnose
    from perfkit._regular_file import read_regular
    from perfkit._versioned_json import MAX_JSON_BYTES
    from perfkit.reports.figures import figures_of, read_figures
    from perfkit.run.remote import is_url, local_copy

    at = local_copy(path) if is_url(path) else Path(path)
    problems = []
    if _is_drawn(at):
        try:
            return read_figures(at).to_json()
        except RunError as error:
            problems.append(str(error))
    try:
        diagnosis = diagnose(at)
    except RunError:
        try:
            saved = read_regular(at / "diagnosis.json", MAX_JSON_BYTES, inside=at)
        except OSError:
            saved = None
        if saved is None:
            raise
        diagnosis = Diagnosis.from_json(saved)
    if is_url(path):
        diagnosis = msgspec.structs.replace(diagnosis, source=path)  # not the path of its copy
    data = figures_of(diagnosis, at, read_sources=False)
    return msgspec.structs.replace(data, missing=(*problems, *data.missing)).to_json()


def _is_drawn(folder: Path) -> bool:
    """Whether a run folder has figures that are not older than its records."""
    try:
        drawn = (folder / "figures.json").stat().st_mtime
        records = [file.stat().st_mtime for file in folder.glob("rank-*/*") if not file.name.startswith(".")]
    except OSError:
        return False
    return drawn + _TOLERANCE_S >= max(records, default=0.0)


def _main(path: str) -> int:
    from perfkit import PerfkitError  # see `draw`

    try:
        import resource  # does not exist on Windows

        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    except (ImportError, OSError, ValueError):
        pass  # no such limit, or a container does not allow it
    try:
        answer = draw(path)
    except PerfkitError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    except MemoryError:
        print(f"reading it needs more than {_MAX_MEMORY >> 30} GB of memory", file=sys.stderr)
        return 2
    sys.stdout.buffer.write(answer)
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
