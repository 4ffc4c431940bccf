"""What goes into the ops of one step that makes them slow or useless.

That is subnormal numbers, matrices of zeros, diagonal ones, lengths of Fourier transforms, shapes that broadcast by
mistake, copies of keys for several heads or of rows, products in the slower order, layers before what averages places
or behind what adds some, masked places, targets that a loss ignores, rows that nothing reads or that are multiplied by
zero, parameters in a penalty, and views that are saved.

`ConstantOpLog` hands on the ops of the forward, and to `MaskedPlaceCounts` those of the backward; only those on a CPU
are looked at.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import zip_longest
from math import prod
from typing import Any

import torch

from perfkit._code_owner import USER, function_name
from perfkit._raised_signals import errors_dropped
from perfkit.record.program_values import is_plain, is_tensor, without_modes
from perfkit.record.samplers.call_paths import Path, Site
from perfkit.record.samplers.diagonal_matrices import DiagonalMatrixCounts
from perfkit.record.samplers.dropped_rows import FEW_ROWS, DroppedRowCounts
from perfkit.record.samplers.fft_lengths import FftLengths
from perfkit.record.samplers.ignored_targets import IgnoredTargetCounts
from perfkit.record.samplers.masked_places import MaskedPlaceCounts
from perfkit.record.samplers.op_schemas import tensors_in
from perfkit.record.samplers.product_orders import ProductOrderCounts
from perfkit.record.samplers.repeated_heads import RepeatedHeadCounts
from perfkit.record.samplers.repeated_rows import RepeatedRowCounts
from perfkit.record.samplers.repeated_samples import RepeatedSampleCounts
from perfkit.record.samplers.resize_orders import ResizeOrderCounts
from perfkit.record.samplers.saved_views import SavedViewCounts
from perfkit.record.samplers.sparse_inputs import SparseInputCounts
from perfkit.record.samplers.unread_scores import UnreadScoreCounts
from perfkit.record.samplers.weight_penalties import WeightPenaltyCounts
from perfkit.run.records import DroppedRows, GatedRows, Phase, RepeatedSamples, SubnormalInputs, WideBroadcast

#: Elements of an input that are looked at, evenly spaced: enough to tell a share of 1%.
_SAMPLED = 8_192
#: Inputs of more elements that are not contiguous are not looked at: to choose from them would copy them.
_MAX_COPIED = 1_000_000
#: Products whose inputs are looked at in a step.
_MAX_PRODUCTS = 2_000
_PRODUCTS = frozenset(
    {
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten.bmm.default,
        torch.ops.aten.baddbmm.default,
        torch.ops.aten.convolution.default,
    }
)
#: Of matrices; under inference_mode those that call others are what runs.
_OF_MATRICES = _PRODUCTS - {torch.ops.aten.convolution.default} | {
    torch.ops.aten.linear.default,
    torch.ops.aten.matmul.default,
}
#: Ops of elements whose inputs are looked at too, and elements of each: a state that decays is multiplied in every time
#: step. Of a line's calls the first ones and then one in sixteen are.
_DECAYS = frozenset(getattr(torch.ops.aten, name) for name in ("mul", "add", "sub", "div", "addcmul", "lerp"))
_FEW_SAMPLED, _FIRST, _ONE_IN = 1_024, 8, 16
#: Ends a product of a layer without a bias; its result has the memory of its input, as that of a view.
_VIEW = "_unsafe_view"
#: Ops of two tensors for which losses and metrics are made of a prediction and its target.
_PAIRED = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        *("add", "sub", "rsub", "mul", "div", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"),
        *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits"),
    )
    if hasattr(torch.ops.aten, name)
)
#: Products of two matrices, those that are added to a third, sums of two tensors, and what scales one.
_OF_TWO, _ADDED_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm"), ("addmm", "baddbmm")
_SUMS, _SCALES = ("add", "sub", "rsub"), ("mul", "div", "neg")
#: Rows of fewer elements are not looked at: to leave them out saves little (chosen).
_FEATURES = 8
#: A result this many times as large as each input is made by mistake, if the inputs have as many elements (chosen).
_WIDE = 16


#: Line and op, the shapes of its inputs, and that of its result.
_Pairs = tuple[Site, str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class OpInputs:
    """Looks at the inputs of the ops of one step, by line."""

    def __init__(self) -> None:
        #: Of losses that no library computes.
        self.ignored_targets = IgnoredTargetCounts()
        self._dropped_rows = DroppedRowCounts()
        self._unread_scores = UnreadScoreCounts()
        self.weight_penalties = WeightPenaltyCounts()
        self.sparse_inputs = SparseInputCounts()
        self.diagonal_matrices = DiagonalMatrixCounts()
        self.fft_lengths = FftLengths()
        self.repeated_heads = RepeatedHeadCounts()
        self.repeated_rows = RepeatedRowCounts()
        self._repeated_samples = RepeatedSampleCounts()
        #: Get the named arguments too.
        self.product_orders = ProductOrderCounts()
        self.resize_orders = ResizeOrderCounts()
        self._orders = (self.product_orders, self.resize_orders)
        #: Gets the ops of the backward too.
        self.masked_places = MaskedPlaceCounts()
        #: Hears of both steps what is saved.
        self.saved_views = SavedViewCounts()
        #: Whether what reads a tensor may have been missed.
        self.lost = False
        #: (line, op) -> elements that were looked at, and subnormal ones among them.
        self._looked_at: Counter[tuple[Site, str]] = Counter()
        self._subnormal: Counter[tuple[Site, str]] = Counter()
        self._products = 0
        #: Calls of ops of elements, by line and op.
        self._decays: Counter[tuple[Site, str]] = Counter()
        #: Line -> rows that it multiplies by a factor each, those whose factor is not zero, and calls.
        self._gated: dict[Site, tuple[int, int, int]] = {}
        #: Line -> the addresses of these factors: one that is always the same is a mask, and no gate of an expert.
        self._factors: dict[Site, set[int]] = defaultdict(set)
        #: (line, op, shapes of the inputs, shape of the result) -> calls.
        self._wide: Counter[_Pairs] = Counter()
        #: The address of such a result -> what made it; address and size of products; what is combined with one.
        self._pairs: dict[int, _Pairs] = {}
        self._of_products: set[tuple[int, int]] = set()
        self._meant: set[_Pairs] = set()

    def add(self, func: Any, arguments: Any, out: Any, path: Path, *, in_library: bool) -> None:
        """An op below these lines of the user's, innermost first, has returned ``out`` for these arguments."""
        site = path[0]
        self._look_at_pairs(func, arguments, out)
        if func in _PRODUCTS:
            self._look_for_subnormals(func, arguments, site)
        elif func.overloadpacket in _PAIRED and len(arguments) > 1:
            self._look_at_shapes(func, (arguments[0], arguments[1]), out, site)
        elif not in_library:
            self.ignored_targets.add(func, arguments, site)
        if func.overloadpacket is torch.ops.aten.mul and len(arguments) > 1:
            self._look_at_factors(arguments[0], arguments[1], site)
        if func.overloadpacket in _DECAYS:
            place = site, func.overloadpacket.__name__
            self._decays[place] = calls = self._decays[place] + 1
            if calls <= _FIRST or not calls % _ONE_IN:
                self._look_for_subnormals(func, arguments, site, _FEW_SAMPLED)
        if func in _OF_MATRICES:
            self.sparse_inputs.add(func, arguments, site)
        self.diagonal_matrices.add(func, arguments, site)
        self.fft_lengths.add(func, arguments, site)
        if func.overloadpacket.__name__ != _VIEW:
            self._follow(func, arguments, out, site)
        self.sparse_inputs.follow(func, arguments, out)
        # Last: tensors without memory raise there.
        self.weight_penalties.add(func, arguments, out, site)
        if func.overloadpacket.__name__ != _VIEW:
            of_samples = False
            with errors_dropped():
                of_samples = self._repeated_samples.add(func, arguments, out, path)
            self.repeated_rows.add(func, arguments, out, site, of_samples=of_samples)

    def add_first(self, func: Any, inputs: tuple[Any, Any], out: Any, site: Site, *, in_library: bool) -> None:
        """The same with the named arguments, before `add`."""
        for orders in self._orders:
            orders.add(func, inputs, out, site, in_library=in_library)

    def end_step(self) -> None:
        """The step is over."""
        for orders in self._orders:
            orders.end_step()

    def add_read(self, tensor: Any, site: Site) -> None:
        """Python reads all values of a tensor, as an op does that returns no tensor."""
        for orders in self._orders:
            orders.add_read(tensor)
        self._follow(torch.ops.aten._local_scalar_dense.default, (tensor,), None, site)

    def add_shared(self, tensor: Any) -> None:
        """The memory of a tensor is handed on, on any thread: all of it may be read."""
        self._dropped_rows.add_read(tensor)
        for orders in self._orders:
            orders.add_read(tensor)

    def add_elsewhere(self, func: Any, inputs: tuple[Any, Any], phase: Phase, *, missed: bool) -> None:
        """An op that is not looked at got these arguments; ``missed`` where it may make what others read."""
        for orders in self._orders:
            orders.add_elsewhere(inputs, missed=missed)
        if phase == "backward":
            # It reads rows that nothing picks, as zeros.
            self.masked_places.add_backward(func, inputs[0])
            return
        for tensor in tensors_in(inputs):
            self._dropped_rows.add_read(tensor)

    def add_earlier(self, out: Any) -> None:
        """An op of the step before has returned ``out``."""
        self._dropped_rows.add_earlier(out)

    def _follow(self, func: Any, arguments: Any, out: Any, site: Site) -> None:
        try:
            self._dropped_rows.add(func, arguments, out, site)
            self._unread_scores.add(func, arguments, out, site)
            self.repeated_heads.add(func, arguments, out, site)
        except Exception:
            # A tensor without memory (nested, of another library) may be read here.
            self.lost = True
            raise

    def _look_for_subnormals(self, func: Any, arguments: Any, site: Site, most: int = _SAMPLED) -> None:
        self._products += 1
        if self._products > _MAX_PRODUCTS:
            return
        key = site, f"aten::{func.overloadpacket.__name__}"
        for value in arguments[:3]:
            if is_tensor(value) and value.device.type == "cpu" and value.dtype in (torch.float32, torch.float64):
                looked_at, subnormal = _subnormal_of(value, most)
                self._looked_at[key] += looked_at
                self._subnormal[key] += subnormal

    def _look_at_shapes(self, func: Any, inputs: tuple[Any, Any], out: Any, site: Site) -> None:
        one, other = inputs
        if not (is_tensor(one) and is_tensor(other)) or one.device.type != "cpu" or one.data_ptr() == other.data_ptr():
            return
        shapes = [_own_shape(one), _own_shape(other)]
        wide = _broadcast(one.shape, other.shape)
        own, others = map(prod, shapes)
        if own != others or own < _WIDE or prod(wide) < _WIDE * own:
            return
        # An author who wants all pairs gives both a dimension: (n, 1) and (1, n).
        name = func.overloadpacket.__name__
        is_loss = "loss" in name or "logits" in name
        if _without_ones(shapes[0]) == _without_ones(shapes[1]) and (is_loss or one.dim() != other.dim()):
            made = site, name, shapes[0], shapes[1], wide
            self._wide[made] += 1
            if is_tensor(out):
                self._pairs[int(out.data_ptr())] = made

    def _look_at_pairs(self, func: Any, arguments: Any, out: Any) -> None:
        """All pairs are meant where a product has them too: ``a.square() + b.square() - 2 * a @ b.T``."""
        tensors = [one for one in arguments[:3] if is_plain(one) and one.device.type == "cpu"]
        if not tensors or not is_plain(out) or out.device.type != "cpu":
            return
        name = func.overloadpacket.__name__.rstrip("_")
        products = [one for one in tensors if _memory(one) in self._of_products]
        if name in _ADDED_PRODUCTS or (name in _SUMS and products):
            for one in tensors:
                made = self._pairs.get(int(one.data_ptr()))
                if made is not None and prod(made[-1]) == out.numel() and all(one is not each for each in products):
                    self._meant.add(made)
        if any(out is one for one in tensors):
            return
        # What was there is freed.
        self._pairs.pop(int(out.data_ptr()), None)
        self._of_products.discard(_memory(out))
        scaled = name in _SCALES and products and all(one is products[0] or one.numel() == 1 for one in tensors)
        if name in _OF_TWO or scaled:
            self._of_products.add(_memory(out))

    def _look_at_factors(self, one: Any, other: Any, site: Site) -> None:
        if not (is_tensor(one) and is_tensor(other)) or one.device.type != "cpu" or other.device.type != "cpu":
            return
        factors, rows = sorted((one, other), key=lambda tensor: int(tensor.numel()))
        if not rows.dim() or rows.shape[-1] < _FEATURES or factors.shape != (*rows.shape[:-1], 1):
            return
        if not FEW_ROWS <= factors.numel() <= _MAX_COPIED:
            return
        with without_modes():
            used = int(torch.count_nonzero(factors.detach()))
        before = self._gated.get(site, (0, 0, 0))
        self._gated[site] = before[0] + int(factors.numel()), before[1] + used, before[2] + 1
        self._factors[site].add(int(factors.data_ptr()))

    def gated_rows(self) -> tuple[GatedRows, ...]:
        """The lines that multiply rows by factors some of which are zero."""
        return tuple(
            GatedRows(**_place(site), rows=rows, used=used, calls=calls)
            for site, (rows, used, calls) in self._gated.items()
            if used < rows and (calls == 1 or len(self._factors[site]) > 1)
        )

    def dropped_rows(self) -> tuple[DroppedRows, ...]:
        """The lines that pick some of the rows, or read a part of the scores, that others computed."""
        return (*self._dropped_rows.rows(), *self._unread_scores.rows()) if not self.lost else ()

    def repeated_samples(self) -> tuple[RepeatedSamples, ...]:
        """The layers that get samples several times."""
        return self._repeated_samples.rows(has_others=self.repeated_rows.has_others)

    def subnormal_inputs(self) -> tuple[SubnormalInputs, ...]:
        """The lines whose products have subnormal inputs."""
        return tuple(
            SubnormalInputs(**_place(site), op=op, looked_at=self._looked_at[site, op], subnormal=count)
            for (site, op), count in self._subnormal.items()
            if count
        )

    def wide_broadcasts(self) -> tuple[WideBroadcast, ...]:
        """The lines that combine each element of a tensor with each of another that has as many."""
        return tuple(
            WideBroadcast(**_place(site), op=f"aten::{op}", calls=calls, one=one, other=other, wide=wide)
            for (site, op, one, other, wide), calls in self._wide.items()
            if (site, op, one, other, wide) not in self._meant
        )


def _memory(tensor: Any) -> tuple[int, int]:
    return int(tensor.data_ptr()), int(tensor.numel())


def _subnormal_of(tensor: Any, most: int) -> tuple[int, int]:
    """How many elements were looked at, and how many of those are subnormal."""
    with without_modes():
        values = tensor.detach()
        if not values.is_contiguous():
            if values.numel() > _MAX_COPIED:
                return 0, 0
            values = values.contiguous()
        values = values.view(-1)[:: max(1, values.numel() // most)]
        small = (values != 0) & (values.abs() < torch.finfo(values.dtype).tiny)
        return values.numel(), int(small.sum())


def _own_shape(tensor: Any) -> tuple[int, ...]:
    """The shape without what is only expanded."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(1 if stride == 0 else int(length) for length, stride in pairs)


def _broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of what an op makes of these, which fit together."""
    pairs = zip_longest(reversed(one), reversed(other), fillvalue=1)
    return tuple(int(length if length != 1 else with_it) for length, with_it in pairs)[::-1]


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)


def _place(site: Site) -> dict[str, Any]:
    code, line = site
    return {"file": code.co_filename, "line": line, "function": function_name(code), "owner": USER}
