"""Small programs: the waits that the CUDA runtime makes, those that detect_syncs reports, and those of a dry run agree.

The runtime's are its blocking calls, which torch's profiler records (`opinfo_syncs.BLOCKING`).
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import perfkit
from perfkit.run.reading import read_run
from perfkit.syncs import SyncDetector
from tests.gpu import opinfo_syncs
from tests.syncs import test_one_line_cases as cases

#: Program -> the number of syncs that a user would count in it. `x` is on the device, `host` and `pinned` are not.
PROGRAMS = {
    "with torch.cuda.stream(side): y = x * 2\ntorch.cuda.current_stream().wait_stream(side)\ny.record_stream(side)": 0,
    "with torch.cuda.stream(side): x.sum().item()": 1,
    "event.record(side)\nside.wait_event(event)\nevent.wait()\nevent.query()\nside.query()": 0,
    "event.record()\nevent.synchronize()": 1,
    "side.synchronize()": 1,
    "torch.cuda.synchronize()": 1,
    "pinned.to('cuda', non_blocking=True)": 0,
    "x.copy_(pinned, non_blocking=True)\npinned.copy_(x, non_blocking=True)": 0,
    "pinned.to('cuda')": 1,
    "host.to('cuda')": 1,
    "host.pin_memory()": 0,
    "x.to('cpu', non_blocking=True)": 0,
    "x.to('cpu')": 1,
    "x.to(torch.float64)": 0,
    "torch.zeros(3, device='cuda')": 0,
    "torch.tensor([1.0, 2.0], device='cuda')": 1,
    "model(x).sum().backward()": 0,
    "model(x).sum().backward()\nsgd.step()\nsgd.zero_grad()": 0,
    "model(x).sum().backward()\nadam.step()\nadam.zero_grad()": 0,
    "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)": 0,
    "torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()": 0,
    "with torch.autocast('cuda', dtype=torch.bfloat16): model(x).sum().backward()": 0,
    "scaler.scale(model(x).sum()).backward()\nscaler.step(sgd)\nscaler.update()": 1,
    "scaler.scale(model(x).sum()).backward()\nscaler.unscale_(sgd)\nscaler.step(sgd)\nscaler.update()": 1,
    "scaler.get_scale()": 1,
    "for batch in loader: batch.to('cuda', non_blocking=True)": 0,
    "for batch in loader: batch.to('cuda')": 2,
    "if model(x).sum() > 0: pass": 1,
    "losses.append(model(x).sum().detach())": 0,
    "x[index] = 0.0": 1,
    "x.index_fill_(0, index, 0.0)": 0,
}


def names() -> dict[str, Any]:
    """What the programs use, made on whatever "cuda" is: a device, or that of a dry run."""
    model = torch.nn.Linear(4, 4).cuda()
    # At least one gradient and one state of each optimizer: their first step makes more.
    sgd, adam = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(model.parameters())
    x = torch.ones(4, 4).cuda()
    model(x).sum().backward()
    adam.step()
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(model(x).sum())
    batches: Any = torch.utils.data.DataLoader(torch.zeros(4, 4), batch_size=2, pin_memory=True)
    return {
        **{"torch": torch, "model": model, "sgd": sgd, "adam": adam, "x": x, "scaler": scaler, "loader": batches},
        **{"host": torch.zeros(4, 4), "pinned": torch.zeros(4, 4).pin_memory(), "losses": []},
        **{"side": torch.cuda.Stream(), "event": torch.cuda.Event(), "index": torch.tensor([0, 2]).cuda()},
    }


def counted(syncs: SyncDetector) -> list[str]:
    """The operation of each sync."""
    return sorted(op for event in syncs.events for op in [event.op] * event.count)


@pytest.mark.values
@pytest.mark.parametrize("source", PROGRAMS)
def test_the_runtime_the_detection_and_the_dry_run_agree_on(source: str, run_source: Any) -> None:
    on_device = names()
    run_source(source, on_device)  # what happens only the first time: handles, workspaces, kernels

    waits = [one for one in opinfo_syncs.waits_of(lambda: run_source(source, on_device)) if not one.is_mark]
    with perfkit.detect_syncs("cuda") as seen:
        run_source(source, on_device)
    with perfkit.detect_syncs("dry", simulate=True):
        simulated = names()
        with perfkit.detect_syncs("dry") as foreseen:
            run_source(source, simulated)

    wanted = PROGRAMS[source]
    assert (len(waits), len(counted(seen)), len(counted(foreseen))) == (wanted, wanted, wanted)


@pytest.mark.values
@pytest.mark.parametrize(("line", "label"), [*cases.BOTH, *cases.SIMULATED])
def test_the_runtime_waits_where_the_dry_run_says_so(line: str, label: str, run_source: Any) -> None:
    names = {name: tensor.detach().cuda() for name, tensor in cases._tensors().items()}
    names["weight"].requires_grad_().grad = torch.ones(4, device="cuda")
    names |= cases._others()

    def run() -> None:
        # A program may raise at values that no kernel of the simulated runtime computed: after it has read them.
        with suppress(*([Exception] if "FAKE_GPU" in os.environ else [])):
            run_source(line, names)

    run()
    waits = [one for one in opinfo_syncs.waits_of(run) if not one.is_mark]

    assert label.startswith("may") or bool(waits) == bool(label), f"{label or 'no sync'}, the runtime: {waits}"


@pytest.mark.semantics
def test_perfkits_own_waits_are_nobodys(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4).cuda()
    x = torch.ones(4, 4, device="cuda")
    with perfkit.profile(tmp_path / "x", quiet=True, detect_syncs="cuda") as prof:
        for _ in prof.steps(range(60)):
            model(x).sum().backward()

    rank = read_run(tmp_path / "x").ranks[0]
    assert rank.windows
    assert rank.syncs is not None
    assert rank.syncs.events == ()


@pytest.mark.semantics
def test_latency_waits_in_nobodys_name() -> None:
    model = torch.nn.Linear(4, 4).cuda()
    with perfkit.detect_syncs("cuda", implicit_only=False) as syncs:
        perfkit.measure_latency(model, torch.ones(1, 4, device="cuda"), (1,), budget_s=0.2)

    assert [event for event in syncs.events if event.kind == "explicit"] == []


@pytest.mark.semantics
def test_starting_a_detection_creates_no_cuda_context(program: Any) -> None:
    program(
        "with perfkit.detect_syncs('cuda') as syncs:\n"
        "    torch.ones(3).sum().item()\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert not syncs.observed\n"
        "with perfkit.detect_syncs('cuda') as syncs:\n"
        "    torch.ones(3).cuda().sum().item()\n"
        "assert syncs.observed and len(syncs.events) == 2, syncs\n"
    )


@pytest.mark.semantics
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_debug_mode_that_the_program_sets_meanwhile_stays(mode: int) -> None:
    try:
        with perfkit.detect_syncs("cuda"):
            torch.cuda.set_sync_debug_mode(mode)
        assert torch.cuda.get_sync_debug_mode() == mode
    finally:
        torch.cuda.set_sync_debug_mode(0)


@pytest.mark.semantics
def test_a_program_without_the_caching_allocator_is_checked(program: Any) -> None:
    program(
        "with perfkit.detect_syncs('cuda') as syncs:\n    torch.zeros(3, device='cuda')\nsyncs.assert_max(0)\n",
        PYTORCH_NO_CUDA_MEMORY_CACHING="1",
    )


@pytest.mark.semantics
@pytest.mark.parametrize("call", ["torch.unique(x, dim=0)", "x.unique(dim=0)", "x.unique_consecutive(dim=0)"])
def test_the_waits_inside_thrust_are_reported_as_one_sync(call: str, run_source: Any) -> None:
    with perfkit.detect_syncs("cuda") as syncs:
        run_source(call, {"torch": torch, "x": torch.zeros(4, 4, device="cuda")})

    (event,) = syncs.events
    assert (event.kind, event.count) == ("shape", 1)
    assert event.blocked_ns is not None


@pytest.mark.semantics
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_sparse_tensor_waits_where_it_is_coalesced_and_not_again() -> None:
    index = torch.zeros(1, 3, dtype=torch.int64).cuda()
    sparse = torch.sparse_coo_tensor(index, torch.ones(3, device="cuda"), (9,))
    with perfkit.detect_syncs("cuda") as syncs:
        coalesced = sparse.coalesce()
    with perfkit.detect_syncs("cuda") as again:
        coalesced.coalesce()

    assert counted(syncs) == ["coalesce"]
    assert again.events == ()


@pytest.mark.semantics
def test_a_sync_in_a_hook_of_a_backward_from_another_thread_is_that_threads() -> None:
    x = torch.ones(4, device="cuda", requires_grad=True)
    y = x * 2

    def hook(grad: torch.Tensor) -> None:
        grad.sum().item()

    y.register_hook(hook)
    with perfkit.detect_syncs("cuda", threads="all") as everywhere:
        thread = threading.Thread(target=y.sum().backward, name="trainer")
        thread.start()
        thread.join()

    assert counted(everywhere) == ["item"]


@pytest.mark.semantics
def test_nested_detections_both_count_and_the_inner_one_ends_alone() -> None:
    x = torch.ones(4, device="cuda")
    with perfkit.detect_syncs("cuda") as outer:
        with perfkit.detect_syncs("cuda") as inner:
            x.sum().item()
        assert torch.cuda.get_sync_debug_mode() == 1
        x.sum().item()

    assert (len(counted(outer)), len(counted(inner))) == (2, 1)
    assert torch.cuda.get_sync_debug_mode() == 0


@pytest.mark.semantics
def test_a_graph_is_captured_and_replayed_under_a_detection() -> None:
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with perfkit.detect_syncs("cuda") as syncs:
        with torch.cuda.graph(graph):
            x * 2
        graph.replay()

    # torch.cuda.graph waits for the device itself before it captures.
    assert counted(syncs) == ["cuda.synchronize in graph.__enter__"]


@pytest.mark.values
def test_printing_is_one_sync_of_several_waits(run_source: Any) -> None:
    names = {"x": torch.zeros(4).cuda()}
    with perfkit.detect_syncs("cuda") as syncs:
        run_source("repr(x)", names)

    (event,) = syncs.events
    assert (event.op, event.count) == ("print(tensor)", 1)
    assert event.raw_syncs >= 1


@pytest.mark.semantics
def test_a_copy_between_devices_does_not_wait(program: Any) -> None:
    program(
        "x, other = torch.ones(4, device='cuda:0'), torch.device('cuda', torch.cuda.device_count() - 1)\n"
        "x.to(other)\n"
        "with perfkit.detect_syncs('cuda') as syncs:\n"
        "    y = x.to(other, non_blocking=True)\n"
        "    y.copy_(x)\n"
        "    with torch.cuda.device(other): y * 2\n"
        "    torch.cuda.set_device(other)\n"
        "assert not syncs.events, syncs\n"
        "with perfkit.detect_syncs('cuda') as syncs:\n"
        "    y.sum().item() + x.sum().item()\n"
        "assert sum(event.count for event in syncs.events) == 2, syncs\n",
        # Of use on the simulated runtime only: a machine has the devices that it has.
        FAKE_GPU_DEVICES="2",
    )
