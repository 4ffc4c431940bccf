"""The wheel: holds the integrations behind the symlink, and works in an environment of its own, without torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from perfkit.reports.page import PARTS

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from a copy of the tree, so that no build folder is left in the checkout."""
    source = tmp_path_factory.mktemp("source") / "tree"
    keep_out = shutil.ignore_patterns(
        ".venv", ".git", "runs", "*.egg-info", "__pycache__", ".mypy_cache", ".ruff_cache"
    )
    shutil.copytree(ROOT, source, symlinks=True, ignore=keep_out)
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


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
    assert {"perfkit/which/answers.json", "perfkit/which/vocabulary.json"} <= names
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


@pytest.mark.slow
def test_the_wheel_in_an_empty_environment_diagnoses_without_torch(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run(
        [str(python), "-I", "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), str(wheel)], check=True
    )
    trace = tmp_path / "trace.json"
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
    trace.write_text(json.dumps({"traceEvents": steps}))
    perfkit = str(tmp_path / "venv" / "bin" / "perfkit")
    helped = subprocess.run([perfkit, "--help"], capture_output=True, text=True, check=True, cwd=tmp_path)
    diagnosed = subprocess.run(
        [perfkit, "diagnose", str(trace)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    has_torch = subprocess.run([str(python), "-c", "import torch"], capture_output=True, check=False, cwd=tmp_path)

    assert "diagnose" in helped.stdout
    assert "trace.json" in diagnosed.stdout
    assert has_torch.returncode == 1
