"""What the tensors of a program hold memory for: parameters, gradients, the state of optimizers, and others.

Only addresses and sizes are read: nothing waits for a device, allocates on one, or stays alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from perfkit._raised_signals import leave_to_program
from perfkit.record.live_objects import instances_of, subclasses_of
from perfkit.record.program_values import is_tensor, unseen, values_in
from perfkit.record.windows.model_ranges import roots
from perfkit.run.records import Holding, Storage


def live_models(optimizers: Iterable[Any]) -> list[tuple[str, Any]]:
    """(prefix of its names, model) of each module that is part of no other one, those that are trained first.

    The names of the one model that is trained have no prefix.
    """
    trained = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    found = roots(instances_of(subclasses_of(torch.nn.Module)))
    mine = [model for model in found if any(id(parameter) in trained for parameter in model.parameters())]
    others = [model for model in found if all(model is not one for one in mine)]
    alone = len(mine) == 1
    return [
        *(("" if alone else f"{type(model).__name__}.", model) for model in mine),
        *((f"{type(model).__name__}.", model) for model in others),
    ]


class StorageTable:
    """Storages of tensors, each once: what was added first says what it is held for."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], Storage] = {}

    def add(
        self, tensor: Any, holding: Holding, name: str | None, *, is_output: bool = False, own_allocator: bool = False
    ) -> None:
        """Add the memory of a tensor; one without memory of its own (fake, sparse, on "meta") is left out.

        Args:
            tensor: What holds the memory.
            holding: What it is held for.
            name: Of the tensor; None for its dtype and shape.
            is_output: Whether a module returned it.
            own_allocator: Leave out what torch did not allocate: memory of numpy, of a mapped file, or shared.
        """
        try:
            local = getattr(tensor, "_local_tensor", tensor)
            storage = local.untyped_storage()
            device, address, size = str(local.device), storage.data_ptr(), storage.nbytes()
            left_out = own_allocator and not storage.resizable()
            name = name or f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
        except Exception as error:  # noqa: BLE001 - a subclass of Tensor may answer with an error of any kind
            leave_to_program(error)
            return
        if address and size and local.device.type != "meta" and not left_out:
            self._found.setdefault((device, address), Storage(device, address, size, holding, name, is_output))

    def rows(self) -> tuple[Storage, ...]:
        """All of them."""
        return tuple(self._found.values())


@unseen
def held_storages(optimizers: Iterable[Any]) -> tuple[Storage, ...]:
    """The memory of every tensor that Python holds now."""
    table = StorageTable()
    models = live_models(optimizers)
    named = list(named_parameters(models))
    names = {id(parameter): name for name, parameter in reversed(named)}
    for name, parameter in named:
        table.add(parameter, "parameters", name)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                table.add(parameter, "parameters", names.get(id(parameter), "parameter of no module"))
    for prefix, model in models:
        for name, buffer in model.named_buffers():
            table.add(buffer, "buffers", f"{prefix}{name}")
    for name, parameter in named:
        if parameter.grad is not None:
            table.add(parameter.grad, "gradients", name)
    add_gradients(table, optimizers, names)
    for optimizer in optimizers:
        for parameter, state in list(optimizer.state.items()):
            for value in values_in(state):
                if is_tensor(value):
                    table.add(value, "optimizer state", names.get(id(parameter), type(optimizer).__name__))
    for tensor in instances_of([torch.Tensor]):
        table.add(tensor, "other", None, own_allocator=True)
    return table.rows()


def add_gradients(table: StorageTable, optimizers: Iterable[Any], names: dict[int, str]) -> None:
    """Add the gradients of the parameters of these optimizers; ``names`` are of parameters, by id."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    table.add(parameter.grad, "gradients", names.get(id(parameter), "parameter of no module"))


def named_parameters(models: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """(name, parameter) of these models, which have a prefix each."""
    for prefix, model in models:
        for name, parameter in model.named_parameters():
            yield f"{prefix}{name}", parameter
