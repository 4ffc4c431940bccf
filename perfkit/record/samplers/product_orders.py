"""Products of three matrices in the order that takes more work: ``(a @ b) @ c`` where ``a @ (b @ c)`` takes less.

The result of a product is followed through views, copies and multiplications by a number to the one product that reads
it along its rows or its columns. Anything else that reads it, and a program that keeps it, ends that.

`ConstantOpLog` hands on the ops of a step, without views: a tensor is known by its memory, and shape and strides tell
which of its dimensions are rows and columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import torch

from perfkit._code_owner import USER, function_name
from perfkit.record.program_values import is_tensor, without_modes
from perfkit.record.samplers.call_paths import Site, location_of
from perfkit.record.samplers.followed_results import MAX_TENSORS, FollowedResults, MemoryReference, key_of
from perfkit.record.samplers.op_schemas import flattened
from perfkit.run.records import ProductOrder

#: Results of fewer elements are not followed: whatever the order is, such products take little (chosen).
_ELEMENTS = 10_000
#: Ops with two factors as their first arguments, and after a summand, which is none of the result's business.
_PRODUCTS, _WITH_SUMMAND = ("mm", "bmm", "mv", "matmul"), ("addmm", "baddbmm", "addmv")
#: Ops after which the elements are at the same places; under inference_mode the last two are ops.
_COPIES = ("clone", "_unsafe_view", "contiguous", "reshape")
_SCALES = ("mul", "div", "neg")


class _Axis(NamedTuple):
    """How many places there are along rows, columns or matrices, and how far apart they are in memory."""

    size: int
    stride: int


class _Layout(NamedTuple):
    """Where the elements of matrices are in memory."""

    matrices: _Axis
    rows: _Axis
    columns: _Axis

    @property
    def elements(self) -> int:
        return self.matrices.size * self.rows.size * self.columns.size


@dataclass(eq=False)
class _Product:
    """A product whose result is followed. ``inner`` is the size that it sums over, ``numbers`` are of its two ops."""

    site: Site
    inner: int
    shape: tuple[int, int, int]
    has_graph: bool
    with_grad: bool
    numbers: list[int]
    #: Whether its left and its right factor are parameters.
    of_weights: tuple[bool, bool]
    #: Lines of what is done with the result.
    lines: set[Site] = field(default_factory=set)
    #: The size that the product that reads it adds, and how it reads it. None: nothing has read it.
    outer: int | None = None
    is_left: bool = False
    is_transposed: bool = False
    #: Whether something needs the result itself, or may.
    is_needed: bool = False

    @property
    def work(self) -> tuple[int, int]:
        """Multiplications of both products in their order, and in the other one."""
        matrices, rows, columns = self.shape
        outer = self.outer or 0
        own = matrices * rows * columns * (self.inner + outer)
        return own, matrices * self.inner * outer * (rows + columns)


@dataclass(eq=False)
class _Memory:
    """Memory with the elements of a product's result. The reference says whether it still exists, and keeps its key."""

    made: _Product
    layout: _Layout
    reference: MemoryReference
    is_read: bool = False


