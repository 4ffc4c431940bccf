"""limits.json: what the machine of a rank could do, measured once per machine by `perfkit.limits.measuring`."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, get_args

import msgspec

from perfkit.run.records.version import SCHEMA

#: What an op does with memory: reads much and writes little, reads one tensor and writes another, or writes over what
#: it has read. Writing elsewhere is slowest: a cache fetches a line before it is written, which no count of bytes has.
Access = Literal["read", "copy", "update"]
#: Functions of an element that take more time than moving it.
Function = Literal["exp", "log", "tanh", "erf", "pow", "sqrt", "bernoulli", "normal"]
#: Layers that torch computes in one op of its own, at a rate that neither products nor moving memory tell.
Layer = Literal[
    "attention", "softmax", "batch norm", "max pool", "max pool gradient", "average pool", "nearest", "bilinear"
]
#: What limits an op: a product, a convolution, moving memory, a function of each element, or a layer of its own.
OpKind = Literal["matmul", "convolution", Access, Function, Layer]

ACCESSES: tuple[Access, ...] = get_args(Access)
FUNCTIONS: tuple[Function, ...] = get_args(Function)
LAYERS: tuple[Layer, ...] = get_args(Layer)
#: FLOPs that are counted for a function of one element (`perfkit.measures.ops`).
FUNCTION_FLOPS = 10
#: The ops that show how fast the machine is during a run (`perfkit.record.watchers.machine_speed`): length of square
#: matrices, and float32 elements that are copied, and given to a function. Their rates are in the tables of limits.
PROBED_PRODUCT, PROBED_COPY, PROBED_FUNCTION = 128, 2**18, 2**18


class Rate(msgspec.Struct, frozen=True, array_like=True):
    """What ops of one size reached per second.

    ``size`` and ``per_s`` are in the same unit: FLOPs of one op, or bytes that it reads and writes.
    """

    size: Annotated[int, msgspec.Meta(gt=0)]
    per_s: Annotated[float, msgspec.Meta(gt=0)]


Rates = tuple[Rate, ...]


class CallOverhead(msgspec.Struct, frozen=True, array_like=True):
    """What a call costs where ops touch ``size`` bytes of memory between it and the call before it."""

    size: Annotated[int, msgspec.Meta(gt=0)]
    ns: Annotated[float, msgspec.Meta(ge=0)]


CallOverheads = tuple[CallOverhead, ...]


def _least_each(first: dict[str, CallOverheads], second: dict[str, CallOverheads]) -> dict[str, CallOverheads]:
    """The lower one at each size of two measurements."""
    lowest: dict[str, dict[int, float]] = {}
    for name, rows in (*first.items(), *second.items()):
        of = lowest.setdefault(name, {})
        of.update({row.size: min(row.ns, of.get(row.size, row.ns)) for row in rows})
    return {name: tuple(CallOverhead(size, of[size]) for size in sorted(of)) for name, of in lowest.items()}


def _best(first: Rates, second: Rates) -> Rates:
    """The higher rate at each size: other programs only ever make a measurement slower."""
    rates = {rate.size: rate for rate in first}
    for rate in second:
        known = rates.get(rate.size)
        rates[rate.size] = rate if known is None or rate.per_s > known.per_s else known
    return tuple(rates[size] for size in sorted(rates))


def _best_each(first: dict[str, Rates], second: dict[str, Rates]) -> dict[str, Rates]:
    return {name: _best(first.get(name, ()), second.get(name, ())) for name in first | second}


class MachineLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the ops of one torch reach on one machine with one number of threads, each the best of many repeats.

    Rates are tables by size, smallest first: small ops reach less, and what fits into a cache moves faster. They are
    without the overhead of the op, which is `op_ns`.

    Attributes:
        method: Version of how this was measured; others are not comparable.
        measured_at_ns: When, as unix time.
        disturbed: Whether other programs interrupted each repeat of some measurement: that rate may be too low.
        products: FLOP/s of ``torch.mm`` of two square matrices, by precision.
        convolutions: FLOP/s of ``conv2d`` with 3x3 kernels, by precision; the faster of the two memory formats.
        depths: FLOP/s of convolutions by their depth, by precision: the faster of the two memory formats, and of the
            convolution and the gradient of its weight. The size is the depth, not FLOPs.
        functions: FLOP/s of functions of float32 elements, each counted as `FUNCTION_FLOPS`.
        layers: FLOP/s of layers in float32, as `perfkit.measures.ops` counts their FLOPs; of images the faster of the
            two memory formats.
        bandwidth: Bytes/s, read and written, by access: sums (read), the faster of copying and a comparison with zero
            (copy), an addition in place (update). The size is what one op moves; repeated calls find it in the
            smallest cache that holds it.
        op_ns: Time of an op on one element, in place: Python's call, dispatch and the loop's set-up.
        node_ns: Time that autograd adds for one node of the backward, beyond the ops in it.
        overheads: What starting an op costs by the memory that ops touch between two calls, which takes the caches from
            torch and Python: an op ("op"), Python's part in a call of one ("call"), and an op or a node of the backward
            that torch itself calls ("inner").
        subnormals: How many times as long a product, or multiplications, take if a tenth of their input is subnormal
            numbers: the larger of both; 0: not known.
        speed: The share (0 to 1) of these rates that the machine had in a run, by products; 1 as they were measured.
    """

    AVAILABLE_FROM: ClassVar[str] = "a run on a CPU, or perfkit doctor on the machine of the run"

    schema: int = SCHEMA
    method: int
    host: str
    cpu: str
    torch: str
    threads: int
    measured_at_ns: Annotated[int, max]
    disturbed: Annotated[bool, bool.__and__]
    products: Annotated[dict[str, Rates], _best_each]
    convolutions: Annotated[dict[str, Rates], _best_each]
    depths: Annotated[dict[str, Rates], _best_each] = {}
    functions: Annotated[dict[str, Rates], _best_each]
    layers: Annotated[dict[str, Rates], _best_each] = {}
    bandwidth: Annotated[dict[str, Rates], _best_each]
    op_ns: Annotated[int, min]
    node_ns: Annotated[int, min]
    overheads: Annotated[dict[str, CallOverheads], _least_each] = {}
    subnormals: Annotated[float, min] = 0.0
    speed: Annotated[float, max] = 1.0

    def during(self, settings: Mapping[str, str]) -> MachineLimits:
        """What the machine could do during a run: its limits, slowed as much as ops of known limits were in it.

        ``settings`` are those of a rank. A run without such times, or a machine that was faster, has the limits as they
        are. Layers but attention are as much slower as functions are.
        """
        product, copy, function, op = (
            _slowed(limit_ns, settings.get(name, ""))
            for name, limit_ns in (
                ("speed.product_ns", self.op_limit_ns(2 * PROBED_PRODUCT**3, 0, "float32", "matmul")),
                ("speed.copy_ns", self.op_limit_ns(0, 2 * 4 * PROBED_COPY, "float32", "copy")),
                ("speed.exp_ns", self.op_limit_ns(FUNCTION_FLOPS * PROBED_FUNCTION, 0, "float32", "exp")),
                ("speed.op_ns", self.op_ns),
            )
        )
        layers = {
            name: _scaled(rates, product if name == "attention" else function) for name, rates in self.layers.items()
        }
        return msgspec.structs.replace(
            self,
            products=_each_scaled(self.products, product),
            convolutions=_each_scaled(self.convolutions, product),
            depths=_each_scaled(self.depths, product),
            functions=_each_scaled(self.functions, function),
            layers=layers,
            bandwidth=_each_scaled(self.bandwidth, copy),
            op_ns=round(self.op_ns / op),
            node_ns=round(self.node_ns / op),
            overheads={
                name: tuple(CallOverhead(row.size, row.ns / op) for row in rows)
                for name, rows in self.overheads.items()
            },
            speed=product,
        )

    def overhead_ns(self, name: Literal["op", "call", "inner"], touched: float) -> float:
        """What starting an op costs where ops touch this many bytes between two calls; see `overheads`.

        Between two sizes it follows the logarithm of the size. Where it was not measured, an op costs `op_ns`.
        """
        rows = self.overheads.get(name, ())
        if not rows:
            return self.op_ns if name != "call" else 0.0
        sizes, costs = zip(*((math.log(row.size), row.ns) for row in rows), strict=True)
        return _between(math.log(max(1.0, touched)), sizes, costs)

    def op_limit_ns(
        self, flops: int, bytes_moved: int, precision: str, kind: OpKind = "update", depth: int | None = None
    ) -> int:
        """The minimum time of one op on this machine: computing or moving memory, whichever takes longer, and `op_ns`.

        Args:
            flops: Floating point operations of the op.
            bytes_moved: Bytes of the tensors that it reads and writes, each counted once.
            precision: "float32", "float64", "bfloat16" or "float16"; others have no rate and count by bytes alone.
            kind: What the op does. Arithmetic per element counts by bytes alone: moving an element takes longer.
            depth: Of a convolution how many products each output sums, or the gradient of each input, whichever are
                fewer: with few channels no kernel keeps a processor's vectors full. None: not known, no limit.

        The data is assumed to be in the smallest cache that holds all of it, as after an op that wrote it just before.
        """
        compute_ns = self._compute_ns(flops, precision, kind)
        if depth is not None and (rates := self.depths.get(precision)):
            compute_ns = max(compute_ns, flops / _rate(depth, rates) * 1e9)
        return round(max(compute_ns, self._memory_ns(bytes_moved, kind))) + self.op_ns

    def _compute_ns(self, flops: int, precision: str, kind: OpKind) -> float:
        if kind in LAYERS:
            if precision == "float32" and (rates := self.layers.get(kind)):
                return _time_ns(flops, rates)
            kind = _MAIN_PART.get(kind, kind)
        if kind in FUNCTIONS:
            # A vector holds half as many elements in double precision; half precision is computed in single.
            factor = 2 if precision == "float64" else 1
            return _time_ns(factor * flops, self.functions.get(kind, ()))
        if kind == "convolution":
            # Where convolutions of this precision were not measured, they are products at best.
            return _time_ns(flops, self.convolutions.get(precision) or self.products.get(precision, ()))
        return _time_ns(flops, self.products.get(precision, ())) if kind == "matmul" else 0.0

    def _memory_ns(self, bytes_moved: int, kind: OpKind) -> float:
        if kind in ACCESSES:
            return _time_ns(bytes_moved, self.bandwidth.get(kind, ()))
        # Others mix accesses: the fastest, so that the limit stays one.
        return min((_time_ns(bytes_moved, rates) for rates in self.bandwidth.values()), default=0.0)


