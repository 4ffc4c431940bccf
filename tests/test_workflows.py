"""The hooks, the workflow and the issue templates: they run what .ci/run runs, and ask for what an answer needs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import ROOT


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def recipe(target: str) -> list[str]:
    """The command lines of a target of the Makefile, without the folder of the tools."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert found is not None
    return [line.strip().removeprefix("$(BIN)/") for line in found[1].splitlines()]


def test_the_hooks_are_the_checks_of_make_check_and_the_site() -> None:
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    entries = [hook["entry"] for hook in repository["hooks"]]

    tools = [entry.removeprefix(".venv/bin/").removesuffix(" --force-exclude") for entry in entries]
    assert tools[:-1] == [line.removesuffix(" .") for line in recipe("check")]
    assert tools[-1] == "make docs"
    assert repository["repo"] == "local"  # the versions are those of constraints.txt


def test_the_workflow_runs_ci_run_on_the_pythons_that_the_wheel_is_tested_with() -> None:
    (job,) = read(".github/workflows/ci.yml")["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    (pythons,) = (
        step["with"]["python-version"].split() for step in job["steps"] if "python-version" in step.get("with", {})
    )

    assert commands == [".ci/run"]
    # The last one is the Python of .venv.
    assert pythons[-1] == "3.11"
    wheel = (ROOT / "tests" / "test_wheel.py").read_text()
    assert sorted(pythons) == re.findall(r'"(3\.\d+)"', re.search(r'parametrize\("version", (\[.*\])\)', wheel)[1])  # type: ignore[index]


def test_ci_run_checks_builds_the_site_and_runs_the_tests() -> None:
    commands = re.findall(r"^make (\S+)$", (ROOT / ".ci" / "run").read_text(), re.M)

    assert commands == ["check", "docs", "test-all"]


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
)
def test_an_issue_template_asks_for_perfkit_doctor(path: Path) -> None:
    template = yaml.safe_load(path.read_text())
    if path.stem == "config":
        return
    asked = {field["id"]: field for field in template["body"]}

    assert "perfkit doctor" in asked["doctor"]["attributes"]["description"]
    assert path.stem == "question" or asked["doctor"]["validations"] == {"required": True}
