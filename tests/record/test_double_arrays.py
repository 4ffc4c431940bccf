"""Where tensors in float64 come from: the lines of the source, and the names of the tensors that are there."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from perfkit.record.samplers.source_lookup import find_calls
from perfkit.record.watchers.double_arrays import find_double_arrays, names_of_doubles


def written(folder: Path, text: str) -> str:
    file = folder / "train.py"
    file.write_text(text)
    return str(file)


def test_arrays_that_stay_doubles_are_found(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "a = torch.from_numpy(np.hanning(512))\n"
        "b = torch.from_numpy(x.astype(np.float32))\n"
        "c = torch.from_numpy(x).float()\n"
        "d = torch.from_numpy(x)\n"
        "e = torch.as_tensor(x, dtype=torch.float64)\n",
    )

    assert [at.line for at in find_double_arrays((file,))] == [1, 4]
    assert [at.line for at in find_calls(("float64",), (file,))["float64"]] == [5]


def test_of_several_arrays_those_are_found_whose_tensors_are_doubles(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "species = torch.from_numpy(species)\n"
        "position = torch.from_numpy(position)\n"
        "self.gap = torch.from_numpy(gap)\n"
        'self.register_buffer("window", torch.from_numpy(np.hanning(512)))\n'
        'self.register_buffer("order", torch.from_numpy(order))\n'
        "position = torch.from_numpy(position).float()\n",
    )

    assert [at.line for at in find_double_arrays((file,), {"position", "gap", "window"})] == [2, 3, 4]


class Distance(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.from_numpy(np.hanning(8)))
        self.register_buffer("mask", torch.ones(8))
        self.axis = torch.from_numpy(np.linspace(0, 1, 8))


class Session:
    def __init__(self) -> None:
        self.targets = torch.zeros(4, dtype=torch.float64)
        self.ids = torch.zeros(4, dtype=torch.int64)
        self.criteria = {"spectral": torch.nn.ModuleList([Distance()])}

    @property
    def computed(self) -> Any:
        raise AssertionError("perfkit ran the program's code")

    def train(self) -> frozenset[str]:
        inputs, weights = torch.zeros(2, dtype=torch.float64), torch.zeros(2)
        for _ in (inputs, weights, self.computed if self.ids is None else self.targets):
            pass
        return names_of_doubles()


def test_doubles_are_found_in_variables_objects_and_the_buffers_of_modules() -> None:
    found = Session().train()

    assert {"inputs", "targets", "window", "axis"} <= found
    assert not {"weights", "ids", "mask"} & found


def has_dictionary(owner: Any, name: str) -> bool:
    return any(type(one) is dict and name in one for one in gc.get_referents(owner))


def test_doubles_of_a_loaders_dataset_are_found_and_its_attributes_stay_fast() -> None:
    pairs = DataLoader(TensorDataset(torch.zeros(4, 2, dtype=torch.float64)))
    before = has_dictionary(pairs.dataset, "tensors")

    assert "pairs" in names_of_doubles()
    assert has_dictionary(pairs.dataset, "tensors") == before
