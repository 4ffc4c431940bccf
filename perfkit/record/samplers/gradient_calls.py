"""Calls of ``torch.autograd.grad`` and ``backward`` from the user's lines, in the step that is traced by line.

One call of ``grad`` can have many inputs. A call for each of them, with the same outputs, goes through the same graph
again.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple

import torch

from perfkit._raised_signals import errors_dropped
from perfkit.record.program_values import is_plain, is_tensor, unseen, values_in, without_modes
from perfkit.record.samplers.call_paths import Site
from perfkit.run.records import GradientCalls

#: Calls that are compared with later ones: a loop over a thousand parameters has one output.
_MAX_KEPT = 64
#: Elements of a tensor of ones that is recognized: a call of ``grad`` takes longer than reading a million.
_MAX_ONES = 1_000_000
#: Nodes of a module's graph that are looked at, at 1 µs each: a model of 100 layers has some thousand.
_MAX_NODES = 20_000


class _OpenGradient(NamedTuple):
    """A call that has not returned."""

    began_ns: int
    again: bool
    builds_graph: bool
    is_grad: bool


class _Seen(NamedTuple):
    """The outputs of a call, and in which direction they were differentiated; keeps no tensor alive."""

    outputs: tuple[weakref.ref[Any], ...]
    along: tuple[weakref.ref[Any], ...] | None

    def is_of(self, outputs: Sequence[Any], along: Sequence[Any] | None) -> bool:
        """Whether these are the same; ``along`` None: a vector of ones."""
        return _are(self.outputs, outputs) and (
            along is None if self.along is None else along is not None and _are(self.along, along)
        )


class GradientCallLog:
    """The calls of one step by the line that they come from."""

    def __init__(self) -> None:
        self._running: dict[FrameType, tuple[Site | None, _OpenGradient]] = {}
        self._seen: list[_Seen] = []
        #: Calls, those again, ns, ns of those again, and how many build a graph and are of ``grad``.
        self._sums: dict[Site, list[int]] = {}

    def enter(self, frame: FrameType, site: Site | None, now_ns: int, *, is_grad: bool) -> None:
        """``grad`` (``is_grad``) or ``backward`` begins in this frame, called from a line of the user's."""
        given = frame.f_locals
        again = is_grad and self._is_again(given)
        call = _OpenGradient(now_ns, again, bool(given.get("create_graph")), is_grad)
        self._running[frame] = site, call

    def leave(self, frame: FrameType, now_ns: int) -> None:
        """It returns."""
        site, call = self._running.pop(frame, (None, None))
        if site is None or call is None:
            return
        took_ns = now_ns - call.began_ns
        sums = self._sums.setdefault(site, [0, 0, 0, 0, 0, 0])
        for at, value in enumerate((1, call.again, took_ns, call.again * took_ns, call.builds_graph, call.is_grad)):
            sums[at] += value

    def rows(self) -> dict[Site, GradientCalls]:
        """The calls of each line."""
        return {
            site: GradientCalls(
                calls=calls,
                again=again,
                host_ns=max(0, ns),
                again_ns=max(0, again_ns),
                builds_graph=bool(graphs),
                is_grad=bool(grads),
            )
            for site, (calls, again, ns, again_ns, graphs, grads) in self._sums.items()
        }

    @unseen
    def _is_again(self, given: Mapping[str, Any]) -> bool:
        outputs, along = list(values_in(_as_tuple(given.get("outputs")))), None
        vectors = list(values_in(_as_tuple(given.get("grad_outputs"))))
        if not outputs or not all(map(is_plain, outputs)):
            return False
        if not all(one is None or _is_ones(one) for one in vectors):
            along = vectors
        if any(seen.is_of(outputs, along) for seen in self._seen):
            return True
        if len(self._seen) < _MAX_KEPT and (along is None or all(map(is_plain, along))):
            self._seen.append(
                _Seen(tuple(map(weakref.ref, outputs)), None if along is None else tuple(map(weakref.ref, along)))
            )
        return False


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _are(refs: Sequence[weakref.ref[Any]], values: Sequence[Any]) -> bool:
    return len(refs) == len(values) and all(ref() is value for ref, value in zip(refs, values, strict=True))


def _is_ones(tensor: Any) -> bool:
    """Whether all its elements are one, as those of None are; a device is not asked."""
    if not is_plain(tensor) or tensor.device.type != "cpu" or tensor.numel() > _MAX_ONES:
        return False
    # Inside of vmap no value can be read: a RuntimeError.
    with suppress(RuntimeError), torch.no_grad(), without_modes():
        return bool((tensor == 1).all())
    return False


def await_backward(answer: Any) -> list[bool] | None:
    """A list that gets a True when a backward reaches a tensor in what was returned; None where none has a graph."""
    found: list[bool] | None = None
    reached: list[bool] = []

    def note(_: Any) -> None:
        if not reached:
            reached.append(True)

    with errors_dropped():  # nodes of some transforms take no hook
        for tensor in _with_graph(answer):
            # Of the node: a hook of the tensor would be saved and copied with it.
            tensor.grad_fn.register_prehook(note)
            found = reached
    return found


def leads_elsewhere(answer: Any, module: Any) -> bool:
    """Whether a gradient of what ``module`` returned goes on to something else than the module's own parameters.

    That may be a tensor that it reads, such as one that is trained without being a parameter.
    """
    with errors_dropped():  # the program's own module answers
        own = {id(one) for one in module.parameters()}
        todo = [tensor.grad_fn for tensor in _with_graph(answer)]
        seen = set(todo)
        while todo and len(seen) <= _MAX_NODES:
            node = todo.pop()
            leaf = getattr(node, "variable", None)
            if leaf is not None and id(leaf) not in own:
                return True
            following = {one for one, _ in node.next_functions if one is not None} - seen
            seen |= following
            todo.extend(following)
        return bool(todo)
    return True


def _with_graph(answer: Any) -> list[Any]:
    """The tensors in what was returned that have a graph. A leaf, as a parameter that is returned, is none of them."""
    tensors = [one for one in values_in((answer,)) if is_tensor(one) and is_plain(one)]
    return [one for one in tensors if one.grad_fn is not None]
