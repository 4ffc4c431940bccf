"""recomputed-activations: a forward that the backward repeats is a cost where there is memory to keep what it made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perfkit
from perfkit._location import Location
from perfkit.measures.results.patterns import RepeatedForwards
from perfkit.rules.memory import recomputed_activations
from perfkit.run.records import CallPaths, Lines

MS = 1_000_000
GB = 10**9


def user(line: int, function: str) -> Location:
    return Location(file="train.py", line=line, function=function, owner="user")


def library(name: str, function: str) -> Location:
    return Location(file=name, line=None, function=function)


LOSS, CALL, BLOCK = user(50, "main"), user(36, "Encoder.forward"), user(21, "Block.forward")
CHECKPOINT, ENGINE = library("torch.utils.checkpoint", "checkpoint"), library("torch.autograd", "_engine_run_backward")


def lines_of(*paths: tuple[str, int, tuple[Location, ...]]) -> Lines:
    """Lines whose samples have these phases, counts and paths."""
    frames = tuple(dict.fromkeys(frame for _, _, path in paths for frame in path))
    columns: list[tuple[int, int, Any, int]] = []
    for phase, samples, path in paths:
        for depth, frame in enumerate(path):
            above = len(columns) - 1 if depth else -1
            columns.append((frames.index(frame), above, phase, samples if depth == len(path) - 1 else 0))
    frame, parent, phase, samples = zip(*columns, strict=True)
    return Lines(
        period_ns=10 * MS,
        steps=20,
        paths=CallPaths(frames=frames, frame=frame, parent=parent, phase=phase, samples=samples),
    )


REPEATED = lines_of(
    ("other", 40, (LOSS, CALL, CHECKPOINT, BLOCK)),
    ("backward", 60, (LOSS, ENGINE)),
    ("backward", 40, (LOSS, ENGINE, CHECKPOINT, BLOCK)),
)


def found(build: Any, lines: Lines, used: int | None = GB) -> Any:
    settings = {"memory_bytes": str(8 * GB)} | ({"peak_resident_bytes": str(used)} if used is not None else {})
    rank = msgspec.structs.replace(build.rank(), settings=settings)
    return build.findings(recomputed_activations, build.step(100.0, backward=60.0), lines, rank)


def test_the_repeated_forward_s_share_of_the_backward_is_the_cost_and_the_checkpoint_is_to_edit(build: Any) -> None:
    [finding] = found(build, REPEATED)

    assert finding.cost_ns == 24 * MS
    assert (finding.spent, finding.change, finding.severity) == (BLOCK, CALL, "warning")


@pytest.mark.parametrize("used", [5 * GB, None], ids=["more than half", "unknown"])
def test_where_the_memory_may_be_needed_it_is_information(build: Any, used: int | None) -> None:
    [finding] = found(build, REPEATED, used)

    assert finding.severity == "info"


def test_the_backward_of_what_was_repeated_is_no_repeated_forward(build: Any) -> None:
    reentrant = lines_of(
        ("backward", 40, (LOSS, ENGINE, CHECKPOINT, BLOCK)), ("backward", 60, (LOSS, ENGINE, CHECKPOINT, ENGINE))
    )

    [finding] = found(build, reentrant)

    assert finding.cost_ns == 24 * MS
    assert found(build, lines_of(("backward", 100, (LOSS, ENGINE)), ("other", 40, (LOSS, CALL, CHECKPOINT)))) == []


def on_device(build: Any, share: float, *, device_ms: int, used: int | None = GB) -> list[Any]:
    """Of a step of 100 ms on a GPU of 8 GB, 60 of them in the backward, of which the host repeats ``share``."""
    rank = msgspec.structs.replace(build.rank(), settings={"cuda:0.total_bytes": str(8 * GB)})
    repeated = RepeatedForwards(count=6, ns=device_ms * MS, backward_share=share)
    step = msgspec.structs.replace(build.step(100.0, backward=60.0), memory_peak_bytes=used)
    parts = (step, build.traced_step(100.0), build.device(1000, compute=400), build.patterns(repeated=repeated))
    found: list[Any] = build.findings(recomputed_activations, *parts, rank, REPEATED)
    return found


@pytest.mark.parametrize(("share", "device_ms", "cost_ms"), [(0.4, 10, 24), (0.1, 10, 10)])
def test_on_a_device_the_repeated_forward_costs_its_time_or_that_of_a_host_that_is_slower(
    build: Any, share: float, device_ms: int, cost_ms: int
) -> None:
    [finding] = on_device(build, share, device_ms=device_ms)

    assert (finding.cost_ns, finding.spent, finding.severity) == (
        cost_ms * MS,
        CALL,
        "warning",
    )
    assert "the process uses 1.0 GB of 8.0 GB of the device's memory" in finding.message


def test_on_a_device_whose_memory_is_needed_it_is_information(build: Any) -> None:
    assert [one.severity for one in on_device(build, 0.4, device_ms=10, used=5 * GB)] == ["info"]
    assert [one.severity for one in on_device(build, 0.4, device_ms=10, used=None)] == ["info"]


PROGRAM = """
import sys, torch
from torch import nn
from torch.utils.checkpoint import checkpoint
blocks = [nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(3)]
model = nn.ModuleList(blocks)
opt = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(250):
    x = torch.randn(256, 256)
    for block in model:
        x = checkpoint(block, x, use_reentrant=False)
    x.square().mean().backward()
    opt.step()
    opt.zero_grad()
"""


def test_a_program_that_checkpoints_its_blocks_is_found_by_its_recording(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "perfkit", "run", "--quiet", "--out", str(tmp_path / "run"), "train.py"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    findings = perfkit.diagnose(tmp_path / "run").findings

    finding = next(one for one in findings if one.rule == "recomputed-activations")
    assert finding.change is not None
    assert (
        finding.change.line == PROGRAM.splitlines().index("        x = checkpoint(block, x, use_reentrant=False)") + 1
    )


def test_a_library_that_checkpoints_is_edited_where_the_program_asks_it_to(build: Any) -> None:
    trainer = library("transformers", "Trainer.training_step")
    lines = lines_of(
        ("other", 40, (LOSS, trainer, CHECKPOINT, library("transformers", "Layer.forward"))),
        ("backward", 60, (LOSS, trainer, ENGINE)),
        ("backward", 40, (LOSS, trainer, ENGINE, CHECKPOINT, library("transformers", "Layer.forward"))),
    )
    argument = Location(file="train.py", line=12, function="gradient_checkpointing=")
    settings = {"memory_bytes": str(8 * GB), "peak_resident_bytes": str(GB)}
    rank = msgspec.structs.replace(build.rank(), settings=settings, calls={"gradient_checkpointing": (argument,)})

    [finding] = build.findings(recomputed_activations, build.step(100.0, backward=60.0), lines, rank)

    assert (finding.spent, finding.change) == (LOSS, argument)
