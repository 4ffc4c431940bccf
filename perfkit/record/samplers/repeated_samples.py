"""Samples that go into a convolution several times, and the layers after it that get the same several times.

`OpInputs` hands on the ops of one step, without views: a tensor is known by the memory that it shares. Each layer's own
input is compared. What stands between two of them computes each sample by itself: where samples are summed or sorted,
nothing is said of what follows. A batch norm in training may stand there where all samples repeat as often, because the
mean and the variance that it divides by are then those of the different ones. An instance norm is one of a single
sample with more channels: nothing is said of what follows it, nor of copies that need a gradient each.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch

from perfkit._code_owner import USER, function_name
from perfkit.record.program_values import is_plain, is_tensor, without_modes
from perfkit.record.samplers.call_paths import Path, Site, calling_site, common_path, location_of
from perfkit.record.samplers.equal_rows import (
    COMPARED,
    PRODUCTS,
    are_equal,
    few_columns,
    first_places,
    numbers_of,
    times_in_blocks,
)
from perfkit.record.samplers.followed_memory import FollowedMemory, needs_gradient
from perfkit.record.samplers.op_paths import is_closed
from perfkit.record.samplers.op_schemas import tensors_in
from perfkit.run.records import RepeatedLayer, RepeatedSamples

_CONVOLUTIONS = ("convolution", *(f"{kind}{dim}d" for kind in ("conv", "conv_transpose") for dim in (1, 2, 3)))
_REPEATS, _JOINS, _GATHERS = ("repeat", "tile", "repeat_interleave"), ("cat", "stack"), ("index", "index_select")
#: They copy a tensor as it is, also one that was expanded.
_CLONES = ("clone", "reshape", "flatten", "contiguous")
_BATCH_NORMS = ("native_batch_norm", "_native_batch_norm_legit", "batch_norm")
#: Ops that may combine samples, or order them anew; ops along a dimension, which is their second argument or the third.
_ACROSS = frozenset(
    {*_GATHERS, "roll", "flip", "sort", "gather", "take", "cdist", "masked_scatter"}
    | {"scatter", "scatter_add", "scatter_reduce", "index_put", "index_add", "index_copy", "index_reduce"}
)
_ALONG = frozenset(
    {"_softmax", "_log_softmax", "softmax", "log_softmax", "cumsum", "cumprod", "logcumsumexp", "sum", "mean", "prod"}
    | {"amax", "amin", "max", "min", "var", "std", "var_mean", "std_mean", "logsumexp", "median", "aminmax"}
    | {"cummax", "cummin"}
)
_ALONG_THIRD = ("norm", "linalg_vector_norm", "topk", "kthvalue")
#: Fewer samples, elements of one, or multiplications are cheap, whatever is in them (chosen).
_SAMPLES, _ELEMENTS, _MULTIPLICATIONS = 8, 64, 1_000_000
#: Elements of layers' inputs that are compared in a step. Beyond these so many of each sample are, up to as many
#: elements again (0.25 s in all were measured).
_MAX_ELEMENTS, _SAMPLED = 10_000_000, 1_024
#: Elements by which samples are compared first.
_FEW_COLUMNS = 64
#: Samples that are sorted in a step, ops between two layers, and first layers (each bounds time and memory; chosen).
_MAX_SAMPLES, _MAX_BETWEEN, _MAX_CHAINS = 100_000, 200, 64

#: What ops are counted by: a line, the shape of the op's first input, and that of its weight or a product's
#: multiplications.
_Kind = tuple[Site, tuple[int, ...], tuple[int, ...] | int]


class _Source(NamedTuple):
    """What copied samples.

    ``rows`` are those of the smaller tensor that they were gathered from, 0 where they were not; ``is_data`` is whether
    no op of the step made that, ``by_library`` whether a library copied them. In as many as ``uncopied`` samples it
    copied within each, as the channels of a grey image, if at all.
    """

    path: Path
    rows: int = 0
    is_data: bool = False
    by_library: bool = False
    uncopied: int = 0


class _State(NamedTuple):
    """What is known of a tensor of the step.

    ``source`` is what copied the samples that it is computed from, ``chain`` the number of the layers that have got
    them so far, ``between`` the numbers of the ops since the last of these. Of what is ``mixed`` nothing is said, and
    ``has_gradients`` is whether each copy has a gradient of its own, which the program gets.
    """

    source: _Source | None = None
    chain: int | None = None
    between: frozenset[int] = frozenset()
    mixed: bool = False
    has_gradients: bool = False


class _Chain:
    """A first layer that gets copies, and those after it."""

    def __init__(self, source: _Source | None, places: Any, needed: int, *, is_even: bool) -> None:
        self.source = source
        #: For each sample, the place of the first one that is equal.
        self.places = places
        self.needed, self.is_even = needed, is_even
        #: Whether what it computes depends on how often each sample stands there.
        self.is_weighted = False
        #: The numbers of its ops, in their order.
        self.ops: dict[int, None] = {}


_UNKNOWN = _State()


class RepeatedSampleCounts:
    """Finds layers that get copies; keeps no tensor of the program's alive."""

    def __init__(self) -> None:
        self._compared = self._sorted = 0
        self._followed = FollowedMemory(_UNKNOWN)
        self._chains: list[_Chain] = []
        self._calls: Counter[_Kind] = Counter()
        #: By the number of an op that may be one of a chain.
        self._ops: list[tuple[_Kind, Path]] = []

    def add(self, func: Any, arguments: Any, out: Any, path: Path) -> bool:
        """An op of a line of the user's has returned ``out``; whether it is a layer that gets copies."""
        name = func.overloadpacket.__name__.removesuffix("_")
        result = out[0] if isinstance(out, tuple) and out else out
        if not is_plain(result) or result.device.type != "cpu" or not result.is_floating_point():
            return False
        tensors = [one for one in tensors_in(arguments) if is_plain(one) and one.is_floating_point()]
        before, kind = self._before(name, arguments, tensors, result), _kind_of(name, arguments, tensors, path[0])
        if kind is not None:
            self._calls[kind] += 1
        is_layer = kind is not None and kind[2] != ()
        source = self._source_of(name, arguments, result, before, path)
        chain = None
        if source is not None:
            after = _State(source, has_gradients=before.has_gradients and _keeps_gradients(before, arguments[0]))
        elif kind is not None and is_layer:
            chain = self._chain_of(name, arguments, result, before, path)
            # What follows a layer that gets other samples, as after a dropout, is not looked at.
            is_end = chain is None and (before.chain is not None or self._is_computed(name, arguments))
            after = before._replace(chain=chain, between=frozenset(), mixed=before.mixed or is_end)
            if chain is not None:
                self._chains[chain].ops |= dict.fromkeys([*sorted(before.between), len(self._ops)])
                self._ops.append((kind, path))
        else:
            after = self._after_other(name, arguments, tensors, result, before)
            if after.chain is not None and kind is not None and not after.mixed:
                after = after._replace(between=after.between | {len(self._ops)})
                self._ops.append((kind, path))
        if len(after.between) > _MAX_BETWEEN:
            after = _State(mixed=True)
        self._followed.set(result, after)
        self._followed.add_made(result)
        return chain is not None

    def _before(self, name: str, arguments: Any, tensors: list[Any], out: Any) -> _State:
        """What is known of the result of an op with these inputs, if it computes each sample by itself."""
        known = _together([state for one in tensors if (state := self._followed.of(one)) != _UNKNOWN])
        if name in _CONVOLUTIONS or name in PRODUCTS:
            value = arguments[PRODUCTS.get(name, 0)]
            return known._replace(has_gradients=self._followed.of(value).has_gradients or needs_gradient(value))
        is_copied = known.source is not None or known.chain is not None
        needs = known.has_gradients or any(needs_gradient(one, out, is_copied=is_copied) for one in tensors)
        return known._replace(has_gradients=needs)

    def _source_of(self, name: str, arguments: Any, out: Any, before: _State, path: Path) -> _Source | None:
        """What the op is known for where it copies samples."""
        value: Any = arguments[0] if arguments else None
        if name in _JOINS:
            dim = int(arguments[1]) if len(arguments) > 1 else 0
            places = {(int(one.data_ptr()), tuple(one.shape)) for one in value}
            is_copy = len(value) > 1 and len(places) == 1 and dim == 0
            return _Source(path, by_library=is_closed()) if is_copy else None
        if not is_tensor(value) or not value.dim() or out.dim() < 2:
            return None
        # Copies within each sample, as of a grey channel, are not told from those of samples that are flattened later.
        grown = out.shape[0] > value.shape[0] or (name in _CLONES and value.stride(0) == 0 and value.shape[0] > 1)
        if name in _REPEATS:
            is_copy = grown or out.dim() > value.dim()
        elif name in _CLONES:
            is_inner = value.dim() > 2 and value.stride(1) == 0 and value.shape[1] > 1
            is_copy = grown or (is_inner and before._replace(has_gradients=False) == _UNKNOWN)
        elif name in _GATHERS and out.numel() >= 2 * value.numel() and (name == "index" or arguments[1] == 0):
            return _Source(path, int(value.shape[0]), not self._followed.is_made(value), by_library=is_closed())
        else:
            return None
        uncopied = 0 if grown else int(value.shape[0])
        return _Source(path, by_library=is_closed(), uncopied=uncopied) if is_copy else None

    def _after_other(self, name: str, arguments: Any, tensors: list[Any], out: Any, before: _State) -> _State:
        """What is known of the result of an op that is no layer."""
        if before.chain is None or before.mixed:
            return before
        chain = self._chains[before.chain]
        of_chain = [one for one in tensors if self._followed.of(one).chain is not None]
        is_apart = all(one.dim() and one.shape[0] % len(chain.places) == 0 for one in (*of_chain, out))
        if name in _ACROSS or _is_along_samples(name, arguments) or not is_apart:
            return _State(mixed=True)
        if name in _BATCH_NORMS and not chain.is_even and _is_training(arguments):
            chain.is_weighted = True
        return before

    def _chain_of(self, name: str, arguments: Any, out: Any, before: _State, path: Path) -> int | None:
        """The number of the layers that a layer belongs to; None where it gets different samples."""
        value, source = arguments[PRODUCTS.get(name, 0)], before.source
        if before.mixed or before.has_gradients or value.dtype not in COMPARED or not value.numel():
            return None
        if self._is_computed(name, arguments):
            return None
        is_convolution = name in _CONVOLUTIONS
        if before.chain is None and not is_convolution:
            return None
        if source is not None and before.chain is None and value.shape[0] <= source.uncopied:
            source = None
        if is_closed() and (source is None or (source.by_library and source.path == path)):
            return None
        with without_modes():
            if before.chain is not None and self._are_those_of(self._chains[before.chain], value):
                return before.chain
            return self._first_of(name, arguments, out, source) if is_convolution else None

    def _is_computed(self, name: str, arguments: Any) -> bool:
        """Whether a layer's weight is computed from samples."""
        state = self._followed.of(arguments[PRODUCTS.get(name, 0) + 1])
        return state._replace(has_gradients=False) != _UNKNOWN

    def _are_those_of(self, chain: _Chain, value: Any) -> bool:
        """Whether the samples repeat as those of the first layer do."""
        samples = len(chain.places)
        if value.shape[0] % samples:
            return False
        matrix = self._compared_part(_matrix(value, samples))
        return matrix is not None and are_equal(matrix, chain.places)

    def _compared_part(self, matrix: Any) -> Any:
        """The columns that are compared; None where a step has compared enough."""
        if matrix is not None and self._compared + matrix.numel() > _MAX_ELEMENTS:
            matrix = few_columns(matrix, _SAMPLED)
        if matrix is None or self._compared + matrix.numel() > 2 * _MAX_ELEMENTS:
            return None
        self._compared += int(matrix.numel())
        return matrix

    def _first_of(self, name: str, arguments: Any, out: Any, source: _Source | None) -> int | None:
        """The number of the chain that a convolution begins, or of one that gets the same copies."""
        value, weight = arguments[:2]
        samples = int(value.shape[0])
        is_transposed = "transpose" in name or (name == "convolution" and bool(arguments[6]))
        multiplications = int((value if is_transposed else out).numel()) * int(weight[0].numel())
        if samples < _SAMPLES or value.numel() < samples * _ELEMENTS or multiplications < _MULTIPLICATIONS:
            return None
        matrix = _matrix(value, samples)
        self._sorted += samples
        if matrix is None or self._sorted > _MAX_SAMPLES:
            return None
        places, different = first_places(numbers_of(few_columns(matrix, _FEW_COLUMNS)))
        matrix = self._compared_part(matrix) if 2 * different <= samples else None
        if matrix is None:
            return None
        if not are_equal(matrix, places):
            # These columns are equal in all, as borders are, or there are NaNs.
            places, different = first_places(numbers_of(matrix))
            if 2 * different > samples or not are_equal(matrix, places):
                return None
        for at, chain in enumerate(self._chains):
            if chain.source == source and torch.equal(chain.places, places):
                return at
        made = _chain(matrix, places, source) if len(self._chains) < _MAX_CHAINS else None
        if made is None:
            return None
        self._chains.append(made)
        return len(self._chains) - 1

    def rows(self, *, has_others: bool) -> tuple[RepeatedSamples, ...]:
        """The first layers of the step; ``has_others`` is whether another layer got different rows.

        Where the copies are not known to be made in the step and it has no others, its batch is dummy data.
        """
        found: dict[tuple[Any, int, int], tuple[_Source | None, dict[int, None]]] = {}
        for chain in self._chains:
            if chain.is_weighted or (chain.source is None and not has_others):
                continue
            place = chain.source.path if chain.source is not None else self._ops[next(iter(chain.ops))][1]
            found.setdefault((place, len(chain.places), chain.needed), (chain.source, {}))[1].update(chain.ops)
        return tuple(self._row(source, ops, *sizes) for (_, *sizes), (source, ops) in found.items())

    def _row(self, source: _Source | None, ops: dict[int, None], samples: int, needed: int) -> RepeatedSamples:
        paths: dict[_Kind, Path] = {}
        repeated: Counter[_Kind] = Counter()
        for kind, path in (self._ops[at] for at in ops):
            paths.setdefault(kind, path)
            repeated[kind] += 1
        copied = source.path if source is not None else common_path(list(paths.values()))
        layers = tuple(
            RepeatedLayer(
                **_place(site), shape="x".join(map(str, shape)) if not isinstance(weight, int) else "",
                weight="x".join(map(str, weight)) if not isinstance(weight, int) else "",
                flops=2 * weight if isinstance(weight, int) else 0,
                calls=self._calls[kind], repeated=repeated[kind],
                called_at=location_of(calling_site(paths[kind], copied)),
            )
            for kind in repeated
            for site, shape, weight in [kind]
        )  # fmt: skip
        at = self._ops[next(iter(ops))][1][0]
        copied_at = location_of(source.path[0]) if source is not None else None
        return RepeatedSamples(**_place(at), samples=samples, needed=needed, copied_at=copied_at, layers=layers)


