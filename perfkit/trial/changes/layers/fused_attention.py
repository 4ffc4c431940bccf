"""Compute attention that is written out in one fused call.

``softmax(q @ k.transpose(-2, -1) * scale + mask) @ v``, with ``matmul``, ``bmm`` or ``einsum`` and with masks that are
added or filled in, becomes ``scaled_dot_product_attention``. Lines whose weights are dropped out, or used for anything
else, are computed as they are written.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from perfkit.trial.site import Site

ID = "fused-attention"
ANSWERS = ("attention-unfused",)
KIND = "numeric"
TOGGLE = True
LINES = "torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)"


def apply(site: Site, value: None) -> None:
    """Defer products that may be scores, until what the program does with them shows whether they are."""
    import torch  # where a change is applied, not where changes are listed

    from perfkit.trial.changes.layers import _deferred_scores as scores  # imports torch

    #: Places in the program: whose scores were asked for by something else, and whose were fused.
    other: set[Any] = set()
    fused: set[Any] = set()

    def on_fused(place: Any) -> None:
        # From the second time on: by then it is known whether something else asks for the weights as well.
        if place in fused:
            site.used()
        fused.add(place)

    def product(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def multiply(*args: Any, **kwargs: Any) -> Any:
            if site.active and len(args) == 2 and not kwargs and scores.can_defer(*args):
                caller = sys._getframe(1)
                place = (caller.f_code, caller.f_lasti)
                if place not in other:
                    return scores.deferred(lambda: original(*args), *args, place, on_fused, other.add)
            return original(*args, **kwargs)

        return multiply

    def by_letters(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def einsum(*args: Any, **kwargs: Any) -> Any:
            if site.active and len(args) == 3 and not kwargs and scores.is_product_of_rows(args[0]):
                query, keys = args[1], args[2]
                caller = sys._getframe(1)
                place = (caller.f_code, caller.f_lasti)
                if place not in other and isinstance(keys, torch.Tensor) and keys.dim() >= 3:
                    turned = keys.transpose(-2, -1)
                    if scores.can_defer(query, turned):
                        return scores.deferred(lambda: original(*args), query, turned, place, on_fused, other.add)
            return original(*args, **kwargs)

        return einsum

    for owner, name in ((torch, "matmul"), (torch, "bmm"), *((torch.Tensor, one) for one in ("matmul", "bmm"))):
        site.patches.wrap(owner, name, product)
    site.patches.wrap(torch.Tensor, "__matmul__", product)
    site.patches.wrap(torch, "einsum", by_letters)
    # A function of autograd would take the deferred scores for an input without gradients.
    apply_function = vars(torch.autograd.Function)["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        real = (one.computed() if isinstance(one, scores.DeferredScores) else one for one in args)
        return apply_function.__get__(None, cls)(*real, **kwargs)

    site.patches.set(torch.autograd.Function, "apply", classmethod(apply))
