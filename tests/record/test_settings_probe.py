"""What is seen of a program between its steps: settings, optimizers, tensors that stay, batches, evaluations."""

from __future__ import annotations

import gc
import linecache
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from perfkit.record.clock.step_clock import StepClock
from perfkit.record.hooks.batches import BatchWatch, first_tensor
from perfkit.record.samplers.source_lookup import calls_of, lines_that_fill
from perfkit.record.watchers import settings_probe
from perfkit.record.watchers.settings_probe import Inspection
from perfkit.record.watchers.tensor_leaks import LocalGraphs, TensorWatch


def test_a_setting_counts_as_it_was_in_most_looks() -> None:
    settings_probe = Inspection([])
    for step in range(5):
        with torch.autograd.set_detect_anomaly(step > 1):
            settings_probe.look(step, timed=True)

    assert settings_probe.settings["torch.anomaly_enabled"] == "True"
    assert settings_probe.settings["torch.deterministic"] == "False"
    assert int(settings_probe.settings["anomaly.stack_ns"]) > 0


def test_a_price_is_the_median_of_eight_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    prices = iter([5, 0, 0, 7, 6, 900, 6, 8, 10_000, 20_000])
    monkeypatch.setattr(settings_probe, "_stack_cost", lambda: next(prices))
    one = Inspection([])

    with torch.autograd.set_detect_anomaly(True):
        for step in range(10):
            one.look(step, timed=True)

    assert one.settings["anomaly.stack_ns"] == "6"
    assert next(prices) == 10_000


def test_nothing_is_said_before_the_first_look() -> None:
    settings_probe = Inspection([])

    assert settings_probe.settings == {}
    assert settings_probe.calls() == {}
    assert settings_probe.cpu_ns_per_step is None


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_are_kept_are_told_from_those_set_to_none(to_none: bool) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    settings_probe = Inspection([optimizer])
    for step in range(3):
        optimizer.zero_grad(set_to_none=to_none)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        settings_probe.look(step, timed=True)

    [facts] = settings_probe.optimizers
    assert facts.keeps_gradients is not to_none
    assert (facts.kind, facts.tensors, facts.elements, facts.dtypes) == ("SGD", 2, 8, ("float32",))
    assert (facts.foreach, facts.fused) == (None, True)


def written(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(text)
    linecache.checkcache(str(path))
    return str(path)


def test_calls_are_found_with_their_lines_unless_they_switch_off(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "import torch\ntorch.set_num_threads(64)\ntorch.autograd.set_detect_anomaly(False)\n"
        "def main():\n    t = Trainer(detect_anomaly=True, deterministic=False)\n",
    )

    found = calls_of(("set_num_threads", "set_detect_anomaly", "detect_anomaly", "deterministic"), (file,))

    assert {name: [(place.line, place.function) for place in places] for name, places in found.items()} == {
        "set_num_threads": [(2, "<module>")],
        "detect_anomaly": [(5, "main")],
    }


@pytest.mark.parametrize(
    "line",
    [
        "kept.append(x)",
        "self.kept.append(x)",
        "kept += [x]",
        "kept = kept + x",
        "kept['a'] = x",
        "total, kept = 1, f(x)",
    ],
)
def test_the_line_that_fills_a_name_is_found(line: str, tmp_path: Path) -> None:
    file = written(tmp_path, f"kept = []\nfor x in data:\n    {line}\n")

    places = lines_that_fill("kept", (file,))

    assert [place.line for place in places] == ([] if line.startswith("total") else [3])
    assert lines_that_fill("other", (file,)) == ()


class Clock:
    """A clock that is late enough for every look."""

    now = 0

    def __call__(self) -> int:
        self.now += 10**12
        return self.now


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> TensorWatch:
    gc.collect()  # what the test before has left would go between two looks
    clock = Clock()
    monkeypatch.setattr("perfkit._clock.now_ns", clock)
    return TensorWatch()


def looks(watch: TensorWatch, each_step: Any) -> TensorWatch:
    for step in range(81):
        watch.look(step)
        each_step(step)
    return watch


def test_tensors_kept_with_their_graph_are_found_with_what_holds_them(watch: TensorWatch) -> None:
    weight = torch.ones(7, 5, requires_grad=True)
    losses = []

    def step(number: int) -> None:
        losses.append(weight * number)

    looks(watch, step)

    assert (watch.kept[0].grown, watch.kept[0].steps, watch.kept[0].graph) == (40, 40, True)
    assert watch.kept[0].name == "losses"
    assert watch.kept[0].places
    assert Path(watch.kept[0].places[0].file).name == "test_inspection.py"


def test_tensors_that_are_replaced_in_every_step_are_not_kept(watch: TensorWatch) -> None:
    weight = torch.ones(7, 5, requires_grad=True)
    last: list[Any] = []

    def step(number: int) -> None:
        # More from look to look, and all of them new.
        last[:] = [weight * n for n in range(2 * number)]

    looks(watch, step)

    assert [one for one in watch.kept if one.graph] == []


def test_a_sum_that_keeps_its_graph_is_found_by_the_graphs_nodes(watch: TensorWatch) -> None:
    weight = torch.ones(3, requires_grad=True)
    total = weight.sum()
    for step in range(81):
        watch.look(step)
        total = total + weight.sum() * step

    assert watch.kept[0].nodes_grown >= 40
    assert watch.kept[0].name == "total"


def test_the_looks_come_ever_further_apart(watch: TensorWatch) -> None:
    looked = [step for step in range(700) if watch.look(step)]

    assert looked == [20, 40, 80, 160, 320, 640]


def test_an_evaluations_graph_is_told_from_the_trainings() -> None:
    weight = torch.ones(3, requires_grad=True)
    loss = weight.sum()
    graphs = LocalGraphs()
    assert graphs.look() is not None  # the training's: it came since nothing was known
    assert graphs.look() is None
    scores = weight * 2

    place = graphs.look()

    assert place is not None
    assert "scores = weight" in linecache.getline(place.file, place.line)
    assert loss is not scores


def test_a_look_keeps_nothing_that_the_program_lets_go() -> None:
    local = torch.ones(3, requires_grad=True) * 2
    gone = weakref.ref(local)
    own = locals()

    LocalGraphs().look()
    assert own["local"] is local
    del own
    LocalGraphs().look()
    del local

    assert gone() is None


def test_a_batchs_size_is_that_of_its_first_tensor() -> None:
    x = torch.zeros(4, 6)

    assert first_tensor({"input": (x, torch.zeros(4))}) is x
    assert first_tensor(["text", x]) is None
    clock = StepClock(lambda closed: None)
    clock.step_num = 7
    watch = BatchWatch(clock)
    for batch in ((x, 1), (x, 2), "text"):
        watch.came(batch)
    assert watch.elements == {7: 48}


def test_padding_is_counted_in_batches_of_whole_numbers() -> None:
    watch = BatchWatch(StepClock(lambda closed: None))
    tokens = torch.tensor([[5, 6, 7, 8], [5, 0, 0, 0], [5, 6, 0, 0]])
    full = torch.arange(12).reshape(3, 4)
    for batch in (tokens, full, torch.zeros(3, 4)):
        watch.came(batch)
        watch.look()

    assert watch.padding is not None
    assert (watch.padding.batches, watch.padding.elements, watch.padding.padded) == (2, 24, 5)
