"""A user's folder, and what shows that a rerun has not changed it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's current folder."""
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return folder


@pytest.fixture
def workspace() -> Iterator[Path]:
    """A folder of reruns; not in pytest's own, whose long paths sockets cannot have."""
    folder = Path(tempfile.mkdtemp(prefix="perfkit-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def unchanged(user: Path) -> Callable[[], Callable[[], bool]]:
    """Called now, then later: whether the user's files, their contents and their times are still the same."""

    def listing() -> dict[str, object]:
        return {
            str(path.relative_to(user)): (
                path.lstat().st_mtime_ns,
                path.lstat().st_mode,
                os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None,
            )
            for path in (user, *user.rglob("*"))
        }

    def now() -> Callable[[], bool]:
        before = listing()
        return lambda: listing() == before

    return now
