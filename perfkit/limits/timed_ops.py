"""The ops of torch that are timed for the limits of a machine, in rising sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from perfkit.run.records import ACCESSES, FUNCTION_FLOPS, FUNCTIONS, Access, Function, Layer

_PRECISIONS = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
#: Length of square matrices.
_PRODUCTS = (16, 32, 64, 128, 256, 512, 1024)
#: Samples, channels, and height and width of images: 0.3 MFLOP to 1.8 GFLOP.
_CONVOLUTIONS = ((1, 8, 16), (4, 16, 32), (8, 32, 32), (8, 64, 28), (8, 64, 56))
#: Channels, and height and width of eight images, of convolutions whose rate at each depth is measured: 3x3 kernels to
#: as many channels or 32, on images that a second-level cache holds.
_DEPTHS = ((1, 32), (3, 32), (8, 32), (16, 16), (32, 16), (64, 16))
#: Bytes of a tensor that is moved: from the smallest cache to beyond the largest one.
_TENSORS = tuple(2**power for power in (12, 14, 16, 18, 20, 22, 24, 26))
#: Elements for functions: torch divides an op among threads from 32,768 elements on. A second-level cache holds the
#: tensors of the second size and not those of the last one.
_FUNCTION_ELEMENTS = (2**14, 2**18, 2**19)
#: Samples, channels, and height and width of images that are pooled, resized and normalized: 131,072 and 401,408
#: elements. With 3 channels the layouts take equally long.
_IMAGES = ((8, 16, 32), (8, 64, 28))
#: Samples times heads, length, and width of a head, of attention.
_ATTENTION = ((32, 64, 32), (32, 128, 64), (16, 256, 64))
#: Rows and classes of a softmax.
_SOFTMAX = ((64, 256), (512, 512), (512, 2048))


class TimedOps(NamedTuple):
    """Ops of which the fastest counts, as one rate of a table.

    ``work`` is what the rate counts, where that is not the size: FLOPs of one op.
    """

    table: str
    name: str
    size: int
    ops: tuple[Callable[[], Any], ...]
    work: int | None = None


def timed_ops() -> Iterator[Iterator[TimedOps]]:
    """Rows of the same op in rising sizes; a row may end early on a machine where that takes long."""
    yield from (*_products(), *_convolutions(), _depths(), *_moves(), *_functions())
    yield from (_attention(), _softmax(), _batch_norms(), *_image_layers())


def _products() -> Iterator[Iterator[TimedOps]]:
    def row(name: str, dtype: torch.dtype) -> Iterator[TimedOps]:
        for n in _PRODUCTS:
            a, b = torch.rand(n, n).to(dtype), torch.rand(n, n).to(dtype)
            yield TimedOps("products", name, 2 * n**3, (partial(torch.mm, a, b, out=torch.empty_like(a)),))

    for name, dtype in _PRECISIONS.items():
        yield row(name, dtype)


def _convolutions() -> Iterator[Iterator[TimedOps]]:
    def row(name: str, dtype: torch.dtype) -> Iterator[TimedOps]:
        for samples, channels, length in _CONVOLUTIONS:
            images = torch.rand(samples, channels, length, length).to(dtype)
            weight = torch.rand(channels, channels, 3, 3).to(dtype)
            flops = 2 * images.numel() * weight[0].numel()
            last = (images.to(memory_format=torch.channels_last), weight.to(memory_format=torch.channels_last))
            ops = tuple(partial(torch.conv2d, *given, padding=1) for given in ((images, weight), last))
            yield TimedOps("convolutions", name, flops, ops)

    for name in ("float32", "bfloat16"):
        yield row(name, _PRECISIONS[name])


def _depths() -> Iterator[TimedOps]:
    for channels, length in _DEPTHS:
        weights = [(torch.rand(max(32, channels), channels, 3, 3), 1)]
        if channels == 1:  # one for each channel is as deep
            weights.append((torch.rand(32, 1, 3, 3), 32))
        ops: list[Callable[[], Any]] = []
        for weight, groups in weights:
            images = torch.rand(8, channels * groups, length, length)
            for layout in (torch.contiguous_format, torch.channels_last):
                given = images.to(memory_format=layout), weight.to(memory_format=layout)
                ops.append(partial(torch.conv2d, *given, padding=1, groups=groups))
                gradient = torch.rand_like(ops[-1]())
                ops.append(partial(_weight_gradient, gradient, *given, groups))
        depth = weights[0][0][0].numel()
        yield TimedOps("depths", "float32", depth, tuple(ops), 2 * gradient.numel() * depth)


def _weight_gradient(gradient: Tensor, images: Tensor, weight: Tensor, groups: int) -> None:
    wanted = (False, True, False)
    torch.ops.aten.convolution_backward(
        gradient, images, weight, None, (1, 1), (1, 1), (1, 1), False, (0, 0), groups, wanted
    )


def _moves() -> Iterator[Iterator[TimedOps]]:
    source, target = torch.ones(_TENSORS[-1] // 4), torch.ones(_TENSORS[-1] // 4)

    def row(name: Access) -> Iterator[TimedOps]:
        for size in _TENSORS:
            a, b = source[: size // 4], target[: size // 4]
            ops: dict[Access, tuple[Callable[[], Any], ...]] = {
                "read": (a.sum,),
                "copy": (partial(b.copy_, a), partial(torch.clamp_min, a, 0.0, out=b)),
                "update": (partial(b.add_, 1.0),),
            }
            yield TimedOps("bandwidth", name, size if name == "read" else 2 * size, ops[name])

    for name in ACCESSES:
        yield row(name)


def _functions() -> Iterator[Iterator[TimedOps]]:
    def row(name: Function) -> Iterator[TimedOps]:
        for elements in _FUNCTION_ELEMENTS:
            given, out = torch.rand(elements) + 0.1, torch.empty(elements)
            ops: dict[Function, tuple[Callable[[], Any], ...]] = {
                "exp": (partial(torch.exp, given, out=out), partial(torch.sigmoid, given, out=out)),
                "log": (partial(torch.log, given, out=out),),
                "tanh": (partial(torch.tanh, given, out=out),),
                # oneDNN has a kernel for gelu alone: 2 to 5 times as fast on an AMD EPYC with AVX-512.
                "erf": (partial(torch.erf, given, out=out), partial(torch.ops.aten.gelu.out, given, out=out)),
                "pow": (partial(torch.pow, given, 2.5, out=out),),
                "sqrt": (partial(torch.sqrt, given, out=out), partial(torch.rsqrt, given, out=out)),
                # It takes longest where both values are equally likely.
                "bernoulli": (partial(out.bernoulli_, 0.9),),
                "normal": (partial(out.normal_), partial(out.uniform_)),
            }
            yield TimedOps("functions", name, FUNCTION_FLOPS * elements, ops[name])

    for name in FUNCTIONS:
        yield row(name)


def _attention() -> Iterator[TimedOps]:
    for heads, length, width in _ATTENTION:
        query, key, value = (torch.rand(1, heads, length, width) for _ in range(3))
        flops = heads * length * length * 4 * width
        attention = partial(functional.scaled_dot_product_attention, query, key, value)
        yield TimedOps("layers", "attention", flops, (attention,))


def _softmax() -> Iterator[TimedOps]:
    for shape in _SOFTMAX:
        given = torch.rand(*shape)
        ops = (partial(torch.softmax, given, -1), partial(torch.log_softmax, given, -1))
        yield TimedOps("layers", "softmax", FUNCTION_FLOPS * given.numel(), ops)


def _batch_norms() -> Iterator[TimedOps]:
    for samples, channels, length in _IMAGES:
        images, ones = torch.rand(samples, channels, length, length), torch.ones(channels)
        norm = partial(functional.batch_norm, running_mean=torch.zeros(channels), running_var=ones, training=True)
        ops = tuple(partial(norm, given, weight=ones, bias=ones) for given in (images, _channels_last(images)))
        yield TimedOps("layers", "batch norm", FUNCTION_FLOPS * images.numel(), ops)


def _image_layers() -> Iterator[Iterator[TimedOps]]:
    """Pooling and resizing: FLOPs are the elements of the larger images, those before pooling and after resizing."""

    def row(name: Layer, *ops_of: Callable[[Tensor], Callable[[], Any]]) -> Iterator[TimedOps]:
        for samples, channels, length in _IMAGES:
            given = torch.rand(samples, channels, length, length)
            ops = tuple(of(_channels_last(given)) for of in ops_of)
            yield TimedOps("layers", name, given.numel(), ops)

    yield row("max pool", lambda images: partial(functional.max_pool2d_with_indices, images, (2, 2)))
    yield row("max pool gradient", _max_pool_gradient)
    yield row("average pool", lambda images: partial(functional.avg_pool2d, images, 2))
    for name in ("nearest", "bilinear"):
        yield row(name, partial(_resizing, name))


def _channels_last(images: Tensor) -> Tensor:
    return images.to(memory_format=torch.channels_last)


def _max_pool_gradient(images: Tensor) -> Callable[[], Any]:
    out, places = functional.max_pool2d_with_indices(images, (2, 2))
    settings = ((2, 2), (2, 2), (0, 0), (1, 1), False)
    return partial(torch.ops.aten.max_pool2d_with_indices_backward, out, images, *settings, places)


def _resizing(name: str, images: Tensor) -> Callable[[], Any]:
    """Resizing to the size of these images, from half of it in each dimension."""
    half = _channels_last(functional.avg_pool2d(images, 2))
    resize = torch.ops.aten.upsample_nearest2d if name == "nearest" else torch.ops.aten.upsample_bilinear2d
    return partial(resize, half, [*images.shape[2:]], *(() if name == "nearest" else (False,)))
