"""System calls that fail and kills at any moment: training has its own outcome, and the folder what was recorded.

The programs are forks of one process (fork_server.py).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from perfkit.diagnosis import diagnose
from perfkit.errors import RunError
from perfkit.run.reading import rank_folders, read_run
from tests.faults.injector import ERRORS, PROGRAMS, fault
from tests.faults.matrix import PAGE, PYTHON, SUITE, ForkServer, lasting, measure_program, page

#: What a kill may lose: this many steps, or those of this time.
MAX_STEPS, MAX_NS = 64, 2_000_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, injector: Path) -> Iterator[ForkServer]:
    with ForkServer(tmp_path_factory.mktemp("forks") / "case", injector) as started:
        yield started


def test_a_file_that_cannot_be_replaced_changes_nothing_in_training(server: ForkServer) -> None:
    rows = measure_program(server, "plain", calls=("rename",))

    assert [row for row in rows if not row.equal] == []
    assert {kind for row in rows for kind in row.kinds} >= {"@/run/run.json", "@/run/rank-0/rank.json"}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("program", SUITE)
def test_every_call_that_fails_changes_nothing_in_training(server: ForkServer, program: str) -> None:
    rows = measure_program(server, program)

    assert [row for row in rows if not row.equal] == []
    # The page says the same: a call that is new, or gone, is written by `python -m tests.faults.matrix`.
    measured = {call: cells[program] for call, cells in table(page(rows)).items()}
    written = {call: cells.get(program, "no such call") for call, cells in table(PAGE.read_text()).items()}
    assert f"- {program}: {SUITE[program][0]}; not run yet" in PAGE.read_text() or measured == {
        call: cell for call, cell in written.items() if cell != "no such call"
    }


def table(text: str) -> dict[str, dict[str, str]]:
    """Fault -> program -> cell."""
    head, _, *rows = [re.split(r" *\| *", line.strip("| ")) for line in text.splitlines() if line.startswith("|")]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def test_the_page_names_every_program_and_every_fault_and_all_are_equal() -> None:
    cells = table(PAGE.read_text())

    assert {*SUITE} == {path.stem for path in PROGRAMS.glob("*.py")} - {"endless"}
    not_run = {name for name in SUITE if f"- {name}: {SUITE[name][0]}; not run yet" in PAGE.read_text()}
    assert all({*row} == {*SUITE} - not_run for row in cells.values())
    names = {name.split(":")[0] for name in cells}
    assert names == {"no fault", *ERRORS, *PYTHON.values(), *lasting("")} - {"fsync", "mmap"}  # perfkit calls neither
    assert {cell for row in cells.values() for cell in row.values()} <= {"equal", "no such call"}


@pytest.mark.slow
def test_a_disk_that_becomes_full_leaves_no_unfinished_file(server: ForkServer) -> None:
    full = fault("write", f"{server.run_folder}/*", nth=20, sticky=True)
    outcome, _, failed = server.run("plain", faults=[full])

    assert outcome.codes == [3]
    assert any(call.endswith("trace.json.tmp") for call in failed), failed
    assert "No space left on device" in outcome.stderr[0]
    assert [*server.run_folder.rglob(".part-*")] == []


# -- kills


def check_killed_run(server: ForkServer, after_s: float) -> int:
    """Kill a run that long after it began; returns how many of its steps can be read."""
    outcome, _, _ = server.run("endless", kill_after_s=after_s, log=None)
    assert outcome.codes == [-9], outcome.stderr
    run = server.run_folder
    progress = run.parents[1] / "program" / "progress"
    # Killed before the program opened it: it has done no step.
    made = [line.split() for line in progress.read_text().splitlines()] if progress.exists() else []
    ended = {int(step): int(at_ns) for step, at_ns in made}
    assert rank_folders(run)
    try:
        rank = read_run(run).ranks[0]
    except RunError as error:
        refusal, rows = str(error), []  # killed before a row was due
    else:
        refusal = None
        rows = rank.steps
        assert all(row.step == before.step + before.steps for before, row in pairwise(rows))
        assert rank.lost == []
        assert any("is gone: it was killed" in one for one in diagnose(run).missing)
    if (run / "rank-0" / "rank.json").exists():
        assert refusal is None or "is gone: it was killed" in refusal
    kept = sum(row.steps for row in rows)
    lost = [at_ns for step, at_ns in ended.items() if step >= kept]
    assert len(lost) <= MAX_STEPS or max(lost) - min(lost) <= MAX_NS, (kept, len(ended))
    # What is hidden is unfinished, and taken by no reader.
    assert all(path.name.startswith(".") for path in run.rglob("*") if path.name.endswith(".tmp"))
    return kept


@pytest.mark.slow
def test_a_step_costs_a_tenth_of_a_system_call(server: ForkServer) -> None:
    server.run("endless", kill_after_s=2.0)

    folder = server.run_folder.parents[1]
    calls = [line.split() for line in (folder / "log").read_text().splitlines()]
    # A window's files are written once: what is left is what steps cost, a write each 14 and a look each second.
    of_steps = [call for call in calls if call[2].endswith(("steps.jsonl", "trigger"))]
    assert len(of_steps) < len((folder / "program" / "progress").read_text().splitlines()) / 10 + 40


@pytest.mark.parametrize("after_s", [0.05, 1.0, 3.0])
def test_a_run_that_is_killed_keeps_its_steps_and_says_so(server: ForkServer, after_s: float) -> None:
    check_killed_run(server, after_s)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_hundred_kills_at_random_moments_lose_next_to_nothing(server: ForkServer) -> None:
    moments = random.Random(20)
    kept = [check_killed_run(server, moments.uniform(0, 4)) for _ in range(100)]

    assert max(kept) > 1000  # the kills came late enough to have something to lose