class ProductOrderCounts(FollowedResults[_Memory]):
    """Follows the results of products through one step; keeps no tensor alive."""

    def __init__(self) -> None:
        super().__init__()
        #: Memory with what ops have made of parameters alone; the references keep the keys.
        self._weights: dict[int, MemoryReference] = {}
        self._products: list[_Product] = []
        self._ops = 0

    def _follow(self, name: str, inputs: tuple[Any, Any], out: Any, site: Site, in_library: bool) -> None:
        self._ops += 1
        factors = _factors(name, inputs[0])
        if self._known:
            for tensor in flattened(inputs):
                if (memory := self._memory_of(tensor)) is None:
                    continue
                memory.made.lines.add(site)
                follows = _is_copy_or_scale(name, inputs, tensor) and is_tensor(out)
                if in_library or not (
                    self._copy(memory, tensor, out) if follows else self._multiply(memory, tensor, factors)
                ):
                    memory.made.is_needed = True
        if factors is None:
            self._add_weight(inputs, out)
        if factors is not None and not in_library and name not in _WITH_SUMMAND:
            bias = (*inputs[0][2:3], inputs[1].get("bias"))
            if name != "linear" or all(one is None for one in bias):
                self._begin(factors, out, site)

    def _copy(self, memory: _Memory, tensor: Any, out: Any) -> bool:
        """A copy or a multiple has been made; returns whether it can be followed."""
        if key_of(out) == memory.reference.cdata:
            return _moved(memory.layout, tensor, tensor) is not None  # in place, or a view
        layout = _moved(memory.layout, tensor, out)
        if memory.is_read or layout is None:
            return False
        memory.is_read = True
        self._remember(memory.made, layout, out)
        return True

    def _multiply(self, memory: _Memory, tensor: Any, factors: tuple[Any, Any] | None) -> bool:
        """A product reads the result, or another op; returns whether the order of both could be changed."""
        product = memory.made
        if factors is None or memory.is_read or product.outer is not None:
            return False
        memory.is_read = True
        is_left = memory.reference.cdata == key_of(factors[0])
        own, other = factors if is_left else factors[::-1]
        if not is_left and memory.reference.cdata != key_of(own):
            return False  # the summand
        # Who asks for the gradient of the result needs the result.
        if own._backward_hooks or own.retains_grad:
            return False
        # What is detached, or made without gradients, has factors with them.
        if product.has_graph != own.requires_grad or product.with_grad != torch.is_grad_enabled():
            return False
        by_columns = _contracted(memory.layout, own, other, is_left=is_left)
        # Two layers without an activation between them are the author's choice of a model.
        if by_columns is None or (product.of_weights[by_columns] and self._is_weight(other)):
            return False
        _, rows, columns = product.shape
        times = product.shape[0] if other.dim() > 2 else 1
        product.outer = int(other.numel()) // ((columns if by_columns else rows) * times)
        product.is_left, product.is_transposed = is_left, by_columns != is_left
        product.numbers.append(self._ops)
        return True

    def _begin(self, factors: tuple[Any, Any], out: Any, site: Site) -> None:
        left, right = factors
        if not is_tensor(out) or out.device.type != "cpu" or out.numel() < _ELEMENTS or right.dim() < 2:
            return
        layout = _layout_of(out, is_shared=right.dim() == 2)
        if layout is None or layout.elements != out.numel() or min(layout.rows.size, layout.columns.size) < 2:
            return
        with_grad = torch.is_grad_enabled()
        product = _Product(
            site=site,
            inner=int(left.shape[-1]),
            shape=(layout.matrices.size, layout.rows.size, layout.columns.size),
            has_graph=with_grad and (left.requires_grad or right.requires_grad),
            with_grad=with_grad,
            numbers=[self._ops],
            of_weights=(self._is_weight(left), self._is_weight(right)),
        )
        self._products.append(product)
        self._remember(product, layout, out)

    def _remember(self, product: _Product, layout: _Layout, out: Any) -> None:
        if len(self._known) >= MAX_TENSORS:
            self.lost = True
            return
        reference = MemoryReference(out)
        self._known[reference.cdata] = _Memory(product, layout, reference)

    def _is_weight(self, tensor: Any) -> bool:
        """Whether it is a parameter, a view of one, or made of such alone: a cast, or a norm of a weight."""
        is_own = any(isinstance(one, torch.nn.Parameter) for one in (tensor, tensor._base))
        return is_own or key_of(tensor) in self._weights

    def _add_weight(self, inputs: tuple[Any, Any], out: Any) -> None:
        tensors = [one for one in flattened(inputs) if is_tensor(one)]
        if not is_tensor(out) or not tensors or len(self._weights) >= MAX_TENSORS:
            return
        if all(one.numel() == 1 or self._is_weight(one) for one in tensors) and any(map(self._is_weight, tensors)):
            reference = MemoryReference(out)
            self._weights[reference.cdata] = reference

    def end_step(self) -> None:
        """The step is over."""
        super().end_step()
        self._weights.clear()

    def rows(self) -> tuple[ProductOrder, ...]:
        """The lines whose products take more work than in the other order; of a chain, those that take most."""
        found: Counter[tuple[Any, ...]] = Counter()
        lines: dict[tuple[Any, ...], set[Site]] = {}
        taken: set[int] = set()
        slower = [one for one in self._products if one.outer and not one.is_needed and one.work[0] > one.work[1]]
        for one in sorted(slower, key=lambda one: one.work[1] - one.work[0]):
            if self.lost or not taken.isdisjoint(one.numbers):
                continue
            taken.update(one.numbers)
            key = one.site, one.shape, one.inner, one.outer, one.is_left, one.is_transposed
            found[key] += 1
            lines.setdefault(key, set()).update(one.lines)
        return tuple(_row(key, calls, lines[key]) for key, calls in found.items())


