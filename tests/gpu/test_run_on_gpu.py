"""What only a GPU can tell: kernels in the window, idle that adds up, syncs seen by torch itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import perfkit
from perfkit.measures.gathering import measure
from perfkit.measures.results.device import DeviceTime
from perfkit.measures.results.host import RangeTime
from perfkit.record.hooks.losses import log_losses
from perfkit.run.reading import read_run
from perfkit.trace import read_trace
from perfkit.trace.columns import Kind


class Training:
    """Matrix products on the GPU, with one sync per step where asked for."""

    def __init__(self, *, sync: bool = False) -> None:
        self.model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.batch = torch.randn(256, 1024, device="cuda")
        self.sync = sync

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = self.model(self.batch).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        if self.sync:
            loss.item()


def record(folder: Path, training: Training, **options: Any) -> perfkit.profile:
    with perfkit.profile(folder, quiet=True, **options) as prof:
        for _ in prof.steps(range(40)):
            training.step()
    return prof


@pytest.mark.semantics
def test_a_window_holds_kernels_linked_to_their_launches(tmp_path: Path) -> None:
    record(tmp_path / "x", Training())
    trace = read_trace(read_run(tmp_path / "x").ranks[0].windows[0])

    kernels = trace.kind == Kind.KERNEL
    assert kernels.sum() > 50
    assert (trace.launch[kernels] >= 0).mean() > 0.95


@pytest.mark.semantics
def test_busy_and_idle_of_the_device_add_up_and_idle_to_its_causes(tmp_path: Path) -> None:
    record(tmp_path / "x", Training())
    (device,) = measure(tmp_path / "x").all(DeviceTime)

    assert device.busy_ns + device.idle_ns == device.window_ns
    assert sum(device.causes.values()) == device.idle_ns


@pytest.mark.semantics
def test_a_sync_in_every_step_is_found_at_its_line_and_has_a_price(tmp_path: Path) -> None:
    prof = record(tmp_path / "x", Training(sync=True), detect_syncs="cuda")
    syncs = read_run(tmp_path / "x").ranks[0].syncs

    assert syncs is not None
    (event,) = [event for event in syncs.events if event.function == "Training.step"]
    assert event.op == "item"
    assert event.per_step == 1
    assert event.blocked_ns is not None
    assert prof.diagnosis is not None
    assert "sync-in-step" in [finding.rule for finding in prof.diagnosis.findings]


@pytest.mark.semantics
def test_a_step_without_syncs_has_none() -> None:
    training = Training()
    training.step()
    with perfkit.detect_syncs(mode="cuda") as syncs:
        for _ in range(3):
            training.step()

    syncs.assert_max(0)


@pytest.mark.semantics
def test_ranges_stand_in_the_trace_over_their_kernels(tmp_path: Path) -> None:
    training = Training()
    training.step = perfkit.range("whole step")(training.step)  # type: ignore[method-assign]  # as a user would
    record(tmp_path / "x", training)

    (found,) = [
        time for time in measure(tmp_path / "x").all(RangeTime) if time.name == "whole step" and time.device_busy_ns
    ]
    assert found.device_busy_ns is not None
    assert found.device_busy_ns > 0


@pytest.mark.semantics
def test_recording_leaves_the_users_peak_memory_alone(tmp_path: Path) -> None:
    training = Training()
    training.step()
    torch.cuda.reset_peak_memory_stats()
    big = torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda")
    del big
    before = torch.cuda.max_memory_allocated()
    record(tmp_path / "x", training)

    assert torch.cuda.max_memory_allocated() >= before


@pytest.mark.slow
@pytest.mark.timeout(900)  # twelve trainings, each some 30,000 calls of the host: minutes on a busy machine
@pytest.mark.semantics
def test_the_demo_runs_on_the_gpu_and_prices_the_sync(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "perfkit", "demo", "--out", "demo"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "sync-in-step" in done.stdout


@pytest.mark.semantics
def test_logging_the_loss_is_no_sync(tmp_path: Path) -> None:
    training = Training()
    training.step()
    with perfkit.profile(tmp_path / "x", quiet=True, recorders=(), triggers=()) as prof:
        patches = log_losses(prof)
        try:
            torch.cuda.set_sync_debug_mode("error")
            for _ in prof.steps(range(40)):
                training.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
            patches.undo()

    rows = read_run(tmp_path / "x").ranks[0].steps
    assert [row.step for row in rows if row.loss is None] == []
