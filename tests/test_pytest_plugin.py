"""The pytest plugin, in real pytest runs of small projects, each with its own files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = ("-p", "perfkit.pytest_plugin")

TRAIN = """\
def step(model, batch):
    loss = model(batch).square().mean()
    loss.backward()
    return loss.item()


def clean_step(model, batch):
    loss = model(batch).square().mean()
    loss.backward()
    return loss.detach()
"""

HEAD = """\
import pytest
import torch

import train


def named(syncs):
    model = torch.nn.Linear(4, 1)
    syncs.mark_device(model)
    return model


batch = torch.ones(2, 4)
"""


class Run:
    """One pytest run: outcome and text by test, and the whole text."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code = done.returncode
        self.text = done.stdout + done.stderr
        found = re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL) \S*?::(\S+)", self.text, re.M)
        self.outcome = {name.rsplit("::", 1)[-1]: word for word, name in found}
        parts = re.split(r"^_+ (?:ERROR at setup of )?(\S+) _+$", self.text.split("short test summary")[0], flags=re.M)
        self.output = {
            name.rsplit(".", 1)[-1]: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)
        }


def run_pytest(folder: Path, *arguments: str, load: tuple[str, ...] = PLUGIN, **environment: str) -> Run:
    """Run pytest in a folder, with warnings as errors, no other plugin, and no CUDA on a machine that has it."""
    command = [sys.executable, "-m", "pytest", "--strict-markers", "-p", "no:cacheprovider", "-W", "error", "-rA"]
    hermetic = {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "COLUMNS": "200",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [*command, *load, *arguments],
        cwd=folder,
        env={**os.environ, **hermetic, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return Run(done)


# -- markers and the fixture: one run for all

CONFTEST = """\
import asyncio
import inspect

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):  # as the plugins for asyncio do
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        names = pyfuncitem._fixtureinfo.argnames
        asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
        return True
"""

CHECKS = (
    HEAD
    + """\
import asyncio
import unittest
import warnings

import perfkit
from perfkit._patches import installed


@pytest.fixture
def model(syncs):
    return named(syncs)


@pytest.mark.max_syncs(0)
def test_clean(syncs):
    train.clean_step(named(syncs), batch)


@pytest.mark.max_syncs(0)
def test_item(syncs):
    train.step(named(syncs), batch)


@pytest.mark.max_syncs(2)
def test_as_many_as_allowed(syncs):
    model = named(syncs)
    train.step(model, batch)
    train.step(model, batch)


@pytest.mark.max_syncs(0)
def test_named_in_a_fixture(model):
    train.step(model, batch)


@pytest.mark.max_syncs(0)
def test_asks_for_cuda():
    train.step(torch.nn.Linear(4, 1, device="cuda"), torch.ones(2, 4, device="cuda"))


@pytest.mark.max_syncs(0)
def test_a_cpu_script_may_name_the_cpu(syncs):
    model = named(syncs)
    train.clean_step(model.to("cpu"), batch.to("cpu"))
    assert not torch.cuda.is_available()


@pytest.mark.max_syncs(0)
def test_not_named():
    train.step(torch.nn.Linear(4, 1), batch)


@pytest.mark.max_syncs(0)
def test_own_failure(syncs):
    train.step(named(syncs), batch)
    assert "mine" == "first"


@pytest.mark.max_syncs(0)
def test_skips_itself():
    pytest.skip("inside")


@pytest.mark.max_syncs(0)
@pytest.mark.xfail
def test_expected(syncs):
    train.step(named(syncs), batch)


def test_nothing_is_left():
    assert installed() == []


@pytest.mark.max_syncs(0)
async def test_coroutine(syncs):
    model = named(syncs)
    await asyncio.sleep(0)
    train.step(model, batch)


@pytest.mark.max_syncs(0)
class TestOld(unittest.TestCase):
    def test_of_a_unittest_class(self):
        train.step(torch.nn.Linear(4, 1, device="cuda"), torch.ones(2, 4, device="cuda"))


@pytest.mark.max_syncs(0, kinds="print")
def test_other_kinds(syncs):
    train.step(named(syncs), batch)


@pytest.mark.max_syncs(0, ignore="fn:step")
def test_ignored(syncs):
    train.step(named(syncs), batch)


@pytest.mark.max_syncs(0)
def test_allowed(syncs):
    with perfkit.allow_sync("the number is the test's own"):
        assert train.step(named(syncs), batch) >= 0


def test_fixture_without_a_marker(syncs):
    model = named(syncs)
    for _ in range(4):
        train.step(model, batch)
        syncs.step()
    [event] = syncs.events
    assert (event.line, event.count, event.per_step) == (4, 4, 1.0)
    syncs.assert_max(4)
    with pytest.raises(perfkit.SyncBudgetExceeded, match="at most 3 syncs, found 4"):
        syncs.assert_max(3)
    assert "train.py:4" in repr(syncs)


def test_fixture_that_saw_nothing(syncs):
    syncs.assert_max(0)


@pytest.mark.max_syncs(-1)
def test_below_zero(): ...


@pytest.mark.max_syncs("baseline")
def test_no_number(): ...


@pytest.mark.max_syncs(True)
def test_yes(): ...


@pytest.mark.max_syncs(0, mood="dry")
def test_unknown_argument(): ...


@pytest.mark.max_syncs(0, kinds="raed")
def test_unknown_kind(): ...


@pytest.mark.max_syncs(0, mode="cuda")
def test_cuda_absent(): ...
"""
)


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("checks")
    (folder / "train.py").write_text(TRAIN)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_step.py").write_text(CHECKS)
    return run_pytest(folder)


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        ("test_clean", "PASSED"),
        ("test_as_many_as_allowed", "PASSED"),
        ("test_a_cpu_script_may_name_the_cpu", "PASSED"),
        ("test_skips_itself", None),
        ("test_expected", "XFAIL"),
        ("test_other_kinds", "PASSED"),
        ("test_ignored", "PASSED"),
        ("test_allowed", "PASSED"),
        ("test_fixture_without_a_marker", "PASSED"),
        ("test_nothing_is_left", "PASSED"),
    ],
)
def test_a_test_within_its_limit_passes(checks: Run, test: str, outcome: str | None) -> None:
    # pytest names a skip by its place, not by its test.
    assert checks.outcome.get(test) == outcome


