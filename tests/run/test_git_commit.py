"""The commit of a program's folder: by git, by its files where git does not answer, and never an error."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from perfkit import _env


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run(["git", "-C", folder, *identity, *words], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "inside").mkdir(parents=True)
    git(folder, "init", "-q")
    (folder / "train.py").write_text("1")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "x")
    return folder


def test_the_first_folder_in_a_repository_counts_and_changed_files_are_said(repository: Path, tmp_path: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD").strip()

    assert _env.git_commit(str(tmp_path), str(repository / "inside")) == commit
    (repository / "train.py").write_text("2")
    assert _env.git_commit(str(repository)) == f"{commit}-dirty"


def test_outside_of_git_and_in_a_deleted_folder_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert _env.git_commit(str(tmp_path)) is None
    assert _env.git_commit(".") is None


@pytest.mark.parametrize("packed", [False, True])
def test_without_git_its_files_name_the_commit(repository: Path, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = git(repository, "rev-parse", "HEAD").strip()
    if packed:
        git(repository, "pack-refs", "--all")
    git(repository, "worktree", "add", "-q", "../other", "-b", "side")
    monkeypatch.setenv("PATH", "")

    assert _env.git_commit(str(repository)) == f"{commit}-unchecked"
    assert _env.git_commit(str(repository.parent / "other")) == f"{commit}-unchecked"


def test_a_git_that_hangs_is_left_after_its_time(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(*_: object, **options: float) -> None:
        raise subprocess.TimeoutExpired("git", options["timeout"])

    commit = git(repository, "rev-parse", "HEAD").strip()
    monkeypatch.setattr(_env.subprocess, "run", hangs)

    assert _env.git_commit(str(repository)) == f"{commit}-unchecked"


@pytest.mark.parametrize(
    "head", ["", "ref: ", "ref: refs/heads/none", "ref: ../../../../etc/passwd", "\x00" * 9000, "zz"]
)
def test_damaged_files_of_git_are_no_commit(repository: Path, head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / ".git" / "HEAD").write_text(head)
    monkeypatch.setenv("PATH", "")

    assert _env.git_commit(str(repository)) is None


def test_asking_git_leaves_its_files_as_they_are(repository: Path) -> None:
    index = repository / ".git" / "index"
    os.utime(repository / "train.py", (1, 1))  # git would note the new time in its index
    before = index.read_bytes()

    _env.git_commit(str(repository))

    assert index.read_bytes() == before
