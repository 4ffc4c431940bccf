"""Leave out the bias of a convolution that only a batch norm follows.

The norm subtracts it again. The graph of a model's first call in training shows the convolutions whose result goes into
a batch norm and nowhere else. From its second call on they compute without a bias: it becomes zero, and the norm's
running mean follows. Models inside DistributedDataParallel, which waits for every gradient, are left as they are.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from perfkit.trial.site import Site

ID = "no-bias-before-norm"
ANSWERS = ("conv-bias-before-norm",)
KIND = "numeric"
LINES = "torch.nn.Conv2d(..., bias=False)"


def apply(site: Site, value: None) -> None:
    """Find the biases after the first call of a model with gradients, and compute without them from the second on."""
    import torch  # where a change is applied, not where changes are listed
    from torch.nn.parallel import DistributedDataParallel  # torch
    from torch.utils._pytree import tree_leaves  # torch

    from perfkit.trial.changes._roots import around_models  # imports torch

    found: weakref.WeakKeyDictionary[Any, list[tuple[Any, Any]]] = weakref.WeakKeyDictionary()
    without: weakref.WeakSet[Any] = weakref.WeakSet()

    def around(call: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        trains = module.training and torch.is_grad_enabled() and not isinstance(module, DistributedDataParallel)
        if trains:
            for convolution, norm in found.get(module, ()):
                if convolution not in without:
                    _drop(convolution, norm)
                    without.add(convolution)
                    site.used()
        result = call(module, *args, **kwargs)
        if trains and module not in found:
            outputs = [one.grad_fn for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
            found[module] = list(_pairs(module, [node for node in outputs if node is not None]))
        return result

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _conv_forward(self: Any, input: Any, weight: Any, bias: Any) -> Any:
            return original(self, input, weight, None if site.active and self in without else bias)

        return _conv_forward

    around_models(site, around)
    # A private name of torch: where it is missing, biases are zero and still added.
    for kind in (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d):
        site.patches.wrap(kind, "_conv_forward", wrapper)


def _drop(convolution: Any, norm: Any) -> None:
    """Take the bias out of both sides of the norm's subtraction: the model computes the same, in evaluation too."""
    if norm.running_mean is not None:
        norm.running_mean.sub_(convolution.bias.detach())
    convolution.bias.detach().zero_()
    convolution.bias.grad = None


def _pairs(module: Any, outputs: list[Any]) -> Iterator[tuple[Any, Any]]:
    """The convolutions with a bias whose result goes into a training batch norm alone, with that norm."""
    biases = {id(one.bias): one for one in module.modules() if hasattr(one, "_conv_forward")}
    norms = {
        id(one.weight): one for one in module.modules() if hasattr(one, "running_mean") and one.training and one.affine
    }
    nodes = list(_graph(outputs))
    uses = Counter(before for node in nodes for before, _ in node.next_functions)
    uses.update(outputs)
    for node in nodes:
        if node.name().endswith("BatchNormBackward0") and len(node.next_functions) == 3:
            (before, _), (weight, _), _ = node.next_functions
            norm = norms.get(id(_leaf(weight)))
            if norm is not None and before.name() == "ConvolutionBackward0" and uses[before] == 1:
                bias = before.next_functions[2][0]
                convolution = biases.get(id(_leaf(bias)))
                # Used once: the convolution is called in one place.
                if convolution is not None and uses[bias] == 1:
                    yield convolution, norm


def _leaf(node: Any) -> Any:
    """The weight that a node accumulates into, also through a cast of autocast; None where it is none."""
    while node is not None and node.name() == "ToCopyBackward0":
        node = node.next_functions[0][0]
    return getattr(node, "variable", None)


def _graph(outputs: Iterable[Any]) -> Iterator[Any]:
    """Every node of the graph, once."""
    todo, seen = list(outputs), set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            todo += [before for before, _ in node.next_functions]
