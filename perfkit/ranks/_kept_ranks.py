"""What was made of ranks, kept in the user's cache folder: to resume, and to have one rank at a time in memory."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from perfkit._env import cache_folder
from perfkit._regular_file import read_regular
from perfkit.ranks.rank_columns import MAX_FILE_BYTES
from perfkit.ranks.rank_sources import RankSource
from perfkit.run.atomic import write_atomically

#: Folders that stay, the newest ones: one of 10,000 ranks may have 1 GB.
_FOLDERS = 4


class KeptRanks:
    """The files of some ranks' columns, one for each digest."""

    def __init__(self, sources: Sequence[RankSource]) -> None:
        # Ranks that lie together are kept together: as many files as there are ranks.
        parents = sorted({os.path.dirname(source.path.rstrip("/")) for source in sources})
        name = hashlib.sha256("\0".join(parents).encode(errors="surrogateescape")).hexdigest()[:16]
        self._folder = cache_folder() / "ranks" / name
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            os.utime(self._folder)
            self._tidy({f"{source.digest}.rank" for source in sources})

    def _tidy(self, names: set[str]) -> None:
        """Remove what was made of files that have changed, and the oldest folders."""
        for file in self._folder.glob("*.rank"):
            if file.name not in names:
                file.unlink(missing_ok=True)
        folders = sorted(self._folder.parent.iterdir(), key=lambda folder: folder.stat().st_mtime)
        for folder in folders[:-_FOLDERS]:
            shutil.rmtree(folder, ignore_errors=True)

    def read(self, source: RankSource) -> bytes | None:
        """What was made of the files of a rank; None: nothing."""
        try:
            return read_regular(self._path(source), MAX_FILE_BYTES, inside=self._folder)
        except OSError:
            return None

    def write(self, source: RankSource, data: bytes) -> bool:
        """Keep what was made of a rank; False where it cannot be written."""
        try:
            write_atomically(self._path(source), data)
        except OSError:
            return False
        return True

    def _path(self, source: RankSource) -> Path:
        return self._folder / f"{source.digest}.rank"