@pytest.mark.parametrize(
    "test", ["test_item", "test_named_in_a_fixture", "test_asks_for_cuda", "test_coroutine", "test_of_a_unittest_class"]
)
def test_more_syncs_than_the_number_fail_the_test_with_the_line_and_the_advice(checks: Run, test: str) -> None:
    assert checks.outcome[test] == "FAILED"
    assert checks.output[test].startswith("expected at most 0 syncs, found 1:\n  train.py:4: ")
    assert "read it every N steps" in checks.output[test]


def test_a_test_in_which_no_tensor_was_on_the_device_fails_and_suggests_mark_device(checks: Run) -> None:
    for test in ("test_not_named", "test_fixture_that_saw_nothing"):
        assert checks.outcome[test] == "FAILED"
        assert "nothing was checked" in checks.output[test]
        assert "device_of=" in checks.output[test]
        assert "syncs.mark_device(model)" in checks.output[test]


def test_a_tests_own_failure_is_reported_first_and_its_syncs_below(checks: Run) -> None:
    output = checks.output["test_own_failure"]

    assert "FAILED test_step.py::test_own_failure - AssertionError" in checks.text
    own, syncs = output.split("expected at most 0 syncs")
    assert "assert 'mine' == 'first'" in own
    assert "train.py:4" in syncs


@pytest.mark.parametrize(
    ("test", "text"),
    [
        ("test_below_zero", "0 or more, or none to use the baseline file, got -1"),
        ("test_no_number", "0 or more, or none to use the baseline file, got 'baseline'"),
        ("test_yes", "0 or more, or none to use the baseline file, got True"),
        ("test_unknown_argument", "max_syncs() got an unexpected keyword argument 'mood'"),
        ("test_unknown_kind", "'raed'"),
        ("test_cuda_absent", 'use mode="dry"'),
    ],
)
def test_a_wrong_marker_is_an_error_at_set_up_in_one_line(checks: Run, test: str, text: str) -> None:
    assert checks.outcome[test] == "ERROR"
    assert text in checks.output[test].splitlines()[0]
    assert checks.output[test].startswith(f"test_step.py::{test}: @pytest.mark.max_syncs: ")


# -- loading the plugin