#: What most of a layer is, where its own rate is not known.
_MAIN_PART: dict[OpKind, OpKind] = {"attention": "matmul", "softmax": "exp"}


def _slowed(limit_ns: int, measured: str) -> float:
    """The share (0 to 1) of its speed that the machine had, by an op that takes ``limit_ns`` at best."""
    return min(1.0, limit_ns / max(1, int(measured))) if measured.isdecimal() and limit_ns > 0 else 1.0


def _scaled(rates: Rates, share: float) -> Rates:
    return tuple(Rate(rate.size, rate.per_s * share) for rate in rates)


def _each_scaled(table: dict[str, Rates], share: float) -> dict[str, Rates]:
    return {name: _scaled(rates, share) for name, rates in table.items()}


def _time_ns(size: int, rates: Rates) -> float:
    """The time of an op of this size, by the rates of the sizes next to it; 0 without rates."""
    return size / _rate(size, rates) * 1e9 if rates and size > 0 else 0.0


def _rate(size: int, rates: Rates) -> float:
    """The rate at a size: between two sizes by the logarithm of the size, outside of the table that of its end."""
    sizes, found = zip(*((math.log(rate.size), rate.per_s) for rate in rates), strict=True)
    return _between(math.log(size), sizes, found)


def _between(size: float, sizes: Sequence[float], values: Sequence[float]) -> float:
    """The value at a size, from those at two sizes next to it; outside of them that of the end."""
    above = bisect.bisect_left(sizes, size)
    if above == 0 or above == len(sizes):
        return values[min(above, len(sizes) - 1)]
    share = (size - sizes[above - 1]) / (sizes[above] - sizes[above - 1])
    return values[above - 1] + share * (values[above] - values[above - 1])
