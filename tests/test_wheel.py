"""The wheel and the sdist: hold the integrations behind the symlink, and work without torch on every Python here.

Someone else's type checker accepts the public names, and pip installs perfkit beside what people train with.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

import perfkit
from perfkit._version import VERSION
from perfkit.reports.page import PARTS

ROOT = Path(__file__).resolve().parent.parent
#: A program of a user's, which a type checker reads and nothing runs.
TYPED = ROOT / "tests" / "typed_program.py"
#: The oldest Python for which every pin of constraints.txt has a wheel.
PINNED_FROM = (3, 11)


class Built(NamedTuple):
    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist of a copy of the tree, so that no build folder is left in the checkout, and the wheel built from it."""
    source = tmp_path_factory.mktemp("source") / "tree"
    keep_out = shutil.ignore_patterns(
        ".venv*", ".git", "runs", "*.egg-info", "__pycache__", ".mypy_cache", ".ruff_cache", "_build", "_generated"
    )
    shutil.copytree(ROOT, source, symlinks=True, ignore=keep_out)
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return Built(wheel, sdist)


@pytest.fixture(scope="module")
def wheel(built: Built) -> Path:
    return built.wheel


def files_below(folder: str) -> set[str]:
    return {
        f"perfkit/{path.relative_to(ROOT if folder == 'integrations' else ROOT / 'perfkit')}"
        for path in (ROOT / folder).rglob("*.py")
    }


def test_the_wheel_holds_every_integration_and_the_demo_script(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())

    assert files_below("integrations") <= names
    assert {"perfkit/py.typed", "perfkit/__init__.pyi", "perfkit/demo/train.py"} <= names
    assert "perfkit/integrations/tensorboard/static/index.js" in names
    assert {f"perfkit/which/{name}.json" for name in ("answers", "everyday", "vocabulary")} <= names
    assert "perfkit/trace/nsight/ncu_labels.json" in names
    assert not [name for name in names if name.startswith(("integrations/", "tests/", "benchmarks/"))]


def test_the_wheel_holds_every_part_of_the_page(wheel: Path) -> None:
    folder = "perfkit/reports/page/"
    held = {name.removeprefix(folder) for name in zipfile.ZipFile(wheel).namelist() if name.startswith(folder)}

    # No part lies in the folder without a place in the script, and none has a place and does not lie there.
    assert held == {"__init__.py", *PARTS, "perfkit.css", "page.css"}
    assert held == {path.name for path in (ROOT / folder).iterdir() if path.is_file()}


def test_integrations_is_a_real_folder_and_perfkit_integrations_a_link_to_it() -> None:
    link = ROOT / "perfkit" / "integrations"

    assert link.is_symlink()
    assert link.readlink() == Path("../integrations")
    assert not (ROOT / "integrations").is_symlink()


def test_the_sdist_holds_the_package_and_none_of_its_tests(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "perfkit/py.typed"} <= names
    assert files_below("integrations") <= names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "docs"))]


def test_the_version_of_the_wheel_has_a_section_in_the_changelog(wheel: Path) -> None:
    assert wheel.name == f"perfkit-{VERSION}-py3-none-any.whl"
    assert re.search(rf"^## {re.escape(VERSION)}(?: |$)", (ROOT / "CHANGELOG.md").read_text(), re.M)


# -- installed


def other_python(version: str) -> str | None:
    """A Python of this version that starts; a version manager's placeholder does not."""
    found = [shutil.which(f"python{version}"), *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    for candidate in found:
        if candidate and subprocess.run([candidate, "-m", "venv", "-h"], capture_output=True).returncode == 0:
            return candidate
    return None


def install(python: str, folder: Path, *packages: Path) -> Path:
    """The Python of a new environment with these packages and what they ask for."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    inside = folder / "bin" / "python"
    version = subprocess.check_output([inside, "-c", "import sys; print(*sys.version_info[:2])"], text=True)
    # The pins are of this Python and later ones.
    pins = ("-c", str(ROOT / "constraints.txt")) if tuple(map(int, version.split())) >= PINNED_FROM else ()
    pip = [str(inside), "-I", "-m", "pip", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "install", "-q", *pins, *map(str, packages)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    subprocess.run([*pip, "check"], check=True)
    return inside


def works_without_torch(python: Path, folder: Path) -> None:
    """Runs the commands that need no torch, from an empty folder."""

    def output(*command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout

    perfkit = str(python.with_name("perfkit"))
    steps = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{n}",
            "pid": 1,
            "tid": 1,
            "ts": n * 100,
            "dur": 100,
        }
        for n in range(3)
    ]
    (folder / "trace.json").write_text(json.dumps({"traceEvents": steps}))

    assert output(perfkit, "--version") == f"perfkit {VERSION}\n"
    assert "diagnose" in output(perfkit, "--help")
    assert "trace.json" in output(perfkit, "diagnose", "trace.json")
    assert "input-bound" in output(perfkit, "explain")
    output(perfkit, "diagnose", "trace.json", "page.html", "--html")
    assert (folder / "page.html").read_text().lower().startswith("<!doctype html>")
    imports = f"import perfkit; assert perfkit.__version__ == {VERSION!r}; perfkit.range; perfkit.diagnose"
    output(str(python), "-W", "error", "-c", imports)
    assert subprocess.run([python, "-c", "import torch"], capture_output=True, check=False, cwd=folder).returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_the_wheel_works_without_torch_in_an_environment_of_each_python(
    wheel: Path, tmp_path: Path, version: str
) -> None:
    python = other_python(version)
    if python is None:
        pytest.skip("this Python is not installed")

    works_without_torch(install(python, tmp_path / "venv", wheel), tmp_path)


@pytest.mark.slow
def test_the_sdist_works_without_torch_in_an_environment_of_its_own(built: Built, tmp_path: Path) -> None:
    works_without_torch(install(sys.executable, tmp_path / "venv", built.sdist), tmp_path)


@pytest.mark.slow
def test_it_installs_beside_wandb_transformers_and_lightning_and_changes_no_version_of_theirs(wheel: Path) -> None:
    others = ("wandb", "transformers", "lightning")

    def resolved(*packages: str) -> dict[str, str]:
        command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--report", "-"]
        done = subprocess.run([*command, *packages], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found = [item["metadata"] for item in json.loads(done.stdout)["install"]]
        return {item["name"]: item["version"] for item in found}

    without, together = resolved(*others), resolved(*others, str(wheel))

    assert {name: together[name] for name in without} == without
    assert together["perfkit"] == VERSION


# -- types


def test_the_typed_example_uses_every_public_name() -> None:
    tree = ast.parse(TYPED.read_text())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "perfkit"
    }
    assert used == set(perfkit.__all__)


@pytest.mark.slow
def test_a_strict_type_checker_accepts_a_program_that_uses_every_public_name(wheel: Path, tmp_path: Path) -> None:
    python = install(sys.executable, tmp_path / "venv", wheel)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python)]
    # Of wrong calls the checker reports each one: a name without types would accept anything.
    wrong = "perfkit.compare(1, 2)\nperfkit.profile(schedules=3)\nperfkit.diagnose('x').verdikt\n"
    (tmp_path / "program.py").write_text(TYPED.read_text())
    (tmp_path / "wrong.py").write_text(f"import perfkit\n\n{wrong}")
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}

    def check(name: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, "--cache-dir", str(tmp_path / "cache"), name],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    accepted, refused = check("program.py"), check("wrong.py")

    assert accepted.returncode == 0, accepted.stdout
    assert {int(line) for line in re.findall(r"^wrong\.py:(\d+): error", refused.stdout, re.M)} == {3, 4, 5}
