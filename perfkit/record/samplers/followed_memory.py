"""What the samplers of repeated rows and samples know of the tensors of one step, and which need a gradient each."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch

from perfkit.record.samplers.equal_rows import address

#: Tensors that are followed in a step.
_MAX_FOLLOWED = 10_000
#: Ops between a view and a leaf that are looked through.
_MAX_VIEWS = 8

S = TypeVar("S")


class FollowedMemory(Generic[S]):
    """The state of each tensor, by the memory that views share; keeps no tensor alive."""

    def __init__(self, unknown: S) -> None:
        self._unknown = unknown
        #: By the address of the memory. What was freed is replaced by what is made there next.
        self._states: dict[int, S] = {}
        #: The addresses of what ops of the step returned.
        self._made: set[int] = set()

    def of(self, tensor: Any) -> S:
        """What is known of a tensor."""
        return self._states.get(address(tensor), self._unknown)

    def set(self, tensor: Any, state: S) -> None:
        """From now on this is known of a tensor."""
        at = address(tensor)
        if state == self._unknown:
            self._states.pop(at, None)
        elif len(self._states) < _MAX_FOLLOWED or at in self._states:
            self._states[at] = state

    def add_made(self, tensor: Any) -> None:
        """An op of the step has returned it."""
        if len(self._made) < _MAX_FOLLOWED:
            self._made.add(address(tensor))

    def discard_made(self, tensor: Any) -> None:
        """It counts as what the step began with."""
        self._made.discard(address(tensor))

    def is_made(self, tensor: Any) -> bool:
        """Whether an op of the step returned it."""
        return address(tensor) in self._made


def needs_gradient(tensor: Any, out: Any = None, *, is_copied: bool = True) -> bool:
    """Whether the program gets a gradient for each row of a tensor: computed once for equal rows it would be a sum.

    It is a leaf or retains its gradient, or is a view of such a tensor with at least as many elements. Among the inputs
    of an op that is no layer and returns ``out``, one with other rows is a weight; so is a parameter, unless another
    input ``is_copied``.
    """
    held = _holder_of(tensor)
    if held is None or out is None:
        return held is not None
    if not tensor.dim() or not out.dim() or tensor.shape[0] != out.shape[0]:
        return False
    return not isinstance(held, torch.nn.Parameter) or (is_copied and tensor.dim() > 1)


def _holder_of(tensor: Any) -> Any:
    """What gets the gradient of all elements of a tensor; None where nothing does."""
    if not tensor.requires_grad:
        return None
    if tensor.is_leaf or tensor.retains_grad:
        return tensor
    if not tensor._is_view():
        return None
    base = tensor._base
    if base is not None and base.retains_grad and base.numel() >= tensor.numel():
        return base
    node: Any = tensor.grad_fn
    for _ in range(_MAX_VIEWS):
        before: Any = node.next_functions if node is not None else ()
        if len(before) != 1:
            return None
        node = before[0][0]
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            return leaf if leaf.numel() >= tensor.numel() else None
    return None