def _row(key: tuple[Any, ...], calls: int, lines: set[Site]) -> ProductOrder:
    (code, line), (matrices, rows, columns), inner, outer, is_left, is_transposed = key
    return ProductOrder(
        file=code.co_filename,
        line=line,
        function=function_name(code),
        owner=USER,
        read_at=tuple(sorted(map(location_of, lines), key=lambda at: (at.file, at.line or 0))),
        matrices=matrices,
        rows=rows,
        columns=columns,
        inner=inner,
        outer=outer,
        is_left=is_left,
        is_transposed=is_transposed,
        calls=calls,
    )


def _factors(name: str, arguments: Any) -> tuple[Any, Any] | None:
    """Both factors of a product of matrices; None for another op."""
    if name in _PRODUCTS:
        left, right = arguments[:2]
    elif name in _WITH_SUMMAND:
        left, right = arguments[1:3]
    elif name == "linear" and arguments[1].dim() == 2:
        with without_modes():
            left, right = arguments[0], arguments[1].t()
    else:
        return None
    if left.dim() == 1:
        with without_modes():
            left = left[None]  # one row
    # Matrices of two batches that are not equal are repeated.
    is_known = right.dim() <= 2 or left.shape[:-2] == right.shape[:-2]
    return (left, right) if is_known else None


def _is_copy_or_scale(name: str, inputs: tuple[Any, Any], tensor: Any) -> bool:
    """Whether an op copies the tensor, or multiplies or divides it by a number."""
    arguments, named = inputs
    if name in _COPIES:
        return arguments[0] is tensor
    if name not in _SCALES or named:
        return False
    if name == "div" and arguments[0] is not tensor:
        return False
    others = [one for one in arguments if one is not tensor]
    return len(others) == len(arguments) - 1 and all(not is_tensor(one) or one.numel() == 1 for one in others)


def _merged(axes: Iterable[tuple[int, int]]) -> _Axis | None:
    """Several dimensions as one, the outermost first; None where they are not one in memory."""
    axes = [(int(size), int(stride)) for size, stride in axes if size != 1]
    if not axes:
        return _Axis(1, 0)
    for (_, outer), (size, stride) in pairwise(axes):
        if outer != size * stride:
            return None
    return _Axis(prod(size for size, _ in axes), axes[-1][1])


def _layout_of(out: Any, *, is_shared: bool) -> _Layout | None:
    """The layout of a product's result; with ``is_shared`` one matrix is the right factor of all rows."""
    dims = list(zip(out.shape, out.stride(), strict=True))
    matrices = _merged(() if is_shared else dims[:-2])
    rows = _merged(dims[:-1] if is_shared else dims[-2:-1])
    columns = _merged(dims[-1:])
    if matrices is None or rows is None or columns is None or out.storage_offset():
        return None
    return _Layout(matrices, rows, columns)


def _moved(layout: _Layout, source: Any, out: Any) -> _Layout | None:
    """The layout of ``out``, whose elements are those of ``source``, a view of all elements of a known memory."""
    if source.shape != out.shape or source.storage_offset() or out.storage_offset():
        return None
    if source.numel() != layout.elements:
        return None
    axes = []
    for axis in layout:
        dims = [
            (stride, int(length), int(to))
            for length, stride, to in zip(source.shape, source.stride(), out.stride(), strict=True)
            if length > 1 and axis.stride <= stride < axis.stride * axis.size
        ]
        dims.sort(reverse=True)
        to = _merged((length, moved) for _, length, moved in dims)
        if to is None or _merged((length, stride) for stride, length, _ in dims) != axis:
            return None
        axes.append(to)
    return _Layout(*axes)


def _contracted(layout: _Layout, own: Any, other: Any, *, is_left: bool) -> bool | None:
    """Whether a product sums over the columns of what has this layout, or over its rows; None where neither is sure."""
    dims = list(zip(map(int, own.shape), map(int, own.stride()), strict=True))
    if own.dim() < 2 or own.storage_offset():
        return None
    summed, kept = (dims[-1], dims[-2]) if is_left else (dims[-2], dims[-1])
    if summed not in (layout.columns, layout.rows):
        return None
    rest = layout.rows if summed == layout.columns else layout.columns
    batch = dims[:-2]
    is_batch = kept == rest and _merged(batch) == layout.matrices
    is_repeated = kept == rest and layout.matrices.size == 1 and all(stride == 0 for size, stride in batch if size > 1)
    # One factor for the rows of all matrices.
    flat = _Axis(layout.matrices.size * rest.size, rest.stride)
    is_flat = other.dim() < 3 and is_left and _merged([*batch, kept]) == flat
    is_flat = is_flat and layout.matrices.stride in (0, rest.size * rest.stride)
    return summed == layout.columns if is_batch or is_repeated or is_flat else None
