"""The minimum that an op must compute and move, from the shapes and types of its arguments.

FLOPs count a multiplication and an addition as two. Bytes are those of the tensors read once and written once, without
what caches save and padding adds. Reductions and pooling write little, which is left out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from perfkit.measures.ops._op_arguments import MAX_SIZE, SIZES, Arguments, Tensor

PRECISIONS = {
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "float": "float32",
    "double": "float64",
    **dict.fromkeys((name for name in SIZES if "Float8" in name), "float8"),
}


class OpWork(NamedTuple):
    """FLOPs and bytes of one call, in the precision of its first tensor; ``certain`` is False where one was assumed.

    ``depth`` is that of a convolution: how many products each of its outputs sums, or the gradient of each of its
    inputs, whichever are fewer.
    """

    flops: int
    bytes: int
    precision: str
    certain: bool = True
    depth: int | None = None


def work_of(name: str, dims: Any, types: Any, concrete: Any) -> OpWork | None:
    """FLOPs and bytes of a call from ``Input Dims``, ``Input type`` and ``Concrete Inputs``.

    None for an op that is not known here, and where the arguments are not enough (a convolution needs its
    stride, which traces before torch 2.1 lack).
    """
    formula = FORMULAS.get(name)
    if formula is None or not isinstance(dims, list) or not isinstance(types, list):
        return None
    try:
        arguments = Arguments(name, dims, types, concrete)
        flops, moved = formula(arguments)
        first = arguments.tensors[0]
        depth = _depth(arguments, *CONVOLUTIONS[name]) if name in CONVOLUTIONS else None
    except (ArithmeticError, AttributeError, IndexError, ValueError, TypeError, RecursionError):
        return None  # arguments that do not fit the op: another version of it, or a damaged trace
    if max(flops, moved) >= MAX_SIZE:
        return None
    return OpWork(flops, moved, PRECISIONS.get(first.dtype, first.dtype), not arguments.has_lists, depth)


Formula = Callable[[Arguments], tuple[int, int]]


# -- matrix products ---------------------------------------------------------------------------------------


def _product(first: int) -> Formula:
    """A product of the matrices (or batches of them) at ``first`` and after it, and a tensor added before them."""

    def formula(given: Arguments) -> tuple[int, int]:
        *batch, m, k = given[first].shape
        *_, n = given[first + 1].shape
        out = math.prod(batch) * m * n
        added = given[0].bytes if first else 0
        moved = given[first].bytes + given[first + 1].bytes + added + out * max(2, SIZES[given[first].dtype])
        return 2 * out * k, moved

    return formula


# -- convolutions ------------------------------------------------------------------------------------------


def _convolution(padding: int, stride: int, dilation: int, groups: int, transposed: int | None = None) -> Formula:
    """A convolution whose settings are the arguments at these places."""

    def formula(given: Arguments) -> tuple[int, int]:
        source, weight = given[0], given[1]
        batch, _, *size = source.shape
        first, second, *kernel = weight.shape
        if transposed is not None and given.is_true(transposed):
            # Every input element meets every weight of its group's outputs.
            flops = 2 * source.elements * second * math.prod(kernel)
            steps = _spread(given.ints(stride), len(size))
            out = (
                batch * second * int(given.values[groups]) * math.prod(a * b for a, b in zip(size, steps, strict=True))
            )
            return flops, source.bytes + weight.bytes + out * SIZES[source.dtype]
        around, steps, spread = (_spread(given.ints(place), len(size)) for place in (padding, stride, dilation))
        produced = [
            (length + 2 * pad - step_over * (width - 1) - 1) // step + 1
            for length, pad, step, step_over, width in zip(size, around, steps, spread, kernel, strict=True)
        ]
        out = batch * first * math.prod(produced)
        return 2 * out * second * math.prod(kernel), source.bytes + weight.bytes + out * SIZES[source.dtype]

    return formula


def _spread(values: list[int], dimensions: int) -> list[int]:
    """One number per dimension; a single one is for all of them."""
    return values * dimensions if len(values) == 1 else values


def _convolution_backward(given: Arguments) -> tuple[int, int]:
    grad, source, weight = given[0], given[1], given[2]
    # What each element of the smaller-channelled side costs is the same in all three directions.
    larger = source if given.is_true(7) else grad
    once = 2 * larger.elements * math.prod(weight.shape[1:])
    wanted = json.loads(given.values[10].lower())
    of_source, of_weight = bool(wanted[0]), bool(wanted[1])
    moved = (of_source + of_weight) * grad.bytes
    moved += of_source * (weight.bytes + source.bytes) + of_weight * (source.bytes + weight.bytes)
    return once * (of_source + of_weight), moved


def _depth(given: Arguments, weight: int, groups: int) -> int:
    """See `OpWork.depth`: a weight has the channels of one side first, those of the other in one group next."""
    first, second, *kernel = given[weight].shape
    return max(1, min(first // int(given.values[groups]), second)) * math.prod(kernel)


# -- recurrent layers --------------------------------------------------------------------------------------


def _recurrent(times: int) -> Formula:
    """A layer that multiplies each step of each sample by all its weights; the backward does ``times=2`` products."""

    def formula(given: Arguments) -> tuple[int, int]:
        source = given[0]
        weights = [tensor for tensor in given.tensors[1:5] if len(tensor.shape) == 2 and tensor.elements]
        rows = source.elements // source.shape[-1]
        # Its output is as wide as the weights of the state are deep.
        out = rows * weights[1].shape[1] * SIZES[source.dtype]
        return times * 2 * rows * sum(each.elements for each in weights), times * (
            source.bytes + out + sum(each.bytes for each in weights)
        )

    return formula


# -- attention ---------------------------------------------------------------------------------------------


def _attention(causal: int, *, backward: bool = False) -> Formula:
    """Scaled dot-product attention over (batch, heads, length, width), its flag for the causal mask at ``causal``.

    The backward does five products where the forward does two: it computes the scores again.
    """

    def formula(given: Arguments) -> tuple[int, int]:
        query, key, value = given.tensors[1:4] if backward else given.tensors[:3]
        batch, heads, queries, width = query.shape
        keys, width_out = value.shape[-2:]
        products = batch * heads * queries * keys
        halves = given.is_true(causal) and queries == keys
        flops = products * (2 * width + 2 * width_out)
        out = batch * heads * queries * width_out * SIZES[query.dtype]
        moved = query.bytes + key.bytes + value.bytes + out
        if backward:
            flops = products * (6 * width + 4 * width_out)
            moved *= 2
        return flops // 2 if halves else flops, moved

    return formula


# -- element by element ------------------------------------------------------------------------------------


def _elementwise(flops: int, *, writes: int = 1, reads_first: bool = True, out_bytes: int | None = None) -> Formula:
    """``flops`` for each element of the result, which is as large as the arguments broadcast.

    ``writes=0`` is for a result that is small compared with what is read, as a reduction's.
    """

    def formula(given: Arguments) -> tuple[int, int]:
        tensors = given.tensors
        elements = _broadcast([tensor.shape for tensor in tensors])
        read = sum(tensor.bytes for tensor in tensors[0 if reads_first else 1 :])
        return flops * elements, read + elements * (out_bytes or SIZES[tensors[0].dtype]) * writes

    return formula


def _broadcast(shapes: list[tuple[int, ...]]) -> int:
    """Elements of the shape that these broadcast to."""
    rank = max(len(shape) for shape in shapes)
    full = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return math.prod(max(lengths) for lengths in zip(*full, strict=True))


def _normalization(given: Arguments) -> tuple[int, int]:
    """Means, deviations and a result as large as the first tensor; the others are per channel, or as large."""
    return 10 * given[0].elements, sum(tensor.bytes for tensor in given.tensors) + given[0].bytes


def _lists(flops: int, *, writes: int, reads: int | None = None, reads_first: bool = True) -> Formula:
    """The same over lists of tensors: the first ``reads`` lists (all, by default) are read, ``writes`` are written."""

    def formula(given: Arguments) -> tuple[int, int]:
        lists = [place for place in given.places if place][:reads]
        elements = sum(tensor.elements for tensor in lists[0])
        size = sum(tensor.bytes for tensor in lists[0])
        read = sum(tensor.bytes for one in lists[0 if reads_first else 1 :] for tensor in one)
        return flops * elements, read + writes * size

    return formula


def _embedding(given: Arguments) -> tuple[int, int]:
    """Rows of a table, one for each index: read there and written to the result."""
    return _selected(given[0], 0, given[1])


def _index_select(given: Arguments) -> tuple[int, int]:
    return _selected(given[0], int(given.values[1]), given[2])


def _selected(source: Tensor, dimension: int, indices: Tensor) -> tuple[int, int]:
    width = source.elements // source.shape[dimension]
    return 0, indices.bytes + 2 * indices.elements * width * SIZES[source.dtype]


def _embedding_gradient(given: Arguments) -> tuple[int, int]:
    """A gradient as long as the table, zero but for the rows that were looked up."""
    gradient, indices = given[0], given[1]
    table = int(given.values[2]) * gradient.shape[-1] * SIZES[gradient.dtype]
    return gradient.elements, gradient.bytes + indices.bytes + table


def _gathered(given: Arguments) -> tuple[int, int]:
    """One element for each index, along a dimension."""
    source, indices = given[0], given[2]
    return 0, indices.bytes + 2 * indices.elements * SIZES[source.dtype]


def _gradient_like(source: int) -> Formula:
    """The gradient of the tensor at ``source``, from the first tensor, which is small."""

    def formula(given: Arguments) -> tuple[int, int]:
        return given[source].elements, given[0].bytes + given[source].bytes

    return formula


def _resized(sizes: int) -> Formula:
    """Images resized to the size in the second argument, or where that is empty by the factors at ``sizes``."""

    def formula(given: Arguments) -> tuple[int, int]:
        images = given[0]
        samples, channels, *size = images.shape
        lengths: list[float] = json.loads(given.values[1] or "[]")
        if not lengths:
            factors = json.loads(re.sub(r"\.(?=[,\]])", ".0", given.values[sizes]))
            lengths = [math.floor(length * factor) for length, factor in zip(size, factors, strict=True)]
        out = samples * channels * math.prod(int(length) for length in lengths)
        return out, images.bytes + out * SIZES[images.dtype]

    return formula


def _resized_gradient(given: Arguments) -> tuple[int, int]:
    """The gradient of resized images, from that of the result, to the size in the third argument."""
    return given[0].elements, given[0].bytes + math.prod(given.ints(2)) * SIZES[given[0].dtype]


def _one_per_sample(given: Arguments) -> tuple[int, int]:
    """One element of each row of the first tensor, by the index in the second."""
    return given[1].elements, given[1].elements * SIZES[given[0].dtype] + given[1].bytes


def _concatenated(given: Arguments) -> tuple[int, int]:
    return 0, 2 * sum(tensor.bytes for tensor in given.tensors)


# FLOPs per element are estimates. They only have to be small: with at least 2 bytes read and 2 written, 10 of them
# make 2.5 FLOP per byte, and the lowest ridge of a device in the table is 7 (float64 of a V100).
_ARITHMETIC = _elementwise(1)
_FUNCTION = _elementwise(10)
_COMPARISON = _elementwise(1, out_bytes=1)
_REDUCTION = _elementwise(1, writes=0)
_WRITE = _elementwise(0, reads_first=False)
_RANDOM = _elementwise(10, reads_first=False)


def _named(formula: Formula, names: str) -> dict[str, Formula]:
    return {f"aten::{name}": formula for name in names.split()}


#: Ops that exist in place too (with ``_`` at the end): the result is then written over the first argument.
_POINTWISE = {
    **_named(_ARITHMETIC, "add sub rsub mul div neg abs reciprocal clamp clamp_min clamp_max relu where masked_fill"),
    **_named(_ARITHMETIC, "addcmul addcdiv lerp maximum minimum cumsum"),
    **_named(_FUNCTION, "exp log log1p sqrt rsqrt pow sin cos erf sigmoid tanh silu gelu elu leaky_relu softplus"),
    **_named(_COMPARISON, "eq ne lt le gt ge logical_and logical_or logical_not bitwise_not isnan isfinite isinf"),
    **_named(_ARITHMETIC, "square sign ceil floor round trunc remainder hardtanh hardswish hardsigmoid tril triu"),
    **_named(_FUNCTION, "expm1 log2 log10 mish selu celu"),
    **_named(_WRITE, "copy fill zero"),
    **_named(_RANDOM, "bernoulli normal uniform random exponential"),
    **_named(_lists(1, writes=1), "_foreach_add _foreach_sub _foreach_mul _foreach_div _foreach_lerp"),
    **_named(_lists(1, writes=1), "_foreach_addcmul _foreach_addcdiv"),
    **_named(
        _lists(10, writes=1), "_foreach_sqrt _foreach_pow _foreach_reciprocal _foreach_clamp_min _foreach_maximum"
    ),
    **_named(_lists(0, writes=1, reads_first=False), "_foreach_zero _foreach_copy"),
    **_named(_lists(2, writes=1, reads=1), "_amp_foreach_non_finite_check_and_unscale"),
    # Parameters, gradients, averages; all but the gradients are written back.
    **_named(_lists(15, writes=3, reads=4), "_fused_adam _fused_adamw"),
    **_named(_lists(4, writes=2, reads=3), "_fused_sgd"),
    **_named(_lists(8, writes=2, reads=3), "_fused_adagrad"),
    **_named(_lists(1, writes=1), "_foreach_neg _foreach_abs _foreach_sign"),
}

#: Convolutions by the places of their weight and their groups.
CONVOLUTIONS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("aten::convolution", "aten::_convolution"), (1, 8)),
    **dict.fromkeys(("aten::miopen_convolution", "aten::mkldnn_convolution"), (1, 6)),
    "aten::cudnn_convolution": (1, 5),
    "aten::convolution_backward": (2, 9),
}

FORMULAS: dict[str, Formula] = {
    **_named(_product(0), "mm bmm _scaled_mm"),
    **_named(_product(1), "addmm baddbmm _addmm_activation"),
    **_named(_convolution(4, 3, 5, 8, transposed=6), "convolution _convolution"),
    **_named(_convolution(2, 3, 4, 5), "cudnn_convolution"),
    **_named(_convolution(3, 4, 5, 6), "miopen_convolution mkldnn_convolution"),
    **_named(_convolution_backward, "convolution_backward"),
    **_named(_recurrent(1), "mkldnn_rnn_layer"),
    **_named(_recurrent(2), "mkldnn_rnn_layer_backward"),
    **_named(_attention(4), "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu"),
    **_named(_attention(7, backward=True), "_scaled_dot_product_flash_attention_for_cpu_backward"),
    **_named(_attention(6), "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention"),
    **_named(_attention(11, backward=True), "_scaled_dot_product_flash_attention_backward"),
    **_named(_attention(11, backward=True), "_scaled_dot_product_efficient_attention_backward"),
    **_named(_attention(14, backward=True), "_scaled_dot_product_cudnn_attention_backward"),
    **_named(_normalization, "native_layer_norm native_layer_norm_backward native_group_norm _fused_rms_norm"),
    **_named(_normalization, "native_group_norm_backward _fused_rms_norm_backward native_batch_norm"),
    **_named(_normalization, "native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward"),
    **_named(_normalization, "miopen_batch_norm miopen_batch_norm_backward _softmax _log_softmax"),
    **_named(_FUNCTION, "_softmax_backward_data _log_softmax_backward_data native_dropout native_dropout_backward"),
    **_named(_FUNCTION, "gelu_backward silu_backward sigmoid_backward tanh_backward mse_loss_backward"),
    **_named(_ARITHMETIC, "threshold_backward leaky_relu_backward hardtanh_backward hardswish_backward dot flip roll"),
    **_named(_ARITHMETIC, "smooth_l1_loss_backward huber_loss_backward isneginf isposinf"),
    **_named(_FUNCTION, "elu_backward softplus_backward mish_backward binary_cross_entropy_backward"),
    **_named(_REDUCTION, "sum mean max min amax amin argmax argmin prod var std var_mean norm linalg_vector_norm"),
    **_named(_REDUCTION, "any all max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d mse_loss nonzero"),
    **_named(_resized(2), "upsample_nearest2d"),
    **_named(_resized(3), "upsample_bilinear2d"),
    **_named(_resized_gradient, "upsample_nearest2d_backward upsample_bilinear2d_backward"),
    **_named(_one_per_sample, "nll_loss_forward nll_loss2d_forward"),
    **_named(_gradient_like(1), "nll_loss_backward nll_loss2d_backward _adaptive_avg_pool2d_backward"),
    **_named(_gradient_like(1), "avg_pool2d_backward max_pool2d_with_indices_backward"),
    **_named(_embedding, "embedding"),
    **_named(_index_select, "index_select"),
    **_named(_embedding_gradient, "embedding_dense_backward"),
    **_named(_gathered, "gather"),
    **_named(_lists(2, writes=0), "_foreach_norm"),
    **_named(_concatenated, "cat"),
    **_POINTWISE,
    **{f"{name}_": formula for name, formula in _POINTWISE.items()},
}
