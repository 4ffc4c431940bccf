"""On a GPU: the dry run's table of syncs against torch's sync debug mode, and detection by the debug mode."""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import perfkit
from perfkit._patches import installed
from perfkit.syncs.dry_run.op_table import rule_for
from tests.gpu import opinfo_syncs
from tests.syncs import test_one_line_cases as cases

#: Lines that raise, or take another branch in torch, unless kernels compute their numbers.
NUMBERS = (
    "assert x.isfinite().all()",
    "torch.normal(x, x.abs())",
    "torch.mode(x[0, 0].expand(2049))",
    "torch.isin(x.flatten(), x.flatten())",
    "x.repeat_interleave(index, dim=0)",
    "torch.distributions.Normal(x, x.abs() + 1, validate_args=True)",
)
#: The others end where numbers are zero; some would loop for ever with any others.
LINES = [
    pytest.param(line, label, marks=pytest.mark.real if line in NUMBERS else pytest.mark.values)
    for line, label in (*cases.BOTH, *cases.SIMULATED)
]


@pytest.mark.filterwarnings("ignore:CUDA reports that you have")  # fork_rng, where there are several devices
@pytest.mark.parametrize(("line", "label"), LINES)
def test_the_gpu_agrees_with_the_dry_run_on_each_line(
    line: str, label: str, run_source: Callable[[str, dict[str, Any]], None]
) -> None:
    names = {name: tensor.detach().cuda() for name, tensor in cases._tensors().items()}
    names["weight"].requires_grad_().grad = torch.ones(4, device="cuda")
    names |= cases._others()
    run_source(line, names)  # what happens only the first time: handles, workspaces, kernels

    with perfkit.detect_syncs("cuda", certainty="may") as syncs:
        run_source(line, names)

    found = cases._labels(syncs.events)
    if label.startswith("may"):
        return
    assert bool(found) == bool(label), f"the dry run reports {label or 'no sync'}, the GPU {found or 'no sync'}"


@pytest.mark.slow
@pytest.mark.timeout(1800)  # hundreds of operators with up to 12 samples each
@pytest.mark.semantics
def test_the_table_of_this_torch_is_written_and_the_rules_agree_with_it(tmp_path: Path) -> None:
    folder = Path(os.environ.get("OUT", tmp_path))
    table = opinfo_syncs.table()
    (folder / f"sync_table_torch_{torch.__version__.split('+')[0]}.json").write_text(json.dumps(table, indent=1))

    without_rule = []
    for overload, counts in table["ops"].items():
        space, name, variant = overload.split(".", 2)
        rule = rule_for(f"{space}::{name}", "" if variant == "default" else variant)
        if rule is None and counts["syncs"] == counts["calls"]:
            without_rule.append(overload)
    assert len(table["ops"]) > 450
    assert without_rule == [], "these ops always synced and the dry run has no rule for them"


@pytest.mark.semantics
def test_a_sync_in_a_backward_hook_is_reported_at_the_hooks_line(tmp_path: Path, run_source: Any) -> None:
    program = """\
y = x * 2
y.register_hook(lambda grad: print(grad.sum().item()))
y.sum().backward()
"""
    x = torch.ones(4, device="cuda", requires_grad=True)
    with perfkit.detect_syncs("cuda") as syncs:
        run_source(program, {"x": x})

    assert [(event.line, event.op, event.count) for event in syncs.events] == [(2, "item", 1)]


@pytest.mark.values
def test_a_sync_in_the_cpp_code_of_a_backward_is_reported_at_the_line_of_backward(run_source: Any) -> None:
    x = torch.ones(4, device="cuda", requires_grad=True)
    with perfkit.detect_syncs("cuda") as syncs:
        run_source("y = x[x > 0]\ny.sum().backward()", {"x": x})

    assert sorted({event.line for event in syncs.events}) == [1, 2]


@pytest.mark.semantics
def test_the_blocked_time_of_a_read_includes_the_work_it_waits_for() -> None:
    x = torch.randn(8192, 8192, device="cuda")
    (x @ x).sum().item()
    with perfkit.detect_syncs("cuda") as syncs:
        for _ in range(10):
            x = x @ x
        x.sum().item()

    assert syncs.events[0].op == "item"
    assert syncs.events[0].blocked_ns is not None
    # Ten products of 1.1e12 operations each: no GPU does them in a millisecond.
    assert syncs.events[0].blocked_ns > 1_000_000


@pytest.mark.semantics
def test_only_the_requested_threads_count() -> None:
    x = torch.ones(4, device="cuda")

    def work() -> None:
        x.sum().item()

    with perfkit.detect_syncs("cuda") as here, perfkit.detect_syncs("cuda", threads="all") as everywhere:
        thread = threading.Thread(target=work, name="logger")
        thread.start()
        thread.join()

    assert here.events == ()
    assert [event.thread for event in everywhere.events] == ["logger"]


@pytest.mark.semantics
def test_copies_that_torch_does_not_warn_of_are_reported_with_certainty_may() -> None:
    host, device = torch.ones(1 << 20), torch.ones(1 << 20, device="cuda")
    with perfkit.detect_syncs("cuda", certainty="may") as syncs:
        host.to("cuda", non_blocking=True)
        host.copy_(device, non_blocking=True)
        host.pin_memory().to("cuda", non_blocking=True)

    assert sorted((event.kind, event.op) for event in syncs.events) == [("copy-d2h", "copy_"), ("copy-h2d", "to")]


@pytest.mark.semantics
def test_each_explicit_wait_counts_once() -> None:
    event = torch.cuda.Event()
    event.record()
    with perfkit.detect_syncs("cuda") as syncs:
        torch.cuda.synchronize()
        torch.accelerator.synchronize()
        event.synchronize()
        torch.cuda.current_stream().synchronize()

    assert sorted((found.op, found.count) for found in syncs.events) == [
        ("Event.synchronize", 1),
        ("Stream.synchronize", 1),
        ("accelerator.synchronize", 1),
        ("cuda.synchronize", 1),
    ]


def compiled_sum() -> tuple[Any, torch.Tensor]:
    """What detection reports of a compiled function, and the function's result."""

    def step(x: torch.Tensor) -> torch.Tensor:
        return (x.relu() * 2).sum()

    x = torch.ones(4, device="cuda")
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with perfkit.detect_syncs("cuda") as syncs:
            result = torch.compile(step, backend="eager", fullgraph=True)(x)
    return syncs, result


@pytest.mark.semantics
def test_detection_sees_nothing_in_a_compiled_function_and_nothing_stays_installed() -> None:
    syncs, _ = compiled_sum()

    assert syncs.events == ()
    assert installed() == []
    assert torch.cuda.get_sync_debug_mode() == 0


@pytest.mark.real
def test_detection_changes_no_compiled_function() -> None:
    _, result = compiled_sum()

    assert result.item() == 8.0
