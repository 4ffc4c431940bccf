"""Figure data of a run or a trace, made in a process of its own: what a hostile trace does, it does there.

``python -m perfkit.integrations.tensorboard.drawings PATH`` prints it; `Drawings` asks for it, and keeps the last ones.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import OrderedDict
from pathlib import Path

from perfkit._background import BackgroundError, BackgroundProcess

#: Two million events take 12 s; ten times as many still come in time.
_TIMEOUT_S = 180.0
#: Figures of any trace are bounded to some MB.
_LARGEST = 64 * 2**20
#: What is kept of answers, the last ones: some MB each, so the runs that a person looks at in turn.
_KEPT = 128 * 2**20
#: Two million events take 0.4 GB; what asks for thirty times that is no trace of a few steps.
_MEMORY = 12 * 2**30
#: figures.json is written when a run ends, after its records; files that were copied lie in any order.
_LATE_S = 60.0


class Drawings:
    """The answers for pages, as JSON: figure data, or ``{"error": why there is none}``."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        # One after the other: TensorBoard's machine has other work.
        self._one = threading.Lock()

    def of(self, path: str, version: str) -> bytes:
        """The answer for a run folder or trace; ``version`` is another one whenever its files have changed."""
        with self._one:
            key = (path, version)
            if key not in self._kept:
                self._kept[key] = _make(path)
                while len(self._kept) > 1 and sum(map(len, self._kept.values())) > _KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]


def _make(path: str) -> bytes:
    try:
        return BackgroundProcess(__name__, path, timeout_s=_TIMEOUT_S, max_bytes=_LARGEST).output()
    except BackgroundError as error:
        return json.dumps({"error": str(error)}).encode()


def draw(path: str) -> bytes:
    """Figure data of a run folder, a trace or a URL of one, as JSON.

    No source file is read: those lie outside the log directory. Lines that figures.json has kept are shown.

    Raises:
        PerfkitError: there is nothing in it that can be drawn.
    """
    import msgspec

    from perfkit import Diagnosis, RunError, diagnose
    from perfkit.reports.figures import figures_of, read_figures
    from perfkit.run.remote import is_url, local_copy

    at = local_copy(path) if is_url(path) else Path(path)
    problems = []
    if _drawn_lately(at):
        try:
            return read_figures(at).to_json()
        except RunError as error:
            problems.append(str(error))
    try:
        diagnosis = diagnose(at)
    except RunError:
        kept = at / "diagnosis.json"
        if not kept.is_file():
            raise
        diagnosis = Diagnosis.from_json(kept.read_bytes())
    if is_url(path):
        diagnosis = msgspec.structs.replace(diagnosis, source=path)  # not where its copy lies
    data = figures_of(diagnosis, at, read_sources=False)
    return msgspec.structs.replace(data, missing=(*problems, *data.missing)).to_json()


def _drawn_lately(folder: Path) -> bool:
    """Whether the figures in a run folder are not older than what they show."""
    try:
        drawn = (folder / "figures.json").stat().st_mtime
        records = [file.stat().st_mtime for file in folder.glob("rank-*/*") if not file.name.startswith(".")]
    except OSError:
        return False
    return drawn + _LATE_S >= max(records, default=0.0)


def _main(path: str) -> int:
    from perfkit import PerfkitError

    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    except (ImportError, OSError, ValueError):
        pass  # Windows has no such limit, and a container may forbid to set it
    try:
        answer = draw(path)
    except PerfkitError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    except MemoryError:
        print(f"it needs more than {_MEMORY >> 30} GB of memory to be read", file=sys.stderr)
        return 2
    sys.stdout.buffer.write(answer)
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
