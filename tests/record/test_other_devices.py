"""Training on XPU, MPS and others, and on builds for them: the host is recorded, and what is missing is said.

The stand-in is a weight that says it is on another device, and computes on the CPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import perfkit
from perfkit import _env
from perfkit.measures.gathering import measure
from perfkit.record.other_devices import trained_on
from perfkit.run.reading import RankFolder, read_run


class Elsewhere(torch.nn.Parameter):
    """A weight that says it is on a device that this machine does not have."""

    kind = "xpu"

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # what torch's own attribute returns
        return torch.device(self.kind)


def weight_on(kind: str) -> Elsewhere:
    weight = Elsewhere(torch.ones(4))
    weight.kind = kind
    return weight


def train(kind: str, folder: Path, **options: Any) -> RankFolder:
    """A run of a weight on ``kind``, with its window and the steps after it."""
    weight = weight_on(kind)
    optimizer = torch.optim.SGD([weight], lr=0.1, foreach=False)
    with perfkit.profile(folder, quiet=True, report=False, **options) as prof:
        for _ in prof.steps(range(60)):
            optimizer.zero_grad()
            (weight * 2).sum().backward()
            optimizer.step()
    return read_run(folder).ranks[0]


@pytest.mark.parametrize("kind", ["xpu", "mps", "privateuseone"])
def test_a_model_on_another_device_is_recorded_and_the_run_says_what_is_missing(kind: str, tmp_path: Path) -> None:
    found = train(kind, tmp_path / "x", detect_syncs="auto")

    assert found.rank is not None
    assert found.rank.errors == ()
    assert found.rank.devices == (kind,)
    assert len(found.steps) == 60
    assert all(step.phases_ns.backward is not None for step in found.steps)
    assert all(step.device_phases_ns is None and step.memory_bytes is None for step in found.steps)
    notes = " ".join(found.rank.notes)
    assert f"the model is on {kind}: perfkit measures the host" in notes
    assert f"syncs were not detected: the model is on {kind}" in notes


def no_device_work(folder: Path) -> list[str]:
    return [problem for problem in measure(folder).missing if "no device work" in problem]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("xpu", "; torch's profiler records it on XPU only where torch was built with Intel's PTI"),
        ("mps", "; torch's profiler records none on MPS, torch.mps.profiler does for Instruments"),
        ("privateuseone", ""),
    ],
)
def test_a_window_without_work_of_the_device_says_so_for_that_device(kind: str, reason: str, tmp_path: Path) -> None:
    train(kind, tmp_path / "x")

    assert no_device_work(tmp_path / "x") == [
        f"the trace holds no device work although the program used {kind}{reason}"
    ]


def test_a_window_of_rocm_without_kernels_names_the_card(tmp_path: Path) -> None:
    found = train("cpu", tmp_path / "x")
    file = found.folder / "rank.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "devices": ["AMD Instinct MI300X"]}))

    assert no_device_work(tmp_path / "x") == [
        "the trace holds no device work although the program used AMD Instinct MI300X"
    ]


def test_out_of_memory_and_snapshots_are_said_to_need_cuda(tmp_path: Path) -> None:
    found = train("xpu", tmp_path / "x", recorders=("memory",), triggers="out-of-memory")

    assert found.rank is not None
    assert found.rank.errors == ()
    notes = " ".join(found.rank.notes)
    assert "no memory snapshot: the program does not use CUDA" in notes
    assert "only some out-of-memory errors are detected: the program does not use CUDA" in notes


def test_a_device_of_cuda_or_the_host_is_no_other_device() -> None:
    for kind in ("cpu", "cuda"):
        assert trained_on([torch.optim.SGD([weight_on(kind)], lr=0.1, foreach=False)]) == ()


def test_rocm_is_cuda_to_perfkit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "AMD Instinct MI300X")

    assert _env.cuda_in_use()
    assert _env.devices() == ["AMD Instinct MI300X"]


def test_whether_cuda_is_in_use_is_asked_without_the_driver(tmp_path: Path) -> None:
    def asked(*args: Any) -> Any:
        raise AssertionError("perfkit asked the driver")

    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("is_available", "device_count", "init", "_lazy_init", "get_device_name", "synchronize"):
            patch.setattr(torch.cuda, name, asked)
        with perfkit.profile(tmp_path / "x", quiet=True, report=False, recorders=("memory", "ranges")) as prof:
            for _ in prof.steps(range(20)):
                with perfkit.range("timed", device_time=True):
                    weight.sum().backward()
                optimizer.step()

    rank = read_run(tmp_path / "x").ranks[0].rank
    assert rank is not None
    assert rank.errors == ()
    assert rank.devices == ()


def test_syncs_that_were_to_be_detected_on_cuda_are_said_to_be_missing_where_it_was_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    with perfkit.profile(tmp_path / "x", quiet=True, report=False, recorders=(), detect_syncs="cuda") as prof:
        for _ in prof.steps(range(5)):
            torch.ones(2)

    rank = read_run(tmp_path / "x").ranks[0].rank
    assert rank is not None
    assert "syncs were not detected: the program did not use CUDA" in rank.notes
