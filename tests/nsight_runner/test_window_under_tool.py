"""A program notices that it runs under nsys or ncu: its windows open the tool's capture range, not torch's profiler."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import perfkit
from perfkit import _env
from perfkit.commands.doctor import facts
from perfkit.run.reading import read_run

UNDER = {"nsys": "NSYS_PROFILING_SESSION_ID", "ncu": "NV_COMPUTE_PROFILER_PERFWORKS_DIR"}


def train(folder: Path, **options: object) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = perfkit.schedule(wait=1, warmup=1, active=2, repeat=1)
    with perfkit.profile(folder, schedule=schedule, quiet=True, **options) as prof:  # type: ignore[arg-type]  # any of profile's
        for _ in prof.steps(range(8)):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()


@pytest.mark.parametrize(("tool", "variable"), UNDER.items())
def test_under_a_tool_windows_open_its_capture_range_and_torchs_profiler_stays_off(
    tool: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, "1")
    train(tmp_path / "run")
    rank = read_run(tmp_path / "run").ranks[0]

    assert rank.windows == ()
    assert rank.rank is not None
    assert [(window.first_step, window.last_step) for window in rank.rank.windows] == [(2, 3)]
    assert rank.rank.settings["runs under"] == tool
    assert f"this program runs under {tool}: windows open its capture range" in capsys.readouterr().err


def test_without_a_tool_torchs_profiler_records_the_window(tmp_path: Path) -> None:
    train(tmp_path / "run")
    rank = read_run(tmp_path / "run").ranks[0]

    assert [window.name for window in rank.windows] == ["window-0.pt.trace.json.gz"]
    assert rank.rank is not None
    assert "runs under" not in rank.rank.settings


def test_a_profile_that_was_to_record_no_windows_records_none_under_a_tool_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(UNDER["nsys"], "1")
    train(tmp_path / "run", recorders=())

    assert "runs under" not in capsys.readouterr().err


def test_doctor_names_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/somewhere/libToolsInjection64.so")
    monkeypatch.setenv(UNDER["nsys"], "1")

    assert _env.nsight_tool() == "nsys"
    assert ("NVTX", "nsys is attached") in facts()
