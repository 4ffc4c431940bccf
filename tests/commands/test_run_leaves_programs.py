"""`perfkit run` leaves a program as it is: what it prints, its exit code, its end by a signal, the files it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfkit.run.reading import read_run

#: Each test runs two programs, and one of them is diagnosed.
pytestmark = pytest.mark.slow

#: Twelve steps of training, which a program does before it ends in its own way.
TRAIN = """
import atexit, os, signal, sys, threading, time
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps=12):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
atexit.register(lambda: print("the program's own end", flush=True))
"""

#: Name -> what the program does, and what it is started with.
PROGRAMS = {
    "reads stdin": "train(); print(sys.stdin.read().upper())",
    "changes its folder": "os.chdir('elsewhere'); train(); open('mine.txt', 'w').write('x'); print(os.getcwd()[-9:])",
    # Rows are written 14 at a time, or each second: what ends a program at once may take the last of them along.
    "leaves at once": "train(40); print('last words', flush=True); os._exit(3)",
    "exits with a message": "train(); sys.exit('no more data')",
    "raises": "train(); raise KeyError('epoch')",
    "raises an error whose text cannot be made": """
class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError("str")
train()
raise Unreadable
""",
    "has a hook for errors that fails": """
def hook(kind, error, trace):
    print("hook", kind.__name__, flush=True)
    1 / 0
sys.excepthook = hook
train()
raise KeyError("epoch")
""",
    "becomes a daemon": """
train()
sys.stdout.flush()
if os.fork() == 0:
    os.setsid()
    train()
    open('daemon.txt', 'w').write(str(os.getsid(0) == os.getpid()))
    os._exit(0)
os.wait()
print('parent is done')
""",
    "has its own signal handler": """
signal.signal(signal.SIGUSR1, lambda *_: print('handled', flush=True))
train()
os.kill(os.getpid(), signal.SIGUSR1)
train()
""",
    "ends by SIGTERM": "train(40); os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
    "ends by its handler of SIGTERM": """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
train()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
""",
    "asserts": "train(); assert print('asserted') is None; print(__debug__, sys.flags.optimize)",
}


def ended(folder: Path, *command: str, stdin: str = "a line\n") -> subprocess.CompletedProcess[str]:
    (folder / "elsewhere").mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, *command], cwd=folder, input=stdin, capture_output=True, text=True, check=False, timeout=240
    )


def files(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and "__pycache__" not in str(path)
    }


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_ends_and_leaves_what_it_does_alone(name: str, tmp_path: Path) -> None:
    flags = ["-O"] if name == "asserts" else []
    plain, recorded = tmp_path / "plain", tmp_path / "recorded"
    for folder in (plain, recorded):
        folder.mkdir()
        (folder / "train.py").write_text(TRAIN + PROGRAMS[name])
    expected = ended(plain, *flags, "train.py")

    seen = ended(recorded, *flags, "-m", "perfkit", "run", "train.py")

    assert (seen.stdout, seen.returncode) == (expected.stdout, expected.returncode), seen.stderr
    own = {file for file in files(recorded) if not file.startswith(f"runs{os.sep}")}
    assert own == files(plain)
    (run,) = (recorded / "runs").iterdir()
    assert len(read_run(run).ranks[0].steps) >= 1


def test_tests_that_pytest_runs_are_recorded_and_pytest_keeps_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "training.py").write_text(TRAIN)
    (tmp_path / "test_it.py").write_text(
        "from training import train\ndef test_trains(): train()\ndef test_fails(): assert 1 == 2\n"
    )

    done = ended(tmp_path, "-m", "perfkit", "run", "--out", "x", "-m", "pytest", "-q", "-p", "no:cacheprovider")

    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert len(read_run(tmp_path / "x").ranks[0].steps) >= 10


def test_ctrl_c_runs_the_programs_handlers_and_ends_its_workers(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        TRAIN
        + """
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 100_000
    def __getitem__(self, index):
        open(f'worker-{os.getpid()}', 'w').close()
        time.sleep(0.01)
        return torch.ones(4)
for batch in torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2):
    model(batch).sum().backward()
    optimizer.step()
"""
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "perfkit", "run", "--out", "x", "train.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # Where the tests run in a shell's background, a child would inherit that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    rows = tmp_path / "x" / "rank-0" / "steps.jsonl"
    deadline = time.monotonic() + 100
    while not (rows.exists() and rows.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    try:
        out, _ = process.communicate(timeout=100)
    finally:
        process.kill()

    assert process.returncode == -signal.SIGINT
    assert "the program's own end" in out
    workers = [int(path.name.partition("-")[2]) for path in tmp_path.glob("worker-*")]
    assert workers
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


BARS = """
import sys, time
from tqdm import tqdm
for _ in tqdm(range(10), file=sys.stderr, mininterval=0):
    time.sleep(0.01)
    if _ == 5:
        from perfkit._stderr import write_beside_bars
        write_beside_bars("perfkit: first verdict\\nA step takes 5 ms.\\n")
"""


def test_lines_that_perfkit_prints_stand_between_the_drawings_of_a_bar(tmp_path: Path) -> None:
    pytest.importorskip("tqdm")
    (tmp_path / "bar.py").write_text(BARS)

    done = ended(tmp_path, "bar.py")

    # What a terminal shows: a carriage return goes back to the beginning of its line.
    shown = [line.split("\r")[-1] for line in done.stderr.split("\n")]
    assert "perfkit: first verdict" in shown
    assert "A step takes 5 ms." in shown
    assert shown[-2].startswith("100%")
