"""A rerun changes nothing but its own folder, and what it would change elsewhere ends it with the path and the line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perfkit.trial.protection import Protection, Refusal
from perfkit.trial.reruns import RerunPlan, TriedProgram, start_rerun
from perfkit.trial.work_folder import CannotOwn, WorkFolder

Unchanged = Callable[[], Callable[[], bool]]

READS = os.O_RDONLY | os.O_CLOEXEC
APPENDS = os.O_WRONLY | os.O_CREAT | os.O_APPEND
WRITES = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


@pytest.fixture
def shown(user: Path, workspace: Path) -> WorkFolder:
    """A user's folder with a file, a package and data, as a rerun shows it."""
    (user / "log.txt").write_text("before")
    (user / "package").mkdir()
    (user / "package" / "paths.py").write_text("")
    (user / "data" / "train").mkdir(parents=True)
    (user / "data" / "train" / "1.png").write_bytes(b"image")
    made = WorkFolder(user, workspace / "rerun" / "root")
    made.root.parent.mkdir()
    made.make()
    return made


@pytest.fixture
def protection(shown: WorkFolder) -> Protection:
    return Protection(shown)


# -- the folder in which a rerun works


def test_a_rerun_sees_the_user_s_folder_and_those_above_it(shown: WorkFolder) -> None:
    work = shown.work
    assert (work / "log.txt").read_text() == "before"
    assert [str(path.relative_to(work)) for path in work.rglob("*.png")] == ["data/train/1.png"]
    assert (work / ".." / shown.source.name / "log.txt").read_text() == "before"
    assert {path.name for path in work.parent.iterdir()} == {path.name for path in shown.source.parent.iterdir()}


def test_a_path_made_from_the_real_place_of_a_module_is_in_the_rerun(shown: WorkFolder) -> None:
    assert (shown.work / "package" / "paths.py").resolve() == shown.work / "package" / "paths.py"


def test_a_folder_of_many_files_is_one_link_until_it_is_written_into(
    user: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch, unchanged: Unchanged
) -> None:
    monkeypatch.setattr("perfkit.trial.work_folder._MAX_ENTRIES", 10)
    (user / "data").mkdir()
    for number in range(20):
        (user / "data" / f"{number}.png").touch()
    same = unchanged()
    shown = WorkFolder(user, workspace / "rerun" / "root")
    shown.root.parent.mkdir()
    shown.make()
    data = shown.work / "data"
    assert data.is_symlink()

    shown.own(str(data / "cache.npy"), follow=True)
    (data / "cache.npy").touch()

    assert not data.is_symlink()
    assert len(list(data.iterdir())) == 21
    assert same()
    monkeypatch.setattr("perfkit.trial.work_folder._MAX_OWNED", 5)
    (shown.work / "more").symlink_to(user / "data")
    with pytest.raises(CannotOwn, match="a folder of more than 5 entries"):
        shown.own(str(shown.work / "more" / "cache.npy"), follow=True)


# -- what a program may do


def test_what_is_written_through_a_link_reaches_a_copy(
    shown: WorkFolder, protection: Protection, unchanged: Unchanged
) -> None:
    same = unchanged()
    log = shown.work / "log.txt"
    protection.check("open", (str(log), "a", APPENDS))
    with log.open("a") as file:
        file.write(" and after")
    assert log.read_text() == "before and after"

    image = shown.work / "data" / "train" / "1.png"
    protection.check("open", (str(image), "wb", WRITES))
    assert not image.exists()
    protection.check("os.chmod", (str(shown.work / "data"), 0o700, -1))
    (shown.work / "data").chmod(0o700)
    assert same()


