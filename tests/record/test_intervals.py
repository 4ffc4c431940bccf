"""The line that sets how often something runs: the N of ``if step % N == 0``, wherever the program sets it."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest

from perfkit._location import Location
from perfkit.record.samplers.intervals import find_intervals
from perfkit.record.samplers.user_source import HotPlaces, hot_places
from perfkit.run.records import CallPaths

LOOP = """def main(config, every=7):
    for step in range(99):
        if step % {every} == 0:
            report()  # hot
"""


def set_at(folder: Path, text: str) -> str | None:
    """What stands in the line that sets how often the hot line runs."""
    file = folder / "train.py"
    file.write_text(text)
    linecache.checkcache(str(file))
    lines = text.splitlines()
    hot = next(number for number, line in enumerate(lines, start=1) if "# hot" in line)
    at = Location(file=str(file), line=hot, function="main", owner="user")
    intervals = find_intervals(HotPlaces(frozenset(), {(str(file), hot): at}))
    return lines[(intervals[0].set_at.line or 0) - 1].strip() if intervals else None


@pytest.mark.parametrize(
    ("every", "before", "expected"),
    [
        ("EVERY", "EVERY = 16\n", "EVERY = 16"),
        ("config.report_every", "class Config:\n    report_every: int = 8\n", "report_every: int = 8"),
        ('config["report_every"]', "config = {\n    'report_every': 8,\n}\n", "'report_every': 8,"),
        (
            "args.log_every",
            "parser.add_argument('--log-every', default=4)\n",
            "parser.add_argument('--log-every', default=4)",
        ),
        ("self.every", "callback = Report(every=5)\n", "callback = Report(every=5)"),
        ("every", "", "def main(config, every=7):"),
        ("10", "", "if step % 10 == 0:"),
        ("len(loader)", "", "if step % len(loader) == 0:"),
        ("given", "def run(given):\n    main(given)\n", "if step % given == 0:"),
    ],
)
def test_it_is_found_where_the_number_stands_else_where_it_is_tested(
    every: str, before: str, expected: str, tmp_path: Path
) -> None:
    assert set_at(tmp_path, before + LOOP.format(every=every)) == expected


def test_where_another_test_is_enough_the_condition_is_what_to_change(tmp_path: Path) -> None:
    for other in ("verbose", "loss < best"):
        text = "EVERY = 16\n" + LOOP.format(every="EVERY").replace("if step", f"if {other} or step")

        assert set_at(tmp_path, text) == f"if {other} or step % EVERY == 0:"


@pytest.mark.parametrize("other", ["step == last", "step < 5"])
def test_a_step_that_is_compared_besides_leaves_n_to_decide(other: str, tmp_path: Path) -> None:
    for both in ("or", "and"):
        text = "EVERY = 16\n" + LOOP.format(every="EVERY").replace(" == 0:", f" == 0 {both} {other}:")

        assert set_at(tmp_path, text) == "EVERY = 16"


def test_what_runs_in_every_step_or_where_the_source_is_gone_has_none(tmp_path: Path) -> None:
    assert set_at(tmp_path, "def main():\n    for step in range(9):\n        report()  # hot\n") is None
    assert set_at(tmp_path, LOOP.format(every="9").replace("% 9 ==", ">")) is None
    at = Location(file="gone.py", line=4, function="main", owner="user")
    assert find_intervals(HotPlaces(frozenset(), {("gone.py", 4): at})) == ()


def test_a_function_that_returns_in_most_steps_runs_in_every_nth(tmp_path: Path) -> None:
    text = (
        "class Monitor:\n"
        "    def on_step(self, step):\n"
        "        if step % self.every:\n"
        "            return\n"
        "        for name in self.names:\n"
        "            report(name)  # hot\n"
        "monitor = Monitor(every=1)\n"
    )

    assert set_at(tmp_path, text) == "monitor = Monitor(every=1)"
    # Something else than leaving the function decides nothing about what comes after it.
    other = tmp_path / "other"
    other.mkdir()
    assert set_at(other, text.replace("            return", "            note()")) is None


def test_a_line_of_an_optimizer_of_the_programs_own_has_an_interval_but_not_the_loop_that_accumulates(
    tmp_path: Path,
) -> None:
    text = (
        "class Shampoo(Optimizer):\n    def step(self):\n        if state['step'] % group['every'] == 0:\n"
        "            root = inverse(state)\noptimizer = Shampoo(every=1)\n"
        "def main():\n    if step % accumulated == 0:\n        optimizer.step()\n"
    )
    file = tmp_path / "train.py"
    file.write_text(text)
    hot, called = (Location(file=str(file), line=line, function="f", owner="user") for line in (4, 8))
    torch_ = Location(file="torch.optim", line=None, function="step", owner="torch")
    paths = CallPaths(
        frames=(called, torch_, hot), frame=(0, 1, 2), parent=(-1, 0, 1), phase=("optimizer",) * 3, samples=(0, 9, 40)
    )

    [interval] = find_intervals(hot_places(paths))

    assert (interval.line, interval.set_at.line) == (4, 5)
