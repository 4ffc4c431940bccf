"""An incomplete recording has no verdict; a complete one is not called incomplete."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from damage import CUTS, DAMAGES, cut, read, write
from trace_timeline import Timeline

from perfkit.diagnosis import diagnose
from perfkit.measures.completeness import measure_completeness
from perfkit.measures.results.completeness import Completeness
from perfkit.trace import read_trace

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
SMALL = ("a100-alexnet-cuda-sync-events.json.gz", "h100-inference-image.json.gz", "mi250-rocm.json.gz")
LARGE = (
    "a100-2ranks-nccl.json.gz",
    "a100-8ranks-training.json.gz",
    "resnet50-workers-0.pt.trace.json.gz",
    "resnet50-workers-4.pt.trace.json.gz",
    "v100-2ranks-training.json.gz",
)
OTHERS = ("cpu-only-rank34.json.gz", "nsys-healthy.sqlite", "nsys-mock.sqlite")


def shared(name: str) -> Path:
    """A shared trace."""
    if not SHARED.is_dir():
        pytest.skip("shared traces are not next to the checkout")
    return SHARED / name


def completeness(path: Path) -> Completeness:
    return measure_completeness(read_trace(path, processes=1))


def recorded(tmp_path: Path) -> Path:
    """A complete trace of nine steps: products, a copy stream, all-reduces in the backward."""

    def step(line: Timeline) -> None:
        line.run("Memcpy HtoD (Pinned -> Device)", 40, op="aten::to", api="cudaMemcpyAsync", stream=8, bytes=1_000_000)
        for _ in range(12):
            line.run("sm80_xmma_gemm_bf16", 100)
        for _ in range(4):
            line.all_reduce(120, elements=1_000_000)

    line = Timeline(tmp_path)
    line.steps(step, count=9)
    return line.write()


@pytest.mark.parametrize("name", [*SMALL, *LARGE, *OTHERS])
def test_a_complete_public_trace_is_complete(name: str) -> None:
    assert completeness(shared(name)).fatal == ()


@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
def test_each_damaged_version_of_a_public_trace_is_incomplete(name: str, tmp_path: Path) -> None:
    content, file = read(shared(name)), tmp_path / "damaged.json"

    believed = []
    for what, damage in DAMAGES.items():
        left = damage(content["traceEvents"])
        if left is not None and not completeness(write(file, content, left)).fatal:
            believed.append(what)
    believed += [f"cut at {share}" for share in CUTS if not completeness(cut(file, content, share)).fatal]

    assert believed == []


def test_a_built_trace_is_complete(tmp_path: Path) -> None:
    assert completeness(recorded(tmp_path)).problems == ()


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_trace_has_no_verdict(what: str, tmp_path: Path) -> None:
    content = read(recorded(tmp_path))
    left = DAMAGES[what](content["traceEvents"])
    assert left is not None

    diagnosis = diagnose(write(tmp_path / "damaged.json", content, left))

    assert not any("failed" in sentence for sentence in diagnosis.missing), diagnosis.missing
    assert diagnosis.outcome == "cannot-tell"
    assert diagnosis.verdict.startswith("Cannot tell: the recording is incomplete.")
    assert diagnosis.findings[0].rule == "cannot-tell"
    assert diagnosis.findings[0].severity == "warning"
    assert not {"compute-bound", "memory-bound", "unexplained"} & {one.rule for one in diagnosis.findings}


@pytest.mark.parametrize("share", CUTS)
def test_a_cut_file_has_no_verdict(share: float, tmp_path: Path) -> None:
    path = cut(tmp_path / "cut.json", read(recorded(tmp_path)), share)

    assert completeness(path).fatal[0].sentence == "The file is cut: events after the cut are missing."


def test_the_sentence_says_how_much_is_missing_and_since_when(tmp_path: Path) -> None:
    content = read(recorded(tmp_path))
    left = DAMAGES["end of the device"](content["traceEvents"])
    found = completeness(write(tmp_path / "damaged.json", content, left or []))

    assert found.launches == 9 * 17
    assert found.launches_lost > 40
    assert "of 108 kernel launches have no device event" in found.fatal[-2].sentence
    assert "the device's events end after 6" in " ".join(problem.sentence for problem in found.fatal)


def test_launches_that_a_graph_captured_have_no_kernel_and_are_complete(tmp_path: Path) -> None:
    line = Timeline(tmp_path)
    line.call("cudaStreamBeginCapture", 2)
    for _ in range(50):
        line.call("cudaLaunchKernel", 2, correlation=line.next_correlation())
    line.call("cudaStreamEndCapture", 2)
    line.steps(lambda line: line.run("sm80_xmma_gemm_bf16", 100))

    assert completeness(line.write()).problems == ()


def test_work_launched_before_the_recording_began_is_complete(tmp_path: Path) -> None:
    line = Timeline(tmp_path)
    for i in range(40):
        line.add("kernel", "early", 1 + i * 10, 9 + i * 10, tid=7, pid=0, device=0, stream=7, correlation=9_000 + i)
    line.steps(lambda line: line.run("sm80_xmma_gemm_bf16", 100))

    assert completeness(line.write()).problems == ()


def test_a_training_on_the_cpu_is_complete(tmp_path: Path) -> None:
    line = Timeline(tmp_path, device=None)
    line.steps(lambda line: [line.op("aten::cudnn_is_acceptable", 5), line.op("c10d::allreduce_", 50)])

    assert completeness(line.write()).problems == ()


def test_nvidias_collectives_without_any_device_event_are_incomplete(tmp_path: Path) -> None:
    line = Timeline(tmp_path, device=None)
    line.steps(lambda line: line.op("nccl:all_reduce", 50))

    (problem,) = completeness(line.write()).fatal

    assert problem.sentence == "The trace holds 5 collectives of NCCL, but it holds no device event."


@pytest.mark.parametrize("table", ["CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"])
@pytest.mark.parametrize(
    "where", ["1", "rowid % 2", "start > (select 0.6 * max(start) + 0.4 * min(start) from {table})"]
)
def test_an_export_of_nsys_without_some_of_its_rows_is_incomplete(table: str, where: str, tmp_path: Path) -> None:
    file = tmp_path / "damaged.sqlite"
    shutil.copyfile(shared("nsys-healthy.sqlite"), file)
    with sqlite3.connect(file) as database:
        database.execute(f"delete from {table} where {where.format(table=table)}")
    database.close()

    assert completeness(file).fatal
