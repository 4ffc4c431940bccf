"""Of a line that waits for a lock, the other block that holds the lock is found in the source."""

from __future__ import annotations

from pathlib import Path

from perfkit.record.samplers.held_locks import find_held_locks
from perfkit.run.records import LineRow

SOURCE = """
class Bench:
    def run(self):
        with self.lock:
            self.act()
            self.measure()
        with self.lock:
            self.replay.add()

    def reset(self):
        with self.other:
            self.act(), self.act(), self.act()

def learn(bench):
    with bench.lock:
        batch = bench.replay.sample()
    wait(batch)
"""


def row(file: Path, line: int, *, waits: bool = True, worker: str | None = None) -> LineRow:
    waiting = {"": 9} if waits else None
    return LineRow(
        file=str(file), line=line, function="learn", owner="user", phase="forward", samples=9, host_ns=1,
        waiting=waiting, worker=worker,
    )  # fmt: skip


def test_it_is_the_block_of_the_same_name_that_calls_most(tmp_path: Path) -> None:
    file = tmp_path / "bench.py"
    file.write_text(SOURCE)

    [held] = find_held_locks([row(file, 15)], (str(file),))

    assert (held.line, held.held_at.line) == (15, 4)


def test_a_line_that_does_not_wait_or_holds_no_lock_has_none(tmp_path: Path) -> None:
    file = tmp_path / "bench.py"
    file.write_text(SOURCE)

    assert (
        find_held_locks([row(file, 15, waits=False), row(file, 17), row(file, 15, worker="Rows")], (str(file),)) == ()
    )


def test_a_lock_that_nothing_else_holds_during_calls_has_none(tmp_path: Path) -> None:
    file = tmp_path / "alone.py"
    file.write_text("def one():\n    with lock:\n        f()\ndef two():\n    with lock:\n        x = 1\n")

    assert find_held_locks([row(file, 2)], (str(file),)) == ()


def test_the_lock_of_another_classs_self_is_another_lock(tmp_path: Path) -> None:
    file = tmp_path / "two.py"
    file.write_text(
        f"{SOURCE}\nclass Plant:\n    def stop(self):\n        with self.lock:\n            f(), f(), f()\n"
    )

    [held] = find_held_locks([row(file, 7)], (str(file),))

    assert held.held_at.line == 4
