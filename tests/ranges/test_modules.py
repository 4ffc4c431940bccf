"""nn.Module classes and instances: their ``forward`` is the range, and no hook is added."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

import perfkit
from perfkit.ranges import Recorder


@perfkit.range("block")
class Block(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


@perfkit.range
class Wider(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


@perfkit.range("heir")
class Heir(Block):
    """Inherits its forward."""


def names(recorder: Recorder) -> dict[str, int]:
    return {row.name: row.count for row in recorder.rows()}


def test_a_decorated_class_stays_the_class_and_times_its_forward(recorder: Recorder) -> None:
    assert isinstance(Block, type)
    assert Wider()(torch.zeros(1)).item() == 2
    assert names(recorder) == {"block": 1, "Wider": 1}
    assert not Wider()._forward_hooks
    assert not Wider()._forward_pre_hooks


def test_a_class_that_inherits_its_forward_does_not_change_its_parent(recorder: Recorder) -> None:
    Block()(torch.zeros(1))
    assert names(recorder) == {"block": 1}
    Heir()(torch.zeros(1))
    assert names(recorder) == {"block": 2, "heir": 1}


def test_one_instance_is_decorated_alone_and_survives_copy_and_pickle(recorder: Recorder) -> None:
    linear = perfkit.range("first layer")(torch.nn.Linear(2, 2))
    x = torch.ones(1, 2)

    for layer in (linear, copy.deepcopy(linear), pickle.loads(pickle.dumps(linear)), torch.nn.Linear(2, 2)):
        layer(x)
    assert names(recorder)["first layer"] >= 2
    assert torch.equal(linear(x), pickle.loads(pickle.dumps(linear))(x))


def test_an_undecorated_instance_takes_the_name_of_its_class(recorder: Recorder) -> None:
    perfkit.range(torch.nn.ReLU())(torch.zeros(1))
    assert names(recorder) == {"ReLU": 1}


def test_a_module_that_holds_a_range_pickles_and_saves(recorder: Recorder) -> None:
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