def test_what_cannot_be_copied_is_not_written_through_its_link(
    shown: WorkFolder, protection: Protection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*paths: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copy2", full)
    with pytest.raises(Refusal, match=re.escape(f"writes {shown.source}/log.txt")):
        protection.check("open", (str(shown.work / "log.txt"), "a", APPENDS))


@pytest.mark.parametrize("event", ["open", "os.mkdir", "os.remove", "os.rename", "os.symlink", "sqlite3.connect"])
def test_what_changes_something_outside_is_refused(protection: Protection, user: Path, event: str) -> None:
    path = str(user / "log.txt")
    arguments = {
        "open": (path, "a", APPENDS),
        "os.mkdir": (path, 0o777, -1),
        "os.remove": (path, -1),
        "os.rename": ("/dev/null", path, -1, -1),
        "os.symlink": ("/dev/null", path, -1),
        "sqlite3.connect": (path,),
    }[event]
    with pytest.raises(Refusal, match=re.escape(f"writes {path}, which is not the rerun's")) as refused:
        protection.check(event, arguments)
    assert re.match(r"\S*test_protection.py:\d+ writes", str(refused.value))
    assert f"--allow-writes {user}" in str(refused.value)


@pytest.mark.parametrize(
    ("event", "arguments"),
    [
        ("open", ("/etc/passwd", "r", READS)),
        ("open", (3, "w", WRITES)),
        ("open", ("/dev/null", "w", WRITES)),
        ("open", (os.path.expanduser("~/.cache/x"), "w", WRITES)),
        ("open", ("/usr/lib/__pycache__/x.pyc", "w", WRITES)),
        ("open", (None, None, WRITES)),
        ("os.mkdir", ()),
        ("socket.connect", (None, "/var/run/socket")),
        ("socket.connect", (None, ("example.com", 443))),
        ("sqlite3.connect", (":memory:",)),
        ("sqlite3.connect", ("file:/etc/data.db?mode=ro",)),
    ],
)
def test_what_changes_nothing_is_allowed(protection: Protection, event: str, arguments: tuple[object, ...]) -> None:
    protection.check(event, arguments)


def test_a_database_and_a_question_are_refused(protection: Protection) -> None:
    with pytest.raises(Refusal, match="connects to the database at db:5432"):
        protection.check("socket.connect", (None, ("db", 5432)))
    with pytest.raises(Refusal, match="asks for input"):
        protection.check("builtins.input", ("Continue? ",))


def test_the_first_refusal_is_written_down(protection: Protection, shown: WorkFolder) -> None:
    for port in (5432, 6379):
        with pytest.raises(Refusal):
            protection.check("socket.connect", (None, ("db", port)))
    written = json.loads((shown.root.parent / "ending-refused.json").read_text())
    assert written["ending"] == "refused"
    assert "db:5432" in written["message"]


def test_a_folder_that_the_user_allows_may_be_written(
    shown: WorkFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(shown.root.parent / "tmp"))
    allowing = Protection(shown, (str(tmp_path / "out"),))
    allowing.check("open", (str(tmp_path / "out" / "x"), "w", WRITES))
    with pytest.raises(Refusal):
        allowing.check("open", (str(tmp_path / "output"), "w", WRITES))


# -- whole programs

HOSTILE = """
import json, multiprocessing, os, pathlib, shutil, sqlite3, subprocess, sys, tempfile

def attempt(do):
    try:
        do()
    except BaseException as error:
        return type(error).__name__
    return "done"

def spawned():
    open(sys.argv[1] + "/spawned", "w")

def remove_all():
    shutil.rmtree("outputs")
    os.makedirs("outputs/new")

def change_folder():
    os.chdir("outputs")
    open("here.txt", "w").close()
    os.chdir("..")

def database(path):
    with sqlite3.connect(path) as connection:
        connection.execute("create table runs (id)")

if __name__ == "__main__":
    user = sys.argv[1]
    found = {
        "absolute": attempt(lambda: open(user + "/absolute", "w")),
        "descriptor": attempt(lambda: os.open(user + "/log.txt", os.O_WRONLY)),
        "replace": attempt(lambda: os.replace("log.txt", user + "/new.txt")),
        "question": attempt(input),
        "database": attempt(lambda: database(user + "/log.db")),
        "hard link": attempt(lambda: os.link(user + "/log.txt", "other.txt")),
        "relative": attempt(lambda: pathlib.Path("log.txt").write_text("after")),
        "temporary": attempt(lambda: tempfile.NamedTemporaryFile().write(b"x")),
        "remove": attempt(remove_all),
        "folder": attempt(change_folder),
        "own database": attempt(lambda: database("runs.db")),
        "above": attempt(lambda: pathlib.Path("../above.txt").write_text("x")),
        "place": attempt(lambda: (pathlib.Path(__file__).resolve().parent / "place.txt").write_text("x")),
        "program": subprocess.run([sys.executable, "-c", f"open({user + '/program'!r}, 'w')"]).returncode,
    }
    worker = multiprocessing.get_context("spawn").Process(target=spawned)
    worker.start()
    worker.join()
    found["spawned"] = worker.exitcode
    pathlib.Path("found.json").write_text(json.dumps(found))
"""


def test_a_program_that_writes_wherever_it_can_changes_nothing_of_the_user_s(
    user: Path, workspace: Path, unchanged: Unchanged
) -> None:
    (user / "log.txt").write_text("before")
    (user / "outputs").mkdir()
    (user / "outputs" / "old.txt").touch()
    (user / "train.py").write_text(HOSTILE)
    above = sorted(user.parent.iterdir())
    same = unchanged()
    with start_rerun(TriedProgram("train.py", (str(user),)), RerunPlan(), workspace) as running:
        result = running.wait(100)
        work = running.folder / f"root{user}"
        found = json.loads((work / "found.json").read_text())
        assert (work / "outputs" / "here.txt").exists()

    assert same()
    assert sorted(user.parent.iterdir()) == above
    refused = ("absolute", "descriptor", "replace", "question", "database", "hard link")
    done = ("relative", "temporary", "remove", "folder", "own database", "above", "place")
    assert found == {
        **dict.fromkeys(refused, "Refusal"),
        **dict.fromkeys(done, "done"),
        "program": 1,
        "spawned": 1,
    }
    assert result.ending == "refused"
    line = 1 + next(number for number, text in enumerate(HOSTILE.splitlines()) if '"absolute"' in text)
    assert result.message.startswith(f"train.py:{line} writes {user}/absolute, which is not the rerun's")


WORKER = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        if index == 8:
            {write}
        return torch.zeros(1)

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(Data(), num_workers={workers}):
    try:
        model(batch).sum().backward()
        optimizer.step()
    except Exception:
        pass
"""


@pytest.mark.parametrize(
    ("workers", "write"), [(1, "open(sys.argv[1], 'w')"), (0, "torch.save(model.state_dict(), sys.argv[1])")]
)
def test_a_refusal_in_a_worker_and_of_torch_save_reaches_the_result(
    user: Path, workspace: Path, unchanged: Unchanged, workers: int, write: str
) -> None:
    source = WORKER.format(workers=workers, write=write)
    (user / "train.py").write_text(source)
    same = unchanged()
    with start_rerun(TriedProgram("train.py", (str(user / "x.pt"),)), RerunPlan(), workspace) as running:
        result = running.wait(100)
    assert same()
    line = 1 + source.splitlines().index(f"            {write}")
    assert (result.ending, result.message.split(",")[0]) == ("refused", f"train.py:{line} writes {user}/x.pt")


def test_an_event_that_changes_nothing_costs_little(shown: WorkFolder) -> None:
    script = (
        "import sys, timeit\n"
        "from pathlib import Path\n"
        "from perfkit.trial.protection import Protection, _hook_of\n"
        "from perfkit.trial.work_folder import WorkFolder\n"
        "bare = min(timeit.repeat('id(0)', number=100_000, repeat=5))\n"
        "sys.addaudithook(lambda event, arguments: None)\n"
        "empty = min(timeit.repeat('id(0)', number=100_000, repeat=5))\n"
        "sys.addaudithook(_hook_of(Protection(WorkFolder(Path.cwd(), Path(sys.argv[1])))))\n"
        "print(min(timeit.repeat('id(0)', number=100_000, repeat=5)) - empty, empty - bare)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(shown.root)], capture_output=True, text=True, check=True)
    ours, empty = map(float, done.stdout.split())
    assert ours < 4 * empty
