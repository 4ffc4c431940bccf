"""Whether a batch that was never run would fit: a line over the batch sizes that were measured."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

import perfkit
from perfkit.commands import main
from perfkit.errors import RunError
from perfkit.measures.gathering import measure
from perfkit.measures.memory.batch_line import fit_batch
from perfkit.measures.results.measurements import Measurements
from perfkit.measures.results.peak_memory import PeakMemory
from perfkit.run.atomic import write_atomically
from perfkit.run.records import Sweep, SweepPoint

GB = 1_000_000_000


def swept(*peaks: tuple[int, int], total: int = 16 * GB) -> Sweep:
    points = tuple(SweepPoint(value=batch, peak_bytes=peak) for batch, peak in peaks)
    return Sweep(program="train.py", verdict="", points=points, memory="device", total_bytes=total, reserve=0.1)


def test_three_sizes_on_a_line_tell_what_another_needs_and_whether_it_fits() -> None:
    sweep = swept((8, 3 * GB), (16, 5 * GB), (32, 9 * GB))
    fits, does_not = (fit_batch(Measurements("runs/x"), sweep, batch) for batch in (48, 64))

    assert (fits.bytes, fits.low_bytes, fits.high_bytes) == (13 * GB, 13 * GB, 13 * GB)
    assert (fits.answer, fits.leaves_reserve) == ("fits", True)
    assert (does_not.bytes, does_not.answer) == (17 * GB, "does not fit")
    assert "1.0 GB + 250 MB per sample" in fits.basis


def test_an_interval_that_contains_the_memory_there_is_decides_nothing() -> None:
    sweep = swept((8, 3 * GB), (16, 5 * GB + 400_000_000), (32, 9 * GB), (40, 11 * GB))
    near = fit_batch(Measurements("runs/x"), sweep, 60)

    # By hand: residuals of the fitted line have a deviation of 0.24 GB, Student's t of 2 degrees is 4.303.
    assert near.low_bytes is not None
    assert near.high_bytes is not None
    assert near.low_bytes < 16 * GB < near.high_bytes
    assert (near.high_bytes - near.low_bytes) / 2 == pytest.approx(
        4.303 * 0.24 * GB * (1 + 1 / 4 + 36**2 / 640) ** 0.5, rel=0.1
    )
    assert near.answer == "uncertain"


def test_two_sizes_give_a_line_without_an_interval_and_one_size_says_what_to_run() -> None:
    two = fit_batch(Measurements("runs/x"), swept((8, 3 * GB), (16, 5 * GB)), 32)
    assert (two.bytes, two.low_bytes, two.high_bytes) == (9 * GB, None, None)
    assert "two sizes lie on any line" in two.basis

    with pytest.raises(
        RunError, match=r"8 alone was measured\. Run: perfkit try --sweep batch-size --run runs/x t\.py"
    ):
        fit_batch(Measurements("runs/x"), swept((8, 3 * GB)), 32, ["t.py"])
    with pytest.raises(RunError, match="none was measured"):
        fit_batch(Measurements("runs/x"), None, 32)


def test_a_size_far_beyond_the_measured_ones_is_said_to_be() -> None:
    assert "12.5 times the largest" in fit_batch(Measurements("runs/x"), swept((8, GB), (16, 2 * GB)), 200).basis


def _record(folder: Path, sizes: list[int]) -> Measurements:
    # In a process of its own: what other tests have left there is freed at any time.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as own:
        own.submit(_train, folder, sizes).result()
    return measure(folder)


def _train(folder: Path, sizes: list[int]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with perfkit.profile(
        folder, quiet=True, memory=True, schedule=perfkit.schedule(wait=1, warmup=1, active=1, repeat=1)
    ) as prof:
        for number in range(18):
            batch = torch.randn(sizes[number % len(sizes)], 64)
            optimizer.zero_grad()
            model(batch).pow(2).mean().backward()
            optimizer.step()
            prof.step(samples=len(batch))


def test_steps_of_different_batches_in_one_run_predict_the_peak_of_a_batch_that_is_then_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _record(tmp_path / "x", [2_000, 4_000, 8_000])
    fit = fit_batch(found, None, 16_000)
    (memory,) = found.all(PeakMemory)
    outside = memory.outside_bytes or 0
    (real,) = _record(tmp_path / "y", [16_000]).all(PeakMemory)

    assert fit.sizes == (2_000, 4_000, 8_000)
    # Of the tensors: what Python and torch take is as large as they are, and differs from run to run.
    assert fit.bytes - outside == pytest.approx(real.peak_bytes, rel=0.05)

    assert main(["diagnose", str(tmp_path / "x"), "--batch-fits", "16000"]) == 0
    assert "Batch 16,000 fits" in capsys.readouterr().out
    assert main(["diagnose", str(tmp_path / "x"), "--batch-fits", "100000000000", "--json"]) == 1
    assert '"does not fit"' in capsys.readouterr().out
    assert main(["diagnose", str(tmp_path / "y"), "--batch-fits", "32"]) == 2
    assert "16000 alone was measured" in capsys.readouterr().err

    # A sweep of the program has more sizes.
    write_atomically(tmp_path / "y" / "sweep.json", swept((8, GB), (16, 2 * GB), (32, 4 * GB)).to_json().encode())
    assert main(["diagnose", str(tmp_path / "y"), "--batch-fits", "64"]) == 0
    assert "sweep.json" in capsys.readouterr().out


def test_a_trace_has_no_batch_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text('{"traceEvents": []}')

    assert main(["diagnose", str(trace), "--batch-fits", "64"]) == 2
    assert "--batch-fits takes a run folder" in capsys.readouterr().err
