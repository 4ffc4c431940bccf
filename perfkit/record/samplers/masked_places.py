"""Places that attention masks for all queries, and that no gradient reaches: a step computes them for nothing.

A place whose key is masked is not read by the others. Where its rows have a gradient of zero in the backward too, the
loss does not read it either. Either alone proves nothing: tokens that are to be predicted are masked as keys, and a
hinge has no gradient for samples that it needs.
"""

from __future__ import annotations

from collections import defaultdict
from math import prod
from typing import Any, NamedTuple

import torch

from perfkit._code_owner import USER, function_name
from perfkit.record.program_values import is_tensor, without_modes
from perfkit.record.samplers.call_paths import Site, location_of
from perfkit.run.records import MaskedPlaces

_ATTENTION = "_scaled_dot_product_"
_SOFTMAX = ("_softmax", "_safe_softmax")
#: Elements of masks, scores and gradients that are looked at in a step: some tens of milliseconds.
_MAX_ELEMENTS = 50_000_000
#: Gradients of what is not masked may be zero in a few rows more.
_ABOUT = 1.02


class _Attended(NamedTuple):
    """An attention: its line, the line that leads to it, samples and places, and how many places a query sees."""

    site: Site
    caller: Site
    shape: tuple[int, int]
    visible: int


class MaskedPlaceCounts:
    """Compares the masks of a step's forward with the gradients of its backward; keeps no tensor alive."""

    def __init__(self) -> None:
        self._looked_at = 0
        #: By the number of places of all samples and the width of all heads (0: unknown): the attention that sees most.
        self._attended: dict[tuple[int, int], _Attended] = {}
        #: Numbers of places some of which an attention masks.
        self._masked: set[int] = set()
        #: (places, width of a layer's result) -> the most rows with a gradient.
        self._read: dict[int, dict[int, int]] = defaultdict(dict)

    def add_forward(self, func: Any, inputs: tuple[Any, Any], site: Site, caller: Site) -> None:
        """An op of a line of the user's got these arguments, positional and named."""
        name, (arguments, named) = func.overloadpacket.__name__, inputs
        if name.startswith(_ATTENTION) and arguments[1].dim() == 4:
            mask, (samples, heads, places, width) = named.get("attn_mask"), arguments[1].shape
        elif name in _SOFTMAX and arguments[0].dim() == 4 and arguments[1] in (3, -1):
            mask, (samples, heads, _, places), width = arguments[0], arguments[0].shape, 0
        else:
            return
        if is_tensor(mask) and mask.device.type == "cpu" and mask.dim() == 4 and self._may_look(mask):
            with without_modes():
                seen = mask.detach() if mask.dtype == torch.bool else mask.detach() > torch.finfo(mask.dtype).min / 2
                visible = int(seen.any(2).any(1).expand(samples, places).sum())
        else:
            visible = samples * places
        key = int(samples * places), int(heads * width)
        before = self._attended.get(key)
        if before is None or visible > before.visible:
            self._attended[key] = _Attended(site, caller, (int(samples), int(places)), visible)
        if visible < key[0]:
            self._masked.add(key[0])

    def add_backward(self, func: Any, arguments: Any) -> None:
        """An op of the backward got these arguments."""
        if func is not torch.ops.aten.mm.default:
            return
        gradient = arguments[0]
        count, width = map(int, gradient.shape)
        if count not in self._masked or not self._may_look(gradient):
            return
        with without_modes():
            read = int((gradient.detach() != 0).any(1).sum())
        self._read[count][width] = max(read, self._read[count].get(width, 0))

    def _may_look(self, tensor: Any) -> bool:
        self._looked_at += int(tensor.numel())
        return self._looked_at <= _MAX_ELEMENTS

    def rows(self) -> tuple[MaskedPlaces, ...]:
        """The attention whose masked places no gradient reaches."""
        found = []
        for (count, _), one in self._attended.items():
            widths = tuple(sorted(width for width, read in self._read[count].items() if read <= _ABOUT * one.visible))
            if widths and one.visible < prod(one.shape):
                (code, line), called = one.site, location_of(one.caller)
                found.append(
                    MaskedPlaces(
                        file=code.co_filename, line=line, function=function_name(code), owner=USER,
                        called_from=called, shape=one.shape, visible=one.visible, widths=widths,
                    )
                )  # fmt: skip
        return tuple(found)
