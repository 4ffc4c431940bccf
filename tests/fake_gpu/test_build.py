"""Where a machine cannot have the simulated runtime, build.py says so in one sentence, and .ci/run may go on."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent


@pytest.fixture
def build() -> Any:
    spec = importlib.util.spec_from_file_location("perfkit_tests_fake_gpu_build", HERE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def ran(venv: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "build.py"), str(venv)]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)


def is_listed(sentence: str) -> bool:
    return sentence in (HERE.parent / "allowed_skips.txt").read_text().splitlines()


def test_without_a_compiler_it_exits_with_2_and_says_so(tmp_path: Path) -> None:
    done = ran(tmp_path / "venv", PATH=str(tmp_path))

    assert (done.returncode, done.stdout) == (2, "gcc is not installed\n")
    assert is_listed("gcc is not installed")
    assert not (tmp_path / "venv").exists()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_without_torchs_cuda_build_it_exits_with_2_and_says_so(tmp_path: Path) -> None:
    done = ran(tmp_path / "venv", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))

    assert (done.returncode, done.stdout) == (2, "a CUDA build of torch cannot be installed here\n"), done.stderr
    assert is_listed(done.stdout.strip())


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_with_too_little_disk_it_exits_with_2_and_says_so(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["build.py", str(tmp_path / "venv")])
    monkeypatch.setattr(build.shutil, "disk_usage", lambda _: SimpleNamespace(free=5_900_000_000))

    assert build.main() == 2
    said = capsys.readouterr().out.strip()
    assert said == "less than 6 GB of disk are free for torch's CUDA build"
    assert is_listed(said)


def test_an_environment_with_other_pins_or_half_made_is_made_again(build: Any, tmp_path: Path) -> None:
    packages = build.site_packages(tmp_path)
    packages.mkdir(parents=True)
    assert not build.is_ready(tmp_path)
    (tmp_path / "constraints.txt").write_text(build.constraints())
    assert not build.is_ready(tmp_path)
    (packages / build.REST).touch()
    assert build.is_ready(tmp_path)
    (tmp_path / "constraints.txt").write_text(build.constraints().replace("torch===", "torch===1."))
    assert not build.is_ready(tmp_path)