def _together(states: list[_State]) -> _State:
    """What is known of what is computed from tensors with these states."""
    if len(states) < 2:
        return states[0] if states else _UNKNOWN
    chains = {state.chain for state in states if state.chain is not None}
    return _State(
        next((state.source for state in states if state.source is not None), None),
        min(chains, default=None),
        frozenset().union(*(state.between for state in states)),
        len(chains) > 1 or any(state.mixed for state in states),
        any(state.has_gradients for state in states),
    )


def _keeps_gradients(before: _State, value: Any) -> bool:
    """Whether what is copied are copies already, whose gradients are not to be summed; other gradients always are."""
    if before.source is not None or before.chain is not None:
        return True
    is_expanded = is_tensor(value) and any(
        stride == 0 and length > 1 for length, stride in zip(value.shape, value.stride(), strict=True)
    )
    return is_expanded and needs_gradient(value)


def _kind_of(name: str, arguments: Any, tensors: list[Any], site: Site) -> _Kind | None:
    """By what an op is counted; None for one that gets no tensor of samples, and for a product that is no layer."""
    if name not in _CONVOLUTIONS and name not in PRODUCTS:
        return (site, tuple(tensors[0].shape), ()) if tensors else None
    place = PRODUCTS.get(name, 0)
    value, weight = arguments[place : place + 2]
    if not is_plain(value) or not is_plain(weight) or not value.is_floating_point():
        return None
    if name in _CONVOLUTIONS:
        return (site, tuple(value.shape), tuple(weight.shape)) if value.dim() == weight.dim() else None
    return (site, tuple(value.shape), int(value.numel() * _results(name, weight))) if weight.dim() == 2 else None


