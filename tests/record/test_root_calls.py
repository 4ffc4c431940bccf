"""Calls of modules from outside of any other module are seen, without hooks, and a compiler sees none of it."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perfkit.record.hooks.root_calls import RootCalls
from perfkit.record.input_slices import InputSlices
from perfkit.run.reading import read_run

pytestmark = pytest.mark.usefixtures("nothing_compiled")


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.inner(batch)  # type: ignore[no-any-return]


class Logged(torch.nn.Linear):
    """Has a ``__call__`` of its own."""

    def __call__(self, batch: torch.Tensor) -> Any:
        return super().__call__(batch)


class Seen(list[Any]):
    """The modules that were called from outside while it watches."""

    def __enter__(self) -> Seen:
        self.calls = RootCalls(get_ident, lambda module, _: self.append(module))
        self.calls.attach()
        return self

    def __exit__(self, *error: object) -> None:
        self.calls.detach()


def test_calls_from_outside_are_seen_also_after_the_first_ones() -> None:
    block, loss = Block(), torch.nn.MSELoss()
    call = torch.nn.Module.__call__
    with Seen() as seen:
        for _ in range(20):
            loss(block(torch.ones(2)), torch.ones(2))
        assert torch.nn.Module.__call__ is call
        block.inner(torch.ones(2))

    assert seen == [block, loss] * 20
    assert "__call__" not in vars(Block)


def test_a_model_that_is_called_after_many_calls_of_another_one_is_seen_when_looked_for_again() -> None:
    block, late = Block(), torch.nn.Linear(2, 2)
    call = torch.nn.Module.__call__
    with Seen() as seen:
        for _ in range(20):
            block(torch.ones(2))
        late(torch.ones(2))
        seen.calls.look_again()
        late(torch.ones(2))
        for _ in range(20):
            block(torch.ones(2))
        assert torch.nn.Module.__call__ is call
        late(torch.ones(2))

    assert Counter(map(type, seen)) == {Block: 40, torch.nn.Linear: 2}
    assert torch.nn.Module.__call__ is call


def test_a_class_with_its_own_call_and_its_subclasses_are_seen_once_per_call() -> None:
    class More(Logged):
        pass

    modules = [Logged(2, 2), More(2, 2), Logged(2, 2)]
    own = vars(Logged)["__call__"]
    with Seen() as seen:
        for module in modules:
            module(torch.ones(2))

    assert seen == modules
    assert vars(Logged)["__call__"] is own


def test_a_model_that_raises_is_seen_again() -> None:
    block = Block()
    with Seen() as seen:
        for size in (3, 2):
            try:
                block(torch.ones(size))
            except RuntimeError:
                continue

    assert seen == [block] * 2


@pytest.mark.parametrize("before", [True, False], ids=["compiled before", "compiled while recording"])
def test_compiled_code_is_neither_broken_nor_compiled_again(before: bool) -> None:
    def make() -> list[Any]:
        return [
            torch.compile(block, backend="eager", fullgraph=True),
            torch.compile(lambda batch: eager(batch) + block(batch), backend="eager", fullgraph=True),
            torch.compile(torch.func.grad(lambda x: (x**2).sum()), backend="eager", fullgraph=True),
        ]

    torch._dynamo.reset()
    torch._dynamo.eval_frame.cached_backends.clear()
    torch._dynamo.utils.counters.clear()
    block, eager = Block(), Block()
    calls = make() if before else []
    with Seen() as seen:
        eager(torch.ones(2))
        calls = calls or make()
        for _ in range(20):
            for call in calls:
                call(torch.ones(2))
    for call in calls:
        call(torch.ones(2))

    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3
    assert seen == [*([] if before else [eager]), *([calls[0]] * 20)]
    assert torch.compile.__module__ == "torch"


def test_an_optimizer_made_before_does_not_hide_the_calls() -> None:
    block = Block()
    torch.optim.SGD(block.parameters(), lr=0.1)  # imports Dynamo
    torch._dynamo.eval_frame.cached_backends[0] = None
    with Seen() as seen:
        block(torch.ones(2))

    assert seen == [block]


def test_a_class_that_is_pickled_by_value_leaves_the_recording_behind() -> None:
    with Seen() as seen:
        copy = pickle.loads(pickle.dumps(seen.calls))
        Block()(torch.ones(2))

    assert isinstance(copy, RootCalls)
    assert copy._thread() == -1


def looked_at(*inputs: Any) -> float | None:
    slices = InputSlices()
    for given in inputs:
        slices.look(nn.Identity(), ((given,), {}))
    return slices.share


def test_a_loop_over_the_rows_of_a_tensor_is_told_from_calls_with_tensors_of_their_own() -> None:
    table = torch.randn(40, 4)

    assert looked_at(*(row[None] for row in table)) == 1.0
    assert looked_at(*(torch.randn(1, 4) for _ in range(40))) == 0.0
    assert looked_at(*(table[:1] for _ in range(40))) == 0.0  # the same part again
    assert looked_at(*table[:4]) is None
    with torch.inference_mode():
        assert looked_at(*(row[None] for row in torch.randn(40, 4))) == 1.0
    videos = torch.randn(2, 40, 3, 4, 4)
    assert looked_at(*(videos[:, frame] for frame in range(40))) == 1.0
    assert looked_at(*(videos[:, frame].mean(1) for frame in range(40))) == 0.0


def test_inputs_without_memory_are_no_slices() -> None:
    assert looked_at(*(torch.ones(1, 2).to_sparse() for _ in range(20))) == 0.0
    assert looked_at(*("text" for _ in range(20))) == 0.0


def test_parts_that_are_written_from_the_answers_before_depend_on_each_other() -> None:
    states = torch.zeros(20, 2, 4)
    slices = InputSlices()
    for tick in range(19):
        slices.look(nn.Identity(), ((states[tick],), {}))
        states[tick + 1] = states[tick] + 1

    assert slices.share == 0.0


class Scorer(nn.Module):
    def forward(self, picture: Tensor) -> Tensor:
        return picture.sum()


def items_of(net: nn.Module, slices: InputSlices, pictures: list[Tensor]) -> int | None:
    for one in pictures:
        slices.look(net, ((one[None],), {})), net(one[None])
    return slices.items


def test_the_samples_of_a_list_are_its_items_where_all_have_one_shape() -> None:
    alike = [torch.randn(2, 3, 3) for _ in range(24)]

    assert items_of(Scorer(), InputSlices(), alike) == 24
    assert items_of(Scorer(), InputSlices(), [*alike[:20], torch.randn(2, 4, 4)]) is None
    batches = InputSlices()
    for _ in range(20):
        batches.look(Scorer(), ((torch.randn(8, 2),), {}))
    assert batches.items is None


PROFILED = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(240, 8)), batch_size=8)
with profile(activities=[ProfilerActivity.CPU], with_stack=True) as prof:
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
prof.export_chrome_trace(sys.argv[1])
"""


def test_a_profiler_with_stacks_around_the_training_leaves_it_running_and_sees_all_modules(tmp_path: Path) -> None:
    # In a process of its own: torch takes the code of Module.__call__ once in a process.
    (tmp_path / "train.py").write_text(PROFILED)
    command = [sys.executable, "-m", "perfkit", "run", "--out", "run", "train.py", "trace.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)

    assert done.returncode == 0, done.stderr
    assert "AttributeError" not in done.stderr
    [rank] = read_run(tmp_path / "run").ranks.values()
    assert sum(row.steps for row in rank.steps) >= 29
    modules = [
        str(event.get("name"))
        for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        if str(event.get("name")).startswith("nn.Module: ")
    ]
    assert Counter(modules) == {"nn.Module: Sequential_0": 30, "nn.Module: Linear_0": 30, "nn.Module: ReLU_0": 30}
