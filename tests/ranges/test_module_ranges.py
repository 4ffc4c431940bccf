"""nn.Module classes, instances and whole models: no hook is added."""

from __future__ import annotations

import copy
import io
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import perfkit
from perfkit.ranges import start_recorder
from perfkit.ranges.recorder import RangeRecorder


@perfkit.range("block")
class Block(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


@perfkit.range
class Wider(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


@perfkit.range("subclass")
class Subclass(Block):
    """Inherits its forward."""


def names(recorder: RangeRecorder) -> dict[str, int]:
    return {row.name: row.count for row in recorder.rows()}


def test_a_decorated_class_stays_the_class_and_times_its_forward(recorder: RangeRecorder) -> None:
    assert isinstance(Block, type)
    assert Wider()(torch.zeros(1)).item() == 2
    assert names(recorder) == {"block": 1, "Wider": 1}
    assert not Wider()._forward_hooks
    assert not Wider()._forward_pre_hooks


def test_a_class_that_inherits_its_forward_does_not_change_its_parent(recorder: RangeRecorder) -> None:
    Block()(torch.zeros(1))
    assert names(recorder) == {"block": 1}
    Subclass()(torch.zeros(1))
    assert names(recorder) == {"block": 2, "subclass": 1}


def test_one_instance_is_decorated_alone_and_survives_copy_and_pickle(recorder: RangeRecorder) -> None:
    linear = perfkit.range("first layer")(torch.nn.Linear(2, 2))
    x = torch.ones(1, 2)

    for layer in (linear, copy.deepcopy(linear), pickle.loads(pickle.dumps(linear)), torch.nn.Linear(2, 2)):
        layer(x)
    assert names(recorder)["first layer"] >= 2
    assert torch.equal(linear(x), pickle.loads(pickle.dumps(linear))(x))


def test_an_undecorated_instance_takes_the_name_of_its_class(recorder: RangeRecorder) -> None:
    perfkit.range(torch.nn.ReLU())(torch.zeros(1))
    assert names(recorder) == {"ReLU": 1}


def test_a_module_that_holds_a_range_pickles_and_saves(recorder: RangeRecorder) -> None:
    block = Block()
    block.timer = perfkit.range("held")
    file = io.BytesIO()
    torch.save(block, file)
    file.seek(0)

    assert torch.load(file, weights_only=False).timer is block.timer
    assert copy.deepcopy(block).timer is block.timer


def test_a_module_without_a_forward_is_refused() -> None:
    with pytest.raises(perfkit.UsageError, match=r"needs a forward\(\) written in Python, ModuleList has none"):
        perfkit.range("layers")(torch.nn.ModuleList())


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return self.project(x) * scale


class Net(torch.nn.Module):
    """Layers in a list, an output that shares a layer's weights by being the same module."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Attention(), Attention()])
        self.head = self.layers[0].project

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, scale=0.5)
        return self.head(x)


def dicts(model: torch.nn.Module) -> list[tuple[type, dict[str, Any]]]:
    return [(type(vars(module)), dict(vars(module))) for module in model.modules()]


def test_each_module_of_a_model_is_a_range_by_its_name_and_a_shared_one_only_once(recorder: RangeRecorder) -> None:
    net = Net()
    expected = net(torch.ones(1, 4))
    with perfkit.annotate_modules(net) as handle:
        assert torch.equal(net(torch.ones(1, 4)), expected)

    assert handle.names == ("Net", "layers.0", "layers.0.project", "layers.1", "layers.1.project")
    assert names(recorder) == {
        "Net": 1, "layers.0": 1, "layers.0.project": 2, "layers.1": 1, "layers.1.project": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    ["layers.?", re.compile(r"\.\d$"), lambda name, module: isinstance(module, Attention)],
    ids=["glob", "regular expression", "callable"],
)
def test_the_pattern_selects_by_name_or_module(recorder: RangeRecorder, pattern: Any) -> None:
    net = Net()
    with perfkit.annotate_modules(net, pattern, category="block", domain="mine"):
        net(torch.ones(1, 4))

    rows = {(row.name, row.category, row.domain) for row in recorder.rows()}
    assert rows == {("layers.0", "block", "mine"), ("layers.1", "block", "mine")}


def test_removing_the_handle_puts_every_module_back_exactly_also_after_an_error() -> None:
    net = Net()
    before = dicts(net)
    with pytest.raises(RuntimeError, match="mat1 and mat2"), perfkit.annotate_modules(net):
        net(torch.ones(1, 3))
    handle = perfkit.annotate_modules(net)
    handle.remove()
    handle.remove()

    assert dicts(net) == before


def test_state_copies_and_pickles_of_an_annotated_model_are_those_of_the_plain_one() -> None:
    net = Net()
    plain = pickle.dumps(net)
    with perfkit.annotate_modules(net):
        assert pickle.dumps(net) == plain
        assert list(net.state_dict()) == list(pickle.loads(plain).state_dict())
        copies = [copy.deepcopy(net), copy.copy(net.layers[0]), net.layers[1]._replicate_for_data_parallel()]

    for copied in copies:
        assert not [key for module in copied.modules() for key in vars(module) if "call_impl" in key]
    assert not net._forward_hooks
    assert not net._forward_pre_hooks


def test_a_call_that_raises_ends_its_ranges(recorder: RangeRecorder) -> None:
    net = Net()
    with perfkit.annotate_modules(net):
        for _ in range(3):
            with pytest.raises(RuntimeError):
                net(torch.ones(1, 3))

    assert names(recorder) == {"Net": 3, "layers.0": 3, "layers.0.project": 3}
    assert recorder.dropped == 0


@pytest.mark.parametrize("annotate_first", [True, False])
def test_torch_compile_neither_breaks_nor_compiles_again_for_annotations(annotate_first: bool) -> None:
    graphs = []

    def count(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    net, x = Net(), torch.ones(1, 4)
    compiled = torch.compile(lambda x: net(x).sum(), backend=count, fullgraph=True)
    if not annotate_first:
        compiled(x)
    with perfkit.annotate_modules(net):
        compiled(x)
        recorder = start_recorder()
        compiled(x)
        recorder.stop()
        compiled(x)
    compiled(x)

    assert len(graphs) == 1


def test_around_a_compiled_model_the_model_is_a_range_and_its_parts_are_none(recorder: RangeRecorder) -> None:
    graphs = []
    net = Net()
    compiled = torch.compile(net, backend=lambda graph, example: graphs.append(graph) or graph.forward)
    compiled(torch.ones(1, 4))
    with perfkit.annotate_modules(compiled) as handle:
        compiled(torch.ones(1, 4))
        net.compile(backend="eager")  # by the user, while annotated: torch's call stays

    assert handle.names[:2] == ("Net", "layers.0")
    assert (names(recorder), len(graphs)) == ({"Net": 1}, 1)
    assert net._compiled_call_impl is not None


def test_a_module_that_torch_has_compiled_in_place_gets_its_range_around_that(recorder: RangeRecorder) -> None:
    net = Net()
    net.layers[0].compile(backend="eager")
    theirs = net.layers[0]._compiled_call_impl
    with perfkit.annotate_modules(net, "layers.?"):
        net(torch.ones(1, 4))

    assert names(recorder) == {"layers.0": 1, "layers.1": 1}
    assert net.layers[0]._compiled_call_impl is theirs


def test_hooks_of_the_user_are_called_once_inside_the_range(recorder: RangeRecorder) -> None:
    net = Net()
    called = []
    net.head.register_forward_hook(lambda *_: called.append("hook"))
    with perfkit.annotate_modules(net, "layers.0.project"):
        net(torch.ones(1, 4))

    assert called == ["hook"] * 2
    assert names(recorder) == {"layers.0.project": 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no model",), r"needs a torch.nn.Module object, got 'no model' \(str\)"),
        ((Net,), r"needs a torch.nn.Module object, got <class .*Net'> \(type\)"),
        (
            (Net(), "encoder.*"),
            r"no module of Net matches 'encoder.\*'; its modules are Net, layers.0, layers.0.project, ",
        ),
        ((Net(), 3), r"pattern must be a str .* got 3 \(int\)"),
        ((torch.nn.ModuleList(),), "its modules are none that can be called"),
    ],
)
def test_what_cannot_be_annotated_is_rejected_with_the_valid_names(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(perfkit.UsageError, match=message):
        perfkit.annotate_modules(*arguments)


def test_a_module_is_not_annotated_twice_and_a_wrong_category_changes_nothing() -> None:
    net = Net()
    before = dicts(net)
    with perfkit.annotate_modules(net, "layers.0"), pytest.raises(perfkit.UsageError, match="of Net is annotated"):
        perfkit.annotate_modules(net)
    with pytest.raises(perfkit.UsageError, match="category"):
        perfkit.annotate_modules(net, category="")

    assert dicts(net) == before


def test_the_torch_profiler_shows_modules_as_annotations(annotations: Callable[[Any], list[str]]) -> None:
    net = Net()
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof,
        perfkit.annotate_modules(net, "layers.*"),
    ):
        net(torch.ones(1, 4))

    assert sorted(annotations(prof)) == [
        "layers.0",
        "layers.0.project",
        "layers.0.project",
        "layers.1",
        "layers.1.project",
    ]


def test_modules_are_called_where_this_torch_is_known_to_look() -> None:
    # annotate_modules rests on it; if torch moves it, this fails.
    module = Net()
    module._compiled_call_impl = lambda x: "called"

    assert module(0) == "called"
    assert "_compiled_call_impl" not in module.__getstate__()
