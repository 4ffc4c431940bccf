"""Each operation of the table, as one line of a program: it syncs, does not, or may.

A row is the line and what it must report, as "kind: op" (several separated by " + "), "" for nothing; a
leading "may" marks what depends on things a CPU cannot know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional

import perfkit
from perfkit._torch_versions import release
from perfkit.run.records import SyncEvent
from perfkit.syncs.dry_run.op_table import rule_for

RELEASE = release(torch.__version__)

#: Since torch 2.14 `normal` checks the std tensor on the device.
NORMAL = "read: normal with a std tensor" if rule_for("aten::normal", "Tensor_Tensor") else ""

#: Since torch 2.15 a number that is assigned to indices fills them, and no copy is made of it.
ASSIGNED = "copy-h2d: index assignment of a host value" if RELEASE < (2, 15) else ""

#: Lines that report the same in a script that requests cuda and in one that runs on the CPU.
BOTH = [
    # reading one value
    ("x.sum().item()", "read: item"),
    ("if x.any(): pass", "read: bool(tensor)"),
    ("while (x < -1e9).any(): pass", "read: bool(tensor)"),
    ("assert x.isfinite().all()", "read: bool(tensor)"),
    ("not x.sum()", "read: bool(tensor)"),
    ("float(x.mean())", "read: float(tensor)"),
    ("int(x.argmax())", "read: int(tensor)"),
    ("complex(x.mean())", "read: complex(tensor)"),
    ("range(i)", "read: int(tensor)"),
    ("[1, 2, 3][i]", "read: int(tensor)"),
    ("1.0 in x", "read: value in tensor"),
    ("max(x[0, 0], x[0, 1])", "read: bool(tensor)"),
    (
        "sum(float(v) for v in x[0])",
        "read: float(tensor) + read: float(tensor) + read: float(tensor) + read: float(tensor)",
    ),
    ("x[i]", "read: int index"),
    ("x[:i]", "read: int index"),
    ("x[i] = x[0]", "read: int index"),
    ("torch.arange(i)", "read: arange(tensor)"),
    ("torch.equal(x, x.clone())", "read: equal"),
    ("torch.equal(x, x.t())", "read: equal"),
    ("torch.allclose(x, x)", "read: allclose"),
    ("x.is_nonzero() if x.numel() == 1 else x[0, 0].is_nonzero()", "read: is_nonzero"),
    ("torch.mode(x[0, 0].expand(2049))", "read: mode of long slices"),
    ("torch.linspace(x[0, 0], 1, 3)", "read: linspace between tensors"),
    ("torch.index_fill(x, 0, index, x[0, 0])", "read: index_fill by a device value"),
    ("torch.histc(x)", "read: histc without a range"),
    ("torch.normal(x, x.abs())", NORMAL),
    ("torch.tensor([x[0, 0], x[0, 1]])", "read: tensor(list of tensors) + read: tensor(list of tensors)"),
    # decompositions check their result on the host
    ("torch.linalg.inv(spd)", "read: the error check of a decomposition"),
    ("torch.linalg.cholesky(spd)", "read: the error check of a decomposition"),
    ("torch.linalg.solve(spd, x)", "read: the error check of a decomposition"),
    ("torch.linalg.eigh(spd)", "read: the error check of a decomposition"),
    ("torch.linalg.svd(x)", "read: the error check of a decomposition"),
    ("torch.linalg.inv_ex(spd)", ""),
    ("torch.linalg.cholesky_ex(spd)", ""),
    ("torch.linalg.lstsq(spd, x)", "may read: lstsq"),
    # sizes that depend on the data
    ("x[mask]", "shape: boolean mask index"),
    ("x[mask].sum()", "shape: boolean mask index"),
    ("x[x[:, 0] > 0, 1]", "shape: boolean mask index"),
    ("x[mask] = x[mask] * 2", "shape: boolean mask index + shape: boolean mask assignment"),
    ("x[index] = 0.0", ASSIGNED),
    ("x[mask[:, 0], index[:1]] = 0.0", "shape: boolean mask assignment"),
    ("x[mask] += 1", "shape: boolean mask index + shape: boolean mask assignment"),
    ("x.masked_select(mask)", "shape: masked_select"),
    ("x.masked_fill(mask, x.mean())", "read: masked_fill by a device value"),
    ("x.masked_fill_(mask, x.mean())", "read: masked_fill by a device value"),
    ("x.nonzero()", "shape: nonzero"),
    ("torch.where(mask)", "shape: nonzero"),
    ("torch.argwhere(mask)", "shape: nonzero"),
    ("torch.isin(x.flatten(), x.flatten())", "shape: isin of many elements"),
    ("torch.unique(index)", "shape: unique"),
    ("torch.unique(x, dim=0)", "shape: unique"),
    ("torch.unique_consecutive(index)", "shape: unique_consecutive"),
    ("torch.bincount(index)", "shape: bincount"),
    ("x.repeat_interleave(index, dim=0)", "shape: repeat_interleave"),
    ("F.one_hot(index)", "shape: one_hot"),
    ("x.to_sparse()", "shape: to_sparse"),
    # copies
    ("x.cpu()", "copy-d2h: cpu"),
    ("x.to('cpu')", "copy-d2h: to(cpu)"),
    ("x.to(device='cpu', dtype=torch.float64)", "copy-d2h: to(cpu)"),
    ("x.to('cpu', non_blocking=True)", ""),
    ("x.tolist()", "read: tolist"),
    ("x.numpy(force=True)", "copy-d2h: numpy"),
    ("x[[0, 1]]", "copy-h2d: index by a host tensor or list"),
    ("x[torch.tensor([0, 2])]", "copy-h2d: index by a host tensor or list"),
    ("x[host_mask]", "may copy-h2d: index by a host mask"),
    ("x.new_tensor([1.0, 2.0])", "copy-h2d: tensor(device=)"),
    ("torch.tensor([1.0], device=x.device)", "copy-h2d: tensor(device=)"),
    ("x.cpu().sum().item()", "copy-d2h: cpu"),
    ("F.ctc_loss(logp, index[:1].view(1, 1), torch.tensor([4]), torch.tensor([1]))", "may copy-h2d: ctc_loss"),
    # printing
    ("str(x)", "print: print(tensor)"),
    ("repr(x)", "print: print(tensor)"),
    ("'{}'.format(x)", "print: format(tensor)"),
    ("f'{x.mean():.3f}'", "print: format(tensor)"),
    # library code that reads
    ("torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)", "read: bool(tensor) in clip_grad_norm_"),
    (
        "torch.distributions.Normal(x, x.abs() + 1, validate_args=True)",
        "read: bool(tensor) in Normal.__init__ + read: bool(tensor) in Normal.__init__",
    ),
    # no sync
    ("x.shape[0] + len(x) + x.numel() + x.dim()", ""),
    ("x.sum().detach()", ""),
    ("x[0]", ""),
    ("x[1:3, ::2]", ""),
    ("x[index]", ""),
    ("x[mask] = 1.0", ""),
    ("x[0] = 1.0", ""),
    ("torch.equal(x, x); torch.equal(x, x.view(4, 4)); torch.equal(x, x[:2])", ""),
    ("torch.multinomial(x.abs(), 1); torch.multinomial(x.abs(), 2, replacement=True)", ""),
    ("torch.mode(x)", ""),
    ("F.embedding(index, x, max_norm=1.0)", ""),
    ("torch.index_fill(x, 0, index, 1.0)", ""),
    ("x[index] = x[index] + 1", ""),
    ("x.masked_fill(mask, 0.0)", ""),
    ("x.masked_fill(mask, torch.tensor(0.0))", ""),
    ("torch.where(mask, x, 0.0)", ""),
    ("x.masked_scatter(mask, x)", ""),
    ("x.sort(), x.topk(2), x.cumsum(0), x.argmax()", ""),
    ("x.any(), mask.all()", ""),
    ("torch.isin(index, index)", ""),
    ("torch.nan_to_num(x)", ""),
    ("torch.randperm(4, device=x.device)", ""),
    ("torch.zeros(4, device=x.device) + x", ""),
    ("torch.quantile(x, 0.5)", ""),
    ("torch.histc(x, min=-1, max=1)", ""),
    ("F.one_hot(index, num_classes=4)", ""),
    ("F.cross_entropy(x, index)", ""),
    ("F.embedding(index, x)", ""),
    ("F.dropout(x, 0.5)", ""),
    ("F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True)", ""),
    ("F.multi_head_attention_forward(x, x, x, 4, 1, spd.repeat(3, 1), None, None, None, False, 0.0, spd, None)", ""),
    ("for row in x: row.sum()", ""),
    ("x.repeat_interleave(2, dim=0)", ""),
    ("x.repeat_interleave(index, dim=0, output_size=int(6))", ""),
    ("host.sum().item(); host.tolist(); host[host > 0]; str(host)", ""),
    ("x + torch.tensor(1.0)", ""),
    ("torch.nn.utils.clip_grad_norm_([weight], 1.0)", ""),
    ("with torch.enable_grad(): weight.sum().backward()", ""),
    ("torch.distributions.Normal(x, x.abs() + 1, validate_args=False).rsample()", ""),
    ("import copy; copy.deepcopy(x)", ""),
]

#: Lines of a script that requests cuda.
SIMULATED = [
    ("host.copy_(x)", "copy-d2h: copy_"),
    ("x.copy_(host)", "copy-h2d: copy_"),
    ("x.copy_(host, non_blocking=True)", "may copy-h2d: copy_"),
    ("host.to('cuda')", "copy-h2d: to"),
    ("host.to(0)", "copy-h2d: to"),
    ("host.to(x)", "copy-h2d: to"),
    ("host.cuda()", "copy-h2d: cuda"),
    ("host.to('cuda', non_blocking=True)", "may copy-h2d: to"),
    ("host.pin_memory().to('cuda', non_blocking=True)", ""),
    ("host.pin_memory().to('cuda')", "copy-h2d: to"),
    ("x.to('cuda')", ""),
    ("x.to(torch.float64)", ""),
    ("x.to('cuda').to(torch.float16).float()", ""),
    ("torch.empty(0).to('cuda')", ""),
    ("torch.tensor([1.0], device='cuda')", "copy-h2d: tensor(device=)"),
    ("torch.as_tensor(numbers, device='cuda')", "copy-h2d: tensor(device=)"),
    ("torch.zeros(3, device='cuda').sum().item()", "read: item"),
    ("torch.zeros_like(host, device='cuda').sum().item()", "read: item"),
    ("torch.zeros_like(x, device='cpu').sum().item()", ""),
    ("with torch.device('cuda'): torch.ones(3).tolist()", "read: tolist"),
    ("torch.cuda.synchronize()", "explicit: cuda.synchronize"),
    *([("torch.accelerator.synchronize()", "explicit: accelerator.synchronize")] if RELEASE >= (2, 6) else []),
    ("torch.cuda.current_stream().synchronize()", "explicit: Stream.synchronize"),
    ("e = torch.cuda.Event(enable_timing=True); e.record(); e.synchronize()", "explicit: Event.synchronize"),
    ("s = torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())", ""),
    ("with torch.cuda.stream(torch.cuda.Stream()): x + 1", ""),
    ("torch.cuda.empty_cache(); torch.cuda.memory_allocated()", ""),
    ("torch.nn.Linear(4, 4, device='cuda')(x)", ""),
    ("assert x.is_cuda and x.device == torch.device('cuda', 0) and x.get_device() == 0", ""),
    ("assert not x.cpu().is_cuda and not host.is_cuda", "copy-d2h: cpu"),
    ("with torch.cuda.nvtx.range('forward'): x + 1", ""),
    ("torch.randn(3, generator=torch.Generator('cuda').manual_seed(1), device='cuda').sum()", ""),
    ("torch.randperm(3, generator=torch.default_generator)", ""),
    ("assert isinstance(torch.default_generator, torch.Generator)", ""),
    ("torch.cuda.get_device_properties(0).total_memory, torch.cuda.memory_summary()", ""),
    ("torch.cuda.manual_seed_all(1), torch.cuda.set_device(0)", ""),
    ("with torch.cuda.device(0): x + 1", ""),
    ("with torch.random.fork_rng(): torch.rand(3, device='cuda')", ""),
    ("torch.nn.Linear(4, 4).cuda()", "copy-h2d: cuda + copy-h2d: cuda"),
    ("x.record_stream(torch.cuda.current_stream())", ""),
    ("import io; torch.save({'x': x}, io.BytesIO())", "copy-d2h: torch.save"),
]

#: Lines of a script that runs on the CPU, with its tensors named in device_of=.
FOLLOWED = [
    ("x.numpy()", "copy-d2h: numpy"),
    ("np.asarray(x)", "copy-d2h: numpy"),
    ("x.to(device)", ""),
    ("host += x; host.sum().item()", "read: item"),
    ("torch.add(host, x, out=host); host.sum().item()", "read: item"),
    ("host.copy_(x); host.sum().item()", "read: item"),
    ("host[:2] = x[:2]; host.sum().item()", "read: item"),
    ("host[0] = x[0, 0]; host.sum().item()", "read: item"),
    ("x.copy_(host); x[:2] = host[:2]", ""),
    ("host.add_(host); host.sum().item()", ""),
    ("host.to(device)", ""),
    ("assert x.device == torch.device('cpu') and not x.is_cuda", ""),
    ("torch.zeros(3, device=x.device).sum().item()", "read: item"),
    ("(host @ x).sum().item()", "read: item"),
    ("import io; torch.save({'x': x}, io.BytesIO())", "copy-d2h: torch.save"),
]


def _tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(4, 4)
    weight = torch.randn(4, requires_grad=True)
    weight.grad = torch.ones(4)
    return {
        "x": x,
        "mask": x > 0,
        "i": torch.tensor(2),
        "index": torch.tensor([0, 2, 1, 3]),
        "spd": x @ x.T + torch.eye(4),
        "logp": torch.randn(4, 1, 5).log_softmax(-1),
        "weight": weight,
    }


def _others() -> dict[str, Any]:
    host = torch.randn(4, 4)
    return {
        "torch": torch,
        "F": functional,
        "np": np,
        "host": host,
        "host_mask": host > 0,
        "numbers": np.ones(3, dtype=np.float32),
        "device": "cpu",
    }


def _labels(events: tuple[SyncEvent, ...]) -> list[str]:
    """One "kind: op" per sync."""
    found = []
    for event in events:
        may = "may " if event.certainty == "may" else ""
        found += [f"{may}{event.kind}: {event.op}"] * event.count
    return sorted(found)


def _expected(label: str) -> list[str]:
    return sorted(label.split(" + ")) if label else []


#: Where a line may stand; LINE is its place.
CONTEXTS = {
    "eager": "LINE",
    "autocast": "with torch.autocast('cpu', dtype=torch.bfloat16):\n    LINE",
    "compiled": "def step():\n    global host\n    LINE\ntorch.compile(step, backend='eager')()",
    "backward hook": """\
