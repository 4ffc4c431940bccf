"""The script that measures which ops wait, run on the CPU: what it marks, counts and writes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from perfkit.syncs.dry_run.op_table import named_ops
from perfkit.syncs.dry_run.waiting_ops import WAITING_OPS

SCRIPT = Path(__file__).resolve().parents[1] / "gpu" / "opinfo_syncs.py"


@pytest.fixture(scope="module")
def harness() -> Any:
    spec = importlib.util.spec_from_file_location("opinfo_syncs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Described:
    """One operator with samples, in the manner of PyTorch's OpInfo."""

    def __init__(self, name: str, op: Any, *inputs: torch.Tensor) -> None:
        self.name, self.op, self.inputs = name, op, inputs

    def supports_dtype(self, dtype: torch.dtype, kind: str) -> bool:
        return dtype is torch.float32

    def sample_inputs(self, device: str, dtype: torch.dtype) -> Any:
        return iter([Sample(value) for value in self.inputs])


class Sample:
    def __init__(self, value: torch.Tensor) -> None:
        self.input, self.args, self.kwargs = value, (), {}


def test_an_op_that_raises_in_the_error_mode_is_reported_by_torch_and_runs_again(harness: Any) -> None:
    modes, results = [0], []

    def read(x: torch.Tensor) -> None:
        if modes[-1] == 2:
            raise RuntimeError("called a synchronizing CUDA operation")
        results.append(x)

    library = torch.library.Library("perfkit_harness", "FRAGMENT")
    library.define("read(Tensor x) -> ()")
    library.impl("read", read, "CPU")
    described = Described("read", torch.ops.perfkit_harness.read, torch.ones(1), torch.ones(2))

    ops, failed = harness.count_syncs([described], "cpu", modes.append)

    assert ops == {"perfkit_harness.read.default": {"calls": 2, "syncs": 0, "reported": 2}}
    assert (failed, len(results), modes[-1]) == ({}, 2, 0)


def test_other_errors_are_recorded_and_do_not_end_the_table(harness: Any) -> None:
    def fail(x: torch.Tensor) -> None:
        raise RuntimeError("mine")

    described = [
        Described("fail", fail, torch.ones(1)),
        Described("add", lambda x: x + 1, torch.ones(0), torch.ones(1)),
    ]

    ops, failed = harness.count_syncs(described, "cpu", lambda mode: None)

    assert failed == {"fail": "RuntimeError: mine"}
    # Not the call with an empty tensor, of which nothing is computed.
    assert ops == {"aten.add.Tensor": {"calls": 1, "syncs": 0, "reported": 0}}


def test_a_wait_counts_for_the_marked_call_in_which_it_began(harness: Any) -> None:
    event = harness.Event
    events = [
        event("perfkit call 7", 10, 20),
        event("perfkit call 8", 30, 40),
        event("cudaStreamSynchronize", 12, 14),
        event("cudaStreamSynchronize", 15, 19),
        event("cudaDeviceSynchronize", 25, 26),
        event("cudaLaunchKernel", 31, 32),
    ]

    assert harness.waits_by_mark(events) == {7: 2}


class Recorded:
    """One event of torch's profiler; ``link`` is the number of the op around a call of the runtime."""

    def __init__(self, name: str, start: int, duration: int, number: int, link: int = 0, *, device: bool = False):
        self.name, self.start_ns, self.duration_ns = lambda: name, lambda: start, lambda: duration
        self.correlation_id, self.linked_correlation_id = lambda: number, lambda: link
        kind = torch._C._autograd.DeviceType
        self.device_type = lambda: kind.CUDA if device else kind.CPU


def test_a_wait_without_a_link_is_the_profilers_and_one_with_a_link_begins_where_its_op_does(harness: Any) -> None:
    found = [
        Recorded("perfkit line", 100, 50, 1),
        Recorded("aten::item", 120, 10, 2),
        Recorded("cudaStreamSynchronize", 90, 8, 7, link=2),  # by a clock that is late
        Recorded("cudaDeviceSynchronize", 140, 3, 8, link=1),
        Recorded("Activity Buffer Request", 110, 5, 0),
        Recorded("cudaDeviceSynchronize", 145, 900, 2),  # inside the line by its time, with the number of an op
        Recorded("sum_kernel", 160, 5, 1, device=True),
    ]

    event = harness.Event
    assert harness.line_events(found) == [
        event("cudaStreamSynchronize", 120, 98),
        event("cudaDeviceSynchronize", 100, 143),
    ]


def test_the_summary_has_ops_that_wait_and_of_the_others_those_with_a_name(harness: Any) -> None:
    def counts(calls: int, syncs: int, reported: int) -> dict[str, int]:
        return {"calls": calls, "syncs": syncs, "reported": reported}

    table = {
        "ops": {
            "aten.nonzero.default": counts(4, 4, 4),
            "aten.unique_dim.default": counts(2, 2, 0),
            "aten.equal.default": counts(4, 1, 1),
            "aten.normal.Tensor_Tensor": counts(1, 0, 0),
            "aten.add.Tensor": counts(9, 0, 0),
        }
    }

    assert harness.summary(table, named_ops()) == {
        "aten::nonzero": "always",
        "aten::unique_dim": "always",
        "aten::equal": "sometimes",
        "aten::normal.Tensor_Tensor": "never",
    }
    assert harness.unseen(table) == ["aten.unique_dim.default"]


def test_the_committed_table_is_what_the_script_writes(harness: Any) -> None:
    assert harness._DATA.read_text() == harness.data(WAITING_OPS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_pytorchs_own_samples_run_through_it(harness: Any) -> None:
    ops, failed = harness.count_syncs(harness.operators()[::8], "cpu", lambda mode: None)

    assert len(ops) > 100
    assert all(counts["syncs"] == 0 and counts["calls"] > 0 for counts in ops.values())
    # Some samples need hardware that this machine lacks; a sample that fails keeps its op out of the table.
    assert len(failed) < 10, failed
    assert "expecttest" in sys.modules
