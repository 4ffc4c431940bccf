"""Ranges around the top levels of the model while a window is open, and the models found through optimizers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import perfkit
from perfkit.measures.host.range_times import measure_range_times
from perfkit.record.windows.model_ranges import ModelRanges, roots, top_levels, trained_modules
from perfkit.run.reading import read_run
from perfkit.trace import read_trace

WINDOW = perfkit.schedule(wait=2, warmup=1, active=2, repeat=1)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(8, 8)
        self.layers = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(8, 8)) for _ in range(2)])
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(model: Any, prof: perfkit.profile, error: BaseException | None = None) -> list[bool]:
    """Train, and raise ``error`` inside the window; returns for each step whether the first layer had a range."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    annotated = []
    for step in prof.steps(range(8)):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        inner = getattr(model, "_orig_mod", model)
        annotated.append("_compiled_call_impl" in vars(inner.embed))
        if step == 3 and error is not None:
            raise error
    return annotated


def record(folder: Path, **options: Any) -> perfkit.profile:
    return perfkit.profile(folder, quiet=True, **{"schedule": WINDOW, **options})


def test_steps_of_a_window_have_a_range_per_top_level_module_and_no_other_steps_do(tmp_path: Path) -> None:
    with record(tmp_path / "x") as prof:
        annotated = train(Net(), prof)

    (window,) = read_run(tmp_path / "x").ranks[0].windows
    found = {row.name: row.count for row in measure_range_times(read_trace(window))}
    assert annotated == [False, False, True, True, True, False, False, False]
    assert found == {"embed": 2, "layers.0": 2, "layers.1": 2, "head": 2} | {
        name: count for name, count in found.items() if name.startswith("Optimizer")
    }
    with np.load(tmp_path / "x" / "rank-0" / "ranges.npz") as table:
        assert dict(zip(table["name"].tolist(), table["category"].tolist(), strict=True))["layers.1"] == "module"


@pytest.mark.parametrize("error", [RuntimeError("training's own error"), SystemExit(0), KeyboardInterrupt()], ids=repr)
def test_modules_are_restored_however_the_run_ends_inside_the_window(tmp_path: Path, error: BaseException) -> None:
    net = Net()
    before = [(type(vars(module)), list(vars(module))) for module in net.modules()]
    with pytest.raises(type(error)), record(tmp_path / "x") as prof:
        train(net, prof, error)

    assert [(type(vars(module)), list(vars(module))) for module in net.modules()] == before


def test_a_compiled_model_gets_a_note_instead_of_ranges_and_compiles_once(tmp_path: Path) -> None:
    graphs = []
    net = Net()
    compiled = torch.compile(net, backend=lambda graph, example: graphs.append(graph) or graph.forward)
    with record(tmp_path / "x") as prof:
        annotated = train(compiled, prof)

    assert not any(annotated)
    assert len(graphs) == 1
    notes = read_run(tmp_path / "x").ranks[0].rank.notes
    assert "modules of Net have no times of their own: torch.compile has compiled it as a whole" in notes


def test_a_compiled_step_around_the_model_is_not_compiled_again_by_the_window(tmp_path: Path) -> None:
    graphs = []
    net = Net()
    loss = torch.compile(
        lambda x: net(x).sum(), backend=lambda graph, example: graphs.append(graph) or graph.forward, fullgraph=True
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with record(tmp_path / "x") as prof:
        for _ in prof.steps(range(8)):
            loss(torch.ones(2, 8)).backward()
            optimizer.step()

    assert len(graphs) == 1


def test_an_only_child_and_lists_are_opened_and_compiled_parts_are_not() -> None:
    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = Net()
            self.module.head = torch.compile(self.module.head, backend="eager")

    wrapper = Wrapper()
    found = [name for name, _ in top_levels(wrapper)]

    assert found == ["module", "module.embed", "module.layers", "module.head", "module.layers.0", "module.layers.1"]
    assert dict(top_levels(wrapper))["module.head"] is wrapper.module.head._orig_mod


def test_models_are_found_through_optimizers_and_only_the_outermost_count() -> None:
    net, other = Net(), Net()
    optimizer = torch.optim.SGD(net.layers[0].parameters(), lr=0.1)
    found = trained_modules([optimizer])

    assert {id(module) for module in found} >= {id(net), id(net.layers), id(net.layers[0]), id(net.layers[0][0])}
    assert id(other) not in {id(module) for module in found}
    assert [module for module in roots(found) if module is net or module in set(net.modules())] == [net]


def test_two_models_keep_their_ranges_apart_and_there_are_at_most_64() -> None:
    class Deep(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(70))

    notes: list[str] = []
    net, deep = Net(), Deep()
    ranges = ModelRanges([torch.optim.SGD([*net.parameters(), *deep.parameters()], lr=0.1)], notes.append)
    ranges.update(True)
    vars(net.embed)["_compiled_call_impl"](torch.ones(1, 8))
    annotated = [m for model in (net, deep) for m in model.modules() if "_compiled_call_impl" in vars(m)]
    ranges.update(False)

    assert len(annotated) == 64
    assert Counter("the first 64 of" in note for note in notes) == {True: 1}
    assert type(vars(net.embed)) is dict


def test_modules_that_the_user_annotated_keep_the_users_range() -> None:
    net = Net()
    ranges = ModelRanges([torch.optim.SGD(net.parameters(), lr=0.1)], lambda note: None)
    with perfkit.annotate_modules(net, "head"):
        mine = vars(net.head)["_compiled_call_impl"]
        ranges.update(True)
        assert vars(net.head)["_compiled_call_impl"] is mine
        ranges.update(False)
        assert vars(net.head)["_compiled_call_impl"] is mine