def hook(grad):
    global host
    LINE
hooked = torch.ones(2, requires_grad=True)
hooked.register_hook(hook)
hooked.sum().backward()
""",
}


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize(("line", "label"), [*BOTH, *FOLLOWED])
def test_in_a_script_on_the_cpu_a_line_reports(
    line: str, label: str, context: str, run_program: Callable[..., Any]
) -> None:
    tensors = _tensors()

    with perfkit.detect_syncs("dry", device_of=tensors, certainty="may") as syncs:
        run_program(CONTEXTS[context].replace("LINE", line), **tensors, **_others())

    assert _labels(syncs.events) == _expected(label)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize(("line", "label"), [*BOTH, *SIMULATED])
def test_in_a_script_that_requests_cuda_a_line_reports(
    line: str, label: str, context: str, run_program: Callable[..., Any]
) -> None:
    with perfkit.detect_syncs("dry"):
        tensors = {name: tensor.detach().cuda() for name, tensor in _tensors().items()}
        tensors["weight"].requires_grad_().grad = torch.ones(4, device="cuda")
        with perfkit.detect_syncs("dry", certainty="may") as syncs:
            program = CONTEXTS[context].replace("autocast('cpu'", "autocast('cuda'").replace("LINE", line)
            run_program(program, **tensors, **_others())

    assert _labels(syncs.events) == _expected(label)
    assert "refuses" not in (syncs.note or "")


def test_at_least_120_lines_of_all_three_kinds_are_labelled() -> None:
    labels = dict([*BOTH, *SIMULATED, *FOLLOWED])
    may = [line for line, label in labels.items() if label.startswith("may")]
    silent = [line for line, label in labels.items() if not label]

    assert len(labels) >= 120
    assert len(labels) == len({line for line, _ in BOTH} | {line for line, _ in (*SIMULATED, *FOLLOWED)})
    assert len(may) >= 5
    assert len(silent) >= 40
    assert len(labels) - len(may) - len(silent) >= 60
