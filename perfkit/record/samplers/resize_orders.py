"""Maps that are resized before a layer makes few channels of many, and layers whose result is averaged over places.

A layer that computes each place by itself (a 1x1 convolution, a linear layer) and an interpolation or an average over
places give the same in both orders. The result of the first one is followed through views and copies to the second,
if it alone reads it. Anything else that does, and a program that keeps it, ends that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from perfkit._code_owner import USER, function_name
from perfkit.record.program_values import is_plain, is_tensor
from perfkit.record.samplers.call_paths import Site, location_of
from perfkit.record.samplers.followed_results import MAX_TENSORS, FollowedResults, MemoryReference, key_of
from perfkit.record.samplers.op_paths import is_closed
from perfkit.record.samplers.op_schemas import flattened
from perfkit.run.records import ResizeOrder

#: Results of fewer elements are not followed: whatever the order is, they take little (chosen).
_ELEMENTS = 10_000
#: Ops whose weights for the pixels around sum to one, as a bias needs, by how their names begin without underscores.
_INTERPOLATIONS = ("upsample_", "repeat")
_POOLS = ("avg_pool1d", "avg_pool2d", "avg_pool3d")
_ADAPTIVE_POOLS = tuple(f"{start}adaptive_avg_pool{dims}d" for start in ("", "_") for dims in (1, 2, 3))
#: Ops after which the elements are at the same places; the copy of what is expanded repeats it.
_COPIES = ("clone", "contiguous", "reshape", "_unsafe_view", "_to_copy", "to")
#: Products with a matrix: the places of the rows and of the matrix.
_PRODUCTS = {"mm": (0, 1), "addmm": (1, 2), "linear": (0, 1), "matmul": (0, 1)}
_CONVOLUTIONS = ("convolution", "conv1d", "conv2d", "conv3d")


@dataclass(eq=False)
class _Order:
    """An op and the one that reads its result: an interpolation and a layer, or a layer and an average over places."""

    site: Site
    #: Places of all samples before and after the interpolation or the average; None until that is the second op.
    places: tuple[int, int] | None = None
    #: Channels that the layer gets and returns; None until that is the second op.
    channels: tuple[int, int] | None = None
    #: Lines of copies, and of the second op.
    lines: list[Site] = field(default_factory=list)
    #: Whether something needs the result itself, or may.
    is_needed: bool = False


@dataclass(eq=False)
class _ChannelMemory:
    """Memory with the elements of a result, in which its channels are ``stride`` apart."""

    made: _Order
    channels: int
    stride: int
    elements: int
    reference: MemoryReference
    is_read: bool = False

    def channel_dim(self, tensor: Any) -> int | None:
        """The dimension of its channels in a view of all elements; None for another view."""
        if tensor.numel() != self.elements or any(
            not stride and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        ):
            return None
        dims = zip(tensor.shape, tensor.stride(), strict=True)
        return next((at for at, dim in enumerate(dims) if dim == (self.channels, self.stride)), None)


class ResizeOrderCounts(FollowedResults[_ChannelMemory]):
    """Follows resized maps and results of layers through one step; keeps no tensor alive."""

    def __init__(self) -> None:
        super().__init__()
        self._orders: list[_Order] = []

    def _follow(self, name: str, inputs: tuple[Any, Any], out: Any, site: Site, in_library: bool) -> None:
        if self._known:
            for tensor in flattened(inputs):
                if (memory := self._memory_of(tensor)) is None:
                    continue
                is_other = in_library or memory.is_read or not is_tensor(out)
                # Who asks for the gradient of the result needs the result.
                if is_other or tensor._backward_hooks or tensor.retains_grad:
                    memory.made.is_needed = True
                elif key_of(out) != memory.reference.cdata:
                    memory.is_read = True
                    memory.made.lines.append(site)
                    if not self._read(memory, name, inputs[0], tensor, out):
                        memory.made.is_needed = True
                elif name not in _COPIES:
                    memory.made.is_needed = True  # something else is written into it
        if not in_library and is_plain(out) and out.device.type == "cpu" and out.dim() > 1:
            self._begin(name, inputs[0], out, site)

    def _read(self, memory: _ChannelMemory, name: str, arguments: Any, tensor: Any, out: Any) -> bool:
        """An op reads the memory into another one; returns whether both orders of it and the first op are the same."""
        made, dim = memory.made, memory.channel_dim(tensor)
        if dim is None:
            return False
        if name in _COPIES:
            if out.shape != tensor.shape:
                # Rows as a matrix.
                if dim != tensor.dim() - 1 or out.numel() != tensor.numel() or out.shape[-1] != memory.channels:
                    return False
                dim = -1
            if not is_plain(out) or out.device.type != "cpu":
                return False
            self._remember(made, out, dim)
            return True
        if made.channels is None:
            made.channels = _channels(name, arguments, tensor, out, dim)
            return made.channels is not None
        if made.places is None and out.numel() < memory.elements and _averages(name, arguments, dim):
            made.places = memory.elements // memory.channels, int(out.numel()) // memory.channels
            return True
        return False

    def _begin(self, name: str, arguments: Any, out: Any, site: Site) -> None:
        if out.numel() < _ELEMENTS:
            return
        source = arguments[0]
        if is_tensor(source) and _is_resized(name, source, out):
            size = int(out.shape[1])
            self._start(_Order(site, places=(_elements(source) // size, int(out.numel()) // size)), out, 1)
            return
        if name not in _PRODUCTS and name not in _CONVOLUTIONS:
            return
        rows, weight = (arguments[at] for at in _PRODUCTS.get(name, (0, 1)))
        dim = 1 if name in _CONVOLUTIONS else rows.dim() - 1
        channels = _channels(name, arguments, rows, out, dim)
        if channels is not None and _is_parameter(weight) and not is_closed():
            self._start(_Order(site, channels=channels), out, dim)

    def _start(self, order: _Order, out: Any, dim: int) -> None:
        self._orders.append(order)
        self._remember(order, out, dim)

    def _remember(self, order: _Order, out: Any, dim: int) -> None:
        if len(self._known) >= MAX_TENSORS:
            self.lost = True
            return
        reference = MemoryReference(out)
        self._known[reference.cdata] = _ChannelMemory(
            order, int(out.shape[dim]), int(out.stride(dim)), int(out.numel()), reference
        )

    def rows(self) -> tuple[ResizeOrder, ...]:
        """The lines whose results are resized too early or too late, by the sizes of both ops."""
        found: dict[tuple[Any, ...], int] = {}
        for one in self._orders if not self.lost else ():
            if one.channels is None or one.places is None or one.is_needed:
                continue
            key = one.site, tuple(dict.fromkeys(one.lines)), one.places, one.channels
            found[key] = found.get(key, 0) + 1
        return tuple(
            ResizeOrder(
                file=code.co_filename, line=line, function=function_name(code), owner=USER,
                places=places, channels=channels, calls=calls, read_at=tuple(map(location_of, lines)),
            )
            for ((code, line), lines, places, channels), calls in found.items()
        )  # fmt: skip


def _is_resized(name: str, source: Any, out: Any) -> bool:
    """Whether an op makes more places of a map, and as many channels and samples."""
    is_area = name in _ADAPTIVE_POOLS
    if not name.lstrip("_").startswith(_INTERPOLATIONS) and name not in _COPIES and not is_area:
        return False
    same = out.dim() == source.dim() > 2 and out.shape[:2] == source.shape[:2]
    return same and all(source.stride()[:2]) and _elements(source) < out.numel()


def _elements(source: Any) -> int:
    """The elements of a tensor without those that are only expanded."""
    return prod(int(size) for size, stride in zip(source.shape, source.stride(), strict=True) if stride)


def _channels(name: str, arguments: Any, tensor: Any, out: Any, dim: int) -> tuple[int, int] | None:
    """The channels that a layer gets and returns, if it computes each place of this tensor by itself; else None."""
    if name in _CONVOLUTIONS:
        weight = arguments[1]
        is_layer = arguments[0] is tensor and dim == 1 and all(size == 1 for size in weight.shape[2:])
        # As many places: no stride, no padding. All channels: no groups, and not transposed.
        is_layer = is_layer and out.shape[2:] == tensor.shape[2:]
        is_layer = is_layer and tuple(weight.shape[:2]) == (out.shape[1], tensor.shape[1])
    elif name in _PRODUCTS:
        rows, weight = (arguments[at] for at in _PRODUCTS[name])
        is_layer = rows is tensor and weight.dim() == 2 and dim == tensor.dim() - 1
        # A bias, and not a summand for each place.
        is_layer = is_layer and (name != "addmm" or arguments[0].dim() == 1)
    else:
        return None
    return (int(tensor.shape[dim]), int(out.shape[dim])) if is_layer else None


def _is_parameter(weight: Any) -> bool:
    return any(isinstance(one, torch.nn.Parameter) for one in (weight, weight._base))


def _averages(name: str, arguments: Any, dim: int) -> bool:
    """Whether an op averages over places, and not over the dimension of the channels."""
    tensor = arguments[0]
    if name in _ADAPTIVE_POOLS:
        return dim == 1
    if name in _POOLS:
        # Where zeros of a padding are counted, the bias is not the same in both orders.
        defaults = (None, None, None, 0, False, True, None)
        padding, ceil, counted, divisor = (*arguments, *defaults[len(arguments) :])[3:7]
        is_padded = any(padding) if isinstance(padding, (tuple, list)) else bool(padding)
        return dim == 1 and not ceil and divisor is None and not (is_padded and counted)
    if name != "mean" or len(arguments) < 2 or not isinstance(arguments[1], (tuple, list)) or not arguments[1]:
        return False
    return all(at % tensor.dim() != dim for at in arguments[1])
