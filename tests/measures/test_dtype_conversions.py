"""Conversions of dtype are kernels of copies between two floating types, told apart by what is converted."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from perfkit.measures.ops._typical_times import op_calls
from perfkit.measures.ops.patterns import measure_patterns
from perfkit.measures.results.patterns import DtypeConversions
from perfkit.trace import read_trace

BF16, FP32 = "c10::BFloat16", "float"
WEIGHT, LOGITS = [512, 512], [4, 1024, 4096]
NODE = "autograd::engine::evaluate_function: "


class Steps:
    """Writes converting ops with one kernel each, and their backward, into one step."""

    def __init__(self, build: Any) -> None:
        self.build, self.now, self.number = build, 1_000, 0
        self.nodes: list[tuple[int, list[int], str, str, int]] = []

    def convert(
        self, shape: list[int], source: str = FP32, target: str = BF16, *, inside: str = "", trained: bool = True,
        ns: int = 1_000, **how: Any,
    ) -> None:  # fmt: skip
        """A conversion, inside an op of this name whose arguments are ``of``; trained: a node converts the gradient."""
        start, build = self.now, self.build
        self.number += 1
        number = {"Sequence number": self.number}
        self._copy(start + 100, shape, source, target, ns, kernel=how.pop("kernel", True))
        build.op("aten::_to_copy", start + 50, start + 600, **number, **given([shape], source))
        build.op("aten::to", start + 40, start + 610, **number, **given([shape], source))
        if inside:
            build.op(inside, start, start + 900, **how.pop("of", {}))
        if trained:
            self.nodes.append((self.number, shape, target, source, ns))
        self.now += 1_000

    def backward(self, *gradients: tuple[list[int], str]) -> None:
        """The nodes of what was converted, last one first, and the accumulation of these gradients."""
        for number, shape, source, target, ns in reversed(self.nodes):
            start = self.now
            self._copy(start + 100, shape, source, target, ns)
            self.build.op("aten::_to_copy", start + 50, start + 600, **given([shape], source))
            self.build.op(f"{NODE}ToCopyBackward0", start, start + 900, **{"Sequence number": number})
            self.now += 1_000
        for shape, dtype in gradients:
            name = "torch::autograd::AccumulateGrad"
            self.build.op(name, self.now + 50, self.now + 400, **given([shape], dtype))
            self.build.op(NODE + name, self.now, self.now + 500)
            self.now += 1_000

    def _copy(self, start: int, shape: list[int], source: str, target: str, ns: int, *, kernel: bool = True) -> None:
        dims = {"Input Dims": [shape, shape, []], "Input type": [target, source, "Scalar"]}
        self.build.op("aten::copy_", start, start + 400, **dims)
        if kernel:
            self.build.launch(start + 100, 100_000 + 10 * start, 100_000 + 10 * start + ns, "direct_copy_kernel_cuda")

    def found(self) -> tuple[DtypeConversions, ...]:
        self.build.step(0, 0, self.now + 1_000)
        self.build.launch(self.now, 900_000, 901_000)
        patterns = measure_patterns(op_calls(self.build.read()))
        assert patterns is not None
        return patterns.conversions


def given(dims: list[list[int]], *types: str) -> dict[str, Any]:
    return {"Input Dims": dims, "Input type": list(types)}


@pytest.fixture
def steps(build: Any) -> Steps:
    return Steps(build)


def test_a_weight_is_known_by_its_gradient_and_its_conversions_are_counted_with_their_backward(steps: Steps) -> None:
    of = given([[64, 512], WEIGHT], BF16, FP32)
    for _ in range(4):
        steps.convert(WEIGHT, inside="aten::linear", of=of)
    steps.backward((WEIGHT, FP32))

    [found] = steps.found()

    assert (found.shape, found.source, found.target) == ("512x512", "float32", "bfloat16")
    assert (found.count, found.gradients) == (4, 1)
    assert (found.ns, found.backward_ns) == (4_000, 4_000)


def test_weights_of_one_shape_have_as_many_gradients(steps: Steps) -> None:
    for _ in range(4):
        steps.convert(WEIGHT, inside="aten::linear")
    steps.backward(*[(WEIGHT, FP32)] * 4)

    [found] = steps.found()

    assert (found.count, found.gradients) == (4, 4)


@pytest.mark.parametrize(("inside", "in_loss"), [("", False), ("aten::log_softmax", True)])
def test_large_tensors_that_are_no_weights_count_where_the_program_or_a_loss_converts_them(
    steps: Steps, inside: str, in_loss: bool
) -> None:
    steps.convert(LOGITS, BF16, FP32, inside=inside)
    steps.convert(LOGITS, BF16, FP32, inside=inside, trained=False)
    steps.backward((WEIGHT, FP32))

    [found] = steps.found()

    assert (found.shape, found.source, found.target) == ("4x1024x4096", "bfloat16", "float32")
    assert (found.count, found.ns, found.backward_ns) == (2, 2_000, 1_000)
    assert (found.gradients, found.in_loss) == (None, in_loss)


NOT_FOUND: dict[str, dict[str, Any]] = {
    "an activation that autocast converts for a layer": {"shape": LOGITS, "inside": "aten::linear"},
    "scores of an attention": {"shape": LOGITS, "inside": "aten::softmax"},
    "a small tensor": {"shape": [4, 1024, 64]},
    "a copy without a change of dtype": {"shape": LOGITS, "target": FP32},
    "float64": {"shape": LOGITS, "source": "double"},
    "integers": {"shape": LOGITS, "source": "long int"},
    "a conversion on the host": {"shape": LOGITS, "kernel": False},
    "a weight of a model that is not trained": {"shape": WEIGHT, "inside": "aten::linear", "trained": False},
    "an input of a weight's shape": {
        "shape": WEIGHT,
        "inside": "aten::linear",
        "of": given([WEIGHT, WEIGHT], FP32, FP32),
    },
}


@pytest.mark.parametrize("how", NOT_FOUND.values(), ids=NOT_FOUND)
def test_what_is_no_conversion_of_interest(steps: Steps, how: dict[str, Any]) -> None:
    steps.convert(**how)
    steps.backward((WEIGHT, FP32))

    assert steps.found() == ()


def test_a_copy_between_two_dtypes_outside_a_conversion_is_none(steps: Steps, build: Any) -> None:
    steps._copy(1_000, LOGITS, FP32, BF16, 1_000)
    steps.now += 1_000

    assert steps.found() == ()


def test_an_optimizer_that_converts_its_state_is_not_looked_at(steps: Steps, build: Any) -> None:
    steps.convert(LOGITS, trained=False)
    build.range("Optimizer.step#AdamW.step", 900, 1_990)

    assert steps.found() == ()


def test_on_a_host_alone_nothing_is_looked_for(build: Any) -> None:
    build.step(0, 0, 5_000)
    build.op("aten::copy_", 1_010, 1_040, **given([LOGITS, LOGITS], BF16, FP32))
    build.op("aten::to", 1_000, 1_050, **given([LOGITS], FP32))

    patterns = measure_patterns(op_calls(build.read()))

    assert patterns is not None
    assert patterns.conversions == ()


def loop(layer: Callable[[torch.Tensor], torch.Tensor], *, outside: bool) -> None:
    """Three iterations, with autocast around the loop or inside of it, and a backward."""
    x = torch.zeros(8, 64)
    # An autocast around it that is not enabled would keep the converted weights too.
    with torch.autocast("cpu", dtype=torch.bfloat16) if outside else nullcontext():
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x = layer(x).tanh()
    x.float().sum().backward()  # type: ignore[no-untyped-call]


def recomputed(layers: torch.nn.Sequential, *, reentrant: bool) -> None:
    x = torch.zeros(8, 64, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=reentrant)
    x.float().sum().backward()  # type: ignore[no-untyped-call]


def twice(layer: torch.nn.Module) -> None:
    """Two backwards for one update."""
    loop(layer, outside=True)
    loop(layer, outside=True)


#: Conversions of a weight for each of its gradients, as torch's autocast makes them.
PROGRAMS: dict[str, tuple[Callable[[torch.nn.Sequential], None], float]] = {
    "autocast inside the loop": (lambda layers: loop(layers, outside=False), 3),
    "autocast around the loop": (lambda layers: loop(layers, outside=True), 1),
    "two backwards for one update": (twice, 1),
    "checkpointing": (lambda layers: recomputed(layers, reentrant=False), 1),
    # The conversions of its first forward get no gradient, those of the second one are inside a node.
    "reentrant checkpointing": (lambda layers: recomputed(layers, reentrant=True), 0),
}


@pytest.mark.parametrize(("program", "expected"), PROGRAMS.values(), ids=PROGRAMS)
def test_what_torchs_autocast_converts_is_compared_with_the_gradients(
    tmp_path: Path, program: Callable[[torch.nn.Sequential], None], expected: float
) -> None:
    """Recorded on a CPU; each copy gets a kernel, as on a device."""
    layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64, bias=False) for _ in range(2)])
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        program(layers)
    file = tmp_path / "t.json"
    profiler.export_chrome_trace(str(file))
    content = json.loads(file.read_text())
    copies = [event for event in content["traceEvents"] if event.get("name") == "aten::copy_"]
    for number, copy in enumerate(copies, 1):
        where = {"ph": "X", "ts": copy["ts"] + copy["dur"] / 4, "dur": copy["dur"] / 2}
        launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": copy["pid"], "tid": copy["tid"]}
        kernel = {"cat": "kernel", "name": "direct_copy_kernel_cuda", "pid": 0, "tid": 7}
        linked = {"correlation": number, "device": 0, "stream": 7}
        content["traceEvents"] += [where | launch | {"args": linked}, where | kernel | {"args": linked}]
    file.write_text(json.dumps(content))

    patterns = measure_patterns(op_calls(read_trace(file)))

    assert patterns is not None
    found = [one for one in patterns.conversions if one.shape == "64x64"]
    assert sum(one.count / (one.gradients or 0) for one in found) == expected
