"""Looks at values of the program's without running its code.

What an object of the program's answers may raise anything, change something, or be counted. So the type of a value is
asked, and not its ``__class__``, which a proxy computes; a container is read as its built-in type reads it; and what is
read of a tensor, no mode and no subclass of the program's receives.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any, TypeGuard, TypeVar

import torch

from perfkit._code_owner import USER, owner_of

F = TypeVar("F", bound=Callable[..., Any])
#: In place of a value that is not there.
ABSENT: Any = object()
#: What a class has for a method.
_METHODS = (FunctionType, staticmethod, classmethod)
#: Classes of tensors that answer as torch does.
OWN_KINDS = (torch.Tensor, torch.nn.Parameter)
#: Elements that `sample_of` returns: ops on lists of tensors change them and leave their version as it was, and so does
#: numpy. It takes some µs.
SAMPLED = 64

#: A context in which no dispatch mode receives an op. Private to torch: without it the ops of perfkit are counted with
#: those of the program, and take twice as long.
without_modes: Any = getattr(torch._C, "_DisableTorchDispatch", contextlib.nullcontext)
#: Whether ``torch.jit.trace`` records each op, and what is read of a tensor, into the program's graph.
is_tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]  # torch does not export it by name


def is_tensor(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether it is a tensor, or of a subclass."""
    return issubclass(type(value), torch.Tensor)


def is_fake(tensor: Any) -> bool:
    """Whether it is a tensor of a FakeTensorMode, which has no values."""
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return fake is not None and issubclass(type(tensor), fake.FakeTensor)


def values_in(values: Any) -> Iterator[Any]:
    """The values in tuples, lists and dicts."""
    if issubclass(type(values), (tuple, list, dict)):
        for value in list(parts_of(values)):
            yield from values_in(value)
    else:
        yield values


def parts_of(values: Any) -> Iterator[Any]:
    """The values of a tuple, a list or a dict, also of a subclass."""
    kind = type(values)
    if issubclass(kind, dict):
        return iter(dict.values(values))
    return list.__iter__(values) if issubclass(kind, list) else tuple.__iter__(values)


def own_attribute(owner: Any, name: str, default: Any = None) -> Any:
    """The attribute ``name`` that an object has of its own, and not of its class; ``default`` where it has none.

    Nothing asks for ``__dict__``. CPython 3.11 and 3.12 make that dictionary when it is asked for, and look up the
    object's attributes in it from then on, which takes longer: a method that reads one for each character of a text
    took 30% longer for the rest of the run.
    """
    kind = type(owner)
    if issubclass(kind, (type, ModuleType, torch.nn.Module)):  # these have one
        return vars(owner).get(name, default)
    of_class = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), ABSENT)
    inherited = of_class
    if isinstance(of_class, _METHODS):
        inherited = of_class.__get__(owner, kind)
    elif hasattr(type(of_class), "__get__") and type(of_class) is not MemberDescriptorType:
        # To read it would run code, as of a property. A cached one has asked for the dictionary itself.
        if hasattr(type(of_class), "__set__") or hasattr(type(of_class), "__delete__"):
            return default
        try:
            # Not by `getattr`, which asks the class's own ``__getattribute__``.
            return object.__getattribute__(owner, "__dict__").get(name, default)
        except AttributeError:
            return default
    try:
        found = object.__getattribute__(owner, name)
    except AttributeError:
        return default
    return default if found is inherited or (isinstance(of_class, _METHODS) and found == inherited) else found


def own_attributes(owner: Any) -> dict[str, Any]:
    """The attributes that an object of a class of the user's has of its own; none of objects of other classes."""
    kind = type(owner)
    if owner_of(getattr(sys.modules.get(kind.__module__), "__file__", None) or "<unknown>") != USER:
        return {}
    # Without a dictionary: the names that its methods use.
    functions = (one for base in kind.__mro__ for one in vars(base).values() if type(one) is FunctionType)
    names = {name for function in functions for name in function.__code__.co_names}
    found = {name: own_attribute(owner, name, ABSENT) for name in sorted(names)}
    return {name: value for name, value in found.items() if value is not ABSENT}


def is_plain(tensor: Any) -> bool:
    """Whether a tensor has sizes and strides: it is of no subclass of the program's or of torch's, nested or sparse."""
    return type(tensor) in OWN_KINDS and tensor.layout is torch.strided and not tensor.is_nested


def unseen(function: F) -> F:
    """A decorator: no function mode and no subclass of Tensor of the program's receives what ``function`` reads.

    Functions that call the program must not have it: it would run without its modes.
    """

    @functools.wraps(function)
    def looking(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return looking  # type: ignore[return-value]  # it takes and returns the same


def sample_of(tensor: Any) -> bytes | None:
    """Some of its elements, in the order of its memory; None for one on a device, of a subclass, or of many blocks."""
    if tensor.device.type != "cpu" or type(tensor) not in OWN_KINDS:
        return None
    # Without the modes: they would see each of these ops, which takes ten times as long as the op.
    with without_modes():
        block = tensor.detach()
        if not block.is_contiguous():
            # Images whose channels were moved, and weights in channels_last, are one block in another order.
            block = block.permute(sorted(range(block.dim()), key=lambda dim: -block.stride(dim)))
            if not block.is_contiguous():
                return None
        elements = block.reshape(-1)
        if (step := elements.numel() // SAMPLED) > 1:
            elements = elements[::step]
        # A copy: torch resizes no memory that numpy has seen, and FSDP resizes that of its parameters.
        return bytes(elements.clone().view(torch.uint8).numpy())