def test_a_run_without_sync_tests_imports_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "test_light.py").write_text(
        "import sys\n"
        "def test_light():\n"
        "    assert 'perfkit.pytest_plugin' in sys.modules\n"
        "    heavy = ('torch', 'numpy', 'msgspec', 'rich', 'perfkit.syncs', 'perfkit.run')\n"
        "    assert [name for name in heavy if name in sys.modules] == []\n"
    )

    assert run_pytest(tmp_path).outcome == {"test_light": "PASSED"}


def test_the_entry_point_loads_the_plugin_in_every_run(tmp_path: Path) -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    points = pyproject.split("[project.entry-points.pytest11]\n")[1].split("\n\n")[0].replace('"', "")
    installed = tmp_path / "site" / "perfkit_entry-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: perfkit-entry\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{points}\n")
    search = os.pathsep.join([str(installed.parent), os.environ.get("PYTHONPATH", "")])

    run = run_pytest(tmp_path, "--help", load=(), PYTHONPATH=search, PYTEST_DISABLE_PLUGIN_AUTOLOAD="")

    assert "--perfkit-update-syncs" in run.text.split("perfkit: host-device syncs")[1]
    assert "perfkit_syncs_baseline" in run.text


# -- the baseline


RATCHET = HEAD + "\n@pytest.mark.max_syncs\ndef test_step(syncs):\n    train.step(named(syncs), batch)\n"


