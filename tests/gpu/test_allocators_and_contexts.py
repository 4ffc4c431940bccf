"""Other allocators than torch's own, CUDA graphs that torch.compile makes, and contexts that others make."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from perfkit.run.reading import RankFolder, read_run

pytestmark = pytest.mark.semantics

TRAINING = """
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.randn(8, 64, device="cuda")
def step():
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
"""

RECORDED = """
with perfkit.profile(
    "x", quiet=True, report=False, recorders=("kineto", "memory"), triggers="out-of-memory", detect_syncs="cuda"
) as prof:
    for number in prof.steps(range(60)):
        step()
        if number == 40:
            try:
                torch.empty(2**50, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                pass
"""


def rank_of(folder: Path) -> RankFolder:
    """A run of 60 steps in which nothing of perfkit's failed, and each step but the last has device times."""
    found = read_run(folder / "x").ranks[0]
    assert found.rank is not None
    assert found.rank.errors == ()
    assert len(found.steps) == 60
    assert len([step for step in found.steps if step.device_phases_ns is not None]) >= 58
    return found


def test_with_expandable_segments_memory_and_its_snapshots_are_as_ever(tmp_path: Path, program: Any) -> None:
    program(TRAINING + RECORDED, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    found = rank_of(tmp_path)

    assert [step.memory_bytes for step in found.steps if step.memory_bytes]
    assert {"memory-0.pickle", "memory-oom.pickle"} <= {file.name for file in found.folder.iterdir()}


def test_cuda_malloc_async_has_memory_and_no_snapshots_and_is_told_so(tmp_path: Path, program: Any) -> None:
    program(TRAINING + RECORDED, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    found = rank_of(tmp_path)

    assert found.rank is not None
    assert [step.memory_bytes for step in found.steps if step.memory_bytes]
    assert all(window.complete for window in found.rank.windows)
    problem = "the program's allocator is cudaMallocAsync: only torch's own keeps a history and reports such errors"
    assert [note for note in found.rank.notes if problem in note] == [
        f"only some out-of-memory errors are detected: {problem}",
        f"no memory snapshot: {problem}",
    ]


def test_syncs_are_checked_with_cuda_malloc_async(program: Any) -> None:
    program(
        """
        with perfkit.detect_syncs("cuda") as syncs:
            torch.zeros(3, device="cuda")
        syncs.assert_max(0)
        """,
        PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync",
    )


OTHERS = """
import contextlib, ctypes
cuda = ctypes.CDLL("libcuda.so.1")
theirs, popped = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
if hasattr(cuda, "cuCtxCreate_v4"):  # of CUDA 13
    assert cuda.cuCtxCreate_v4(ctypes.byref(theirs), None, 0, 0) == 0
else:
    assert cuda.cuCtxCreate_v2(ctypes.byref(theirs), 0, 0) == 0
assert cuda.cuCtxPopCurrent_v2(ctypes.byref(popped)) == 0

@contextlib.contextmanager
def others():
    assert cuda.cuCtxPushCurrent_v2(theirs) == 0
    try:
        yield
    finally:
        assert cuda.cuCtxPopCurrent_v2(ctypes.byref(popped)) == 0

def has_context():
    flags, active = ctypes.c_uint(), ctypes.c_int()
    assert cuda.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0
    return bool(active.value)
"""


def test_in_a_program_with_a_context_of_another_library_perfkit_makes_none(program: Any) -> None:
    program(
        OTHERS
        + """
with perfkit.profile("x", quiet=True, report=False, detect_syncs="auto") as prof:
    for _ in prof.steps(range(30)):
        with others(), perfkit.range("theirs", device_time=True):
            torch.ones(8, 8) @ torch.ones(8, 8)
assert not torch.cuda.is_initialized() and not has_context()
"""
    )


def test_work_in_a_context_of_another_library_leaves_the_times_of_steps(tmp_path: Path, program: Any) -> None:
    program(
        TRAINING
        + OTHERS
        + """
with perfkit.profile("x", quiet=True, report=False, detect_syncs="cuda") as prof:
    for _ in prof.steps(range(60)):
        step()
        # An event of this context is of no use in torch's: ranges may end their times here, and nothing else.
        with others(), perfkit.range("theirs", device_time=True):
            cuda.cuCtxSynchronize()
        with perfkit.range("torch's", device_time=True):
            step()
assert has_context()
"""
    )
    found = rank_of(tmp_path)

    assert found.rank is not None
    assert all(window.complete for window in found.rank.windows)


def test_a_window_on_the_cpu_makes_no_context_on_the_device(program: Any) -> None:
    program(
        OTHERS
        + """
before = has_context()
with perfkit.profile("x", quiet=True, report=False, detect_syncs="auto") as prof:
    for _ in prof.steps(range(60)):
        torch.ones(8, 8) @ torch.ones(8, 8)
assert os.path.exists("x/rank-0/window-0.pt.trace.json.gz")
assert (before, has_context()) == (False, False)
"""
    )


def test_a_step_that_torch_compile_made_a_graph_of_is_replayed_in_windows(tmp_path: Path, program: Any) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    program(
        TRAINING
        + """
step_of = torch.compile(model, mode="reduce-overhead")
def step():
    optimizer.zero_grad()
    step_of(batch).pow(2).mean().backward()
    optimizer.step()
for _ in range(4):  # compiled, warmed up, captured
    step()
with perfkit.profile("x", quiet=True, report=False, detect_syncs="cuda") as prof:
    for _ in prof.steps(range(60)):
        step()
"""
    )
    found = rank_of(tmp_path)

    assert sum(step.recompiles or 0 for step in found.steps) == 0
    assert found.syncs is not None
    assert found.syncs.events == ()
    (window,) = found.windows
    with gzip.open(window, "rt") as file:
        trace = file.read()
    # Forward and backward of three steps.
    assert trace.count('"cudaGraphLaunch"') == 6
    assert "cudaStreamBeginCapture" not in trace