def _is_along_samples(name: str, arguments: Any) -> bool:
    """Whether an op of several elements reads those of different samples."""
    if (name not in _ALONG and name not in _ALONG_THIRD) or not arguments or not is_tensor(arguments[0]):
        return False
    at = 2 if name in _ALONG_THIRD else 1
    dims = arguments[at] if len(arguments) > at else None
    dims = [dims] if isinstance(dims, int) else dims
    return not isinstance(dims, (list, tuple)) or not dims or 0 in [dim % arguments[0].dim() for dim in dims]


def _is_training(arguments: Any) -> bool:
    """Whether a batch norm with these arguments divides by the deviations of its input."""
    return next((one for one in arguments if isinstance(one, bool)), False)


def _results(name: str, weight: Any) -> int:
    return int(weight.shape[0 if name == "linear" else 1])


def _matrix(tensor: Any, samples: int) -> Any:
    """The tensor with a row for each sample, in the order of its memory; None where it is not one block."""
    values = tensor.detach()
    values = values.permute(0, *sorted(range(1, values.dim()), key=lambda dim: -values.stride(dim)))
    return values.reshape(samples, -1) if values.is_contiguous() else None


def _chain(matrix: Any, places: Any, source: _Source | None) -> _Chain | None:
    """The chain that begins with these samples; None where they may be equal by chance."""
    needed, times = torch.unique(places, return_counts=True)
    # Constant samples are padding, or pictures of nothing.
    varies = torch.cat([(rows != rows[:, :1]).any(1) for rows in matrix[needed].split(64)])
    if int(varies.sum()) < 2 or 2 * int(varies.sum()) > int(times[varies].sum()):
        return None
    is_even = bool((times == times[0]).all())
    if is_even and times_in_blocks(places) == times[0]:
        return _Chain(source, places, len(needed), is_even=True)
    if source is not None and source.rows and not source.is_data and len(needed) <= source.rows <= len(places) // 2:
        return _Chain(source, places, source.rows, is_even=is_even and len(needed) == source.rows)
    return None


def _place(site: Site) -> dict[str, Any]:
    code, line = site
    return {"file": code.co_filename, "line": line, "function": function_name(code), "owner": USER}