class Project:
    """A folder with a training step that syncs, and its test against the baseline."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.baseline = folder / "perfkit-syncs.json"
        self.write("train.py", TRAIN)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def run(self, *arguments: str, **environment: str) -> Run:
        return run_pytest(self.folder, *arguments, **environment)

    def known(self, *lines: int, test: str = "test_step.py::test_step", op: str = "item") -> None:
        """Write a baseline with one sync of `train.step`."""
        row = {"file": "train.py", "function": "step", "op": op, "kind": "read", "lines": lines}
        tests = {"test_gone.py::test_kept": [row], test: [row]}
        self.baseline.write_text(json.dumps({"version": 1, "tests": tests}))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.write("test_step.py", RATCHET)
    return made


def test_without_a_baseline_every_sync_is_new_and_the_flag_to_record_it_is_named(project: Project) -> None:
    run = project.run()

    assert run.outcome == {"test_step": "FAILED"}
    assert run.output["test_step"].splitlines()[:2] == [
        "new syncs (perfkit-syncs.json does not exist):",
        "+ train.py:4 in step: item (read)",
    ]
    assert "If they are intended, record them: pytest --perfkit-update-syncs" in run.output["test_step"]
    assert not project.baseline.exists()


def test_updating_writes_the_syncs_of_the_tests_that_ran_and_keeps_the_others(project: Project) -> None:
    project.known(17)

    run = project.run("--perfkit-update-syncs")

    assert run.code == 0
    assert project.baseline.read_text() == (
        '{\n  "version": 1,\n  "tests": {\n'
        '    "test_gone.py::test_kept": [\n'
        '      {"file": "train.py", "function": "step", "op": "item", "kind": "read", "lines": [17]}\n    ],\n'
        '    "test_step.py::test_step": [\n'
        '      {"file": "train.py", "function": "step", "op": "item", "kind": "read", "lines": [4]}\n    ]\n'
        "  }\n}\n"
    )
    assert "perfkit-syncs.json written: 2 known syncs (before: 2), tests recorded: 1" in run.text
    assert sorted(path.name for path in project.folder.glob("perfkit-*")) == ["perfkit-syncs.json"]


def test_known_syncs_pass_also_where_their_lines_have_moved(project: Project) -> None:
    project.known(400)

    run = project.run()

    assert run.outcome == {"test_step": "PASSED"}
    assert "no longer a sync" not in run.text


def test_a_second_line_of_a_known_sync_is_new_and_syncs_that_no_longer_occur_are_listed(
    project: Project,
) -> None:
    project.known(4)
    rows = json.loads(project.baseline.read_text())
    rows["tests"]["test_step.py::test_step"].append(
        {"file": "train.py", "function": "step", "op": "nonzero", "kind": "shape", "lines": [9]}
    )
    project.baseline.write_text(json.dumps(rows))
    project.write("train.py", TRAIN.replace("return loss.item()", "loss.item()\n    return loss.item()", 1))

    output = project.run().output["test_step"].splitlines()

    assert output[0] == "new syncs (not in perfkit-syncs.json):"
    assert [line for line in output if line.startswith(("+", "-"))] == [
        "+ train.py:5 in step: item (read)",
        "- train.py:9 in step: nonzero (shape)",
    ]


def test_a_known_sync_that_no_longer_occurs_is_in_the_summary_and_removed_by_updating(project: Project) -> None:
    project.known(4)
    project.write("train.py", TRAIN.replace("loss.item()", "loss.detach()"))

    run = project.run()
    updated = project.run("--perfkit-update-syncs")

    assert run.outcome == {"test_step": "PASSED"}
    assert "no longer a sync: test_step.py::test_step: train.py:4 in step: item (read)" in run.text
    assert updated.code == 0
    assert list(json.loads(project.baseline.read_text())["tests"]) == ["test_gone.py::test_kept"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<<<<<<< HEAD\n{}", "JSONDecodeError"),
        ('{"version": 2, "tests": {}}', "its version is 2, not 1"),
        ('{"version": 1, "tests": {"a": [{"file": "x"}]}}', "KeyError: 'function'"),
        ('{"version": 1, "tests": []}', "AttributeError"),
    ],
)
def test_a_damaged_baseline_fails_the_tests_that_need_it_and_is_not_overwritten(
    project: Project, text: str, error: str
) -> None:
    project.baseline.write_text(text)
    project.write("test_step.py", "import pytest\n\n@pytest.mark.max_syncs\ndef test_step(): ...")
    project.write("test_other.py", "def test_other(): ...")

    run = project.run("--perfkit-update-syncs")

    assert run.outcome == {"test_step": "ERROR", "test_other": "PASSED"}
    first = run.output["test_step"].splitlines()[0]
    assert error in first
    assert first.endswith("Repair or delete it; it is not overwritten.")
    assert project.baseline.read_text() == text


def test_the_ini_option_sets_the_path_of_the_baseline(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\nperfkit_syncs_baseline = ci/known.json\n")

    missing = project.run("--perfkit-update-syncs")
    (project.folder / "ci").mkdir()
    written = project.run("--perfkit-update-syncs")

    assert missing.code == 1
    assert "ci/known.json was not written: " in missing.text
    assert written.code == 0
    assert "test_step.py::test_step" in (project.folder / "ci" / "known.json").read_text()


def test_a_test_that_fails_by_itself_changes_neither_the_baseline_nor_the_summary(project: Project) -> None:
    project.known(4)
    before = project.baseline.read_text()
    project.write("test_step.py", RATCHET.replace("    train.step", "    assert not 'mine'\n    train.step"))

    assert "no longer a sync" not in project.run().text
    updated = project.run("--perfkit-update-syncs")

    assert "perfkit-syncs.json is unchanged" in updated.text
    assert project.baseline.read_text() == before


def test_a_test_against_the_baseline_that_checked_nothing_fails_and_is_not_recorded(project: Project) -> None:
    project.write("test_step.py", RATCHET.replace("(named(syncs)", "(torch.nn.Linear(4, 1)"))

    run = project.run("--perfkit-update-syncs")

    assert run.outcome == {"test_step": "FAILED"}
    assert "device_of=" in run.output["test_step"]
    assert not project.baseline.exists()


def test_a_test_fails_if_perfkit_is_disabled(project: Project) -> None:
    run = project.run(PERFKIT_DISABLE="1")

    assert run.outcome == {"test_step": "FAILED"}
    assert run.output["test_step"].splitlines()[0].endswith("PERFKIT_DISABLE turns perfkit off")


XDIST = """\
import json


def pytest_configure(config):
    config.workerinput = {}  # what pytest-xdist sets in a worker


def pytest_runtest_logreport(report):
    if report.when == "call":
        print("sent", json.dumps(report._to_json()["perfkit_syncs"]))
"""


def test_a_worker_of_xdist_sends_what_its_tests_did_and_writes_nothing(project: Project) -> None:
    project.write("conftest.py", XDIST)

    run = project.run("--perfkit-update-syncs", "-s")

    assert run.outcome == {"test_step": "PASSED"}
    assert 'sent [["train.py", "step", "item", "read", [4]]]' in run.text
    assert not project.baseline.exists()
