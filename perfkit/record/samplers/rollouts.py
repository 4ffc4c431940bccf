"""Calls of a model for one observation each, whose graphs wait for one backward: an episode that is played and learned.

A rollout asks a model what to do, an environment makes the next observation of the answer, and the graph of each call
is kept for the loss. A call that no other module makes belongs to one if

- gradients are enabled, its inputs have one row, the same shapes in each call, and no graph: a recurrent state with a
  graph makes each call depend on the one before;
- the answer leads to the next input, as the source of the loop around it shows, and the call changes nothing that the
  module keeps;
- neither dropout nor a norm over the batch is active, of which a call with all rows makes another answer;
- the first backward after the calls goes through the module as many times, and never through one use of a parameter to
  an earlier use of it, as in a recurrence outside of the module.
"""

from __future__ import annotations

from collections import Counter
from types import FrameType
from typing import Any

import torch

from perfkit._raised_signals import leave_to_program
from perfkit.record.program_values import is_plain, is_tensor, unseen, values_in, without_modes
from perfkit.record.samplers.module_state import has_active_dropout, normalizes_batch, state_of
from perfkit.record.samplers.sample_loops import feeds_itself

#: Calls that are a loop (chosen, as for the other loops over a model).
MIN_CALLS = 8
#: The calls that the backward goes through, of all, at least: the last answer of an episode may not be learned from.
_LEARNED = 0.9
#: Nodes of a graph that are looked at: those of some thousand moves. Each takes some µs.
_MAX_NODES = 100_000


class Moves:
    """The calls of one module from one line, as long as they may be a rollout."""

    def __init__(self, module: Any, row: tuple[Any, ...], passed: tuple[int, int]) -> None:
        self._row, self._passed, self._state = row, passed, state_of(module)
        #: Their ids.
        self.parameters = frozenset(map(id, module.parameters()))
        self.calls = 1

    @classmethod
    def begun_by(cls, module: Any, values: list[Any], caller: FrameType, passed: tuple[int, int]) -> Moves | None:
        """The first call of a module from a line in the frame ``caller``; None where that begins no rollout.

        ``passed`` are the backwards and fetches that were before it.
        """
        row = _row_of(values)
        if row is None or has_active_dropout(module) or normalizes_batch(module) or not feeds_itself(caller, module):
            return None
        return cls(module, row, passed)

    def changed(self, module: Any) -> bool:
        """Whether the first call, which has ended, changed what the module keeps."""
        return state_of(module) != self._state

    def go_on(self, values: list[Any], passed: tuple[int, int]) -> bool:
        """Whether another call may belong to the same rollout."""
        self.calls += 1
        return _row_of(values) == self._row and passed == self._passed


def _row_of(values: list[Any]) -> tuple[Any, ...] | None:
    """The shapes of a call's tensors if they are one row without a graph; None otherwise.

    Objects other than numbers and texts may hold a state.
    """
    tensors = [value for value in values if is_tensor(value)]
    others = (value for value in values if not is_tensor(value))
    if not tensors or not torch.is_grad_enabled() or not all(map(is_plain, tensors)):
        return None
    one_row = all(len(one) == 1 if one.dim() > 1 else one.is_floating_point() or one.numel() == 1 for one in tensors)
    fresh = not any(one.requires_grad for one in tensors)
    known = all(value is None or issubclass(type(value), bool | int | float | str) for value in others)
    return tuple(tuple(one.shape) for one in tensors) if one_row and fresh and known else None


class LearnedUses:
    """How often the graph of the first backward uses each parameter; keeps nothing alive."""

    def __init__(self) -> None:
        self._uses: Counter[int] = Counter()
        #: Whether a use of a parameter is computed from another one.
        self._recurrent = False
        self._looked = False

    def learns_from(self, moves: Moves | None) -> bool:
        """Whether the backward goes through these calls, each for itself."""
        if moves is None or moves.calls < MIN_CALLS or self._recurrent:
            return False
        return max((self._uses[one] for one in moves.parameters), default=0) >= _LEARNED * moves.calls

    @unseen
    def look(self, losses: Any) -> None:
        """A backward of these begins."""
        if self._looked:
            return
        self._looked = True
        try:
            with without_modes():
                self._walk([one.grad_fn for one in values_in(losses) if is_tensor(one) and one.grad_fn is not None])
        except Exception as error:  # noqa: BLE001 - nodes of any kind
            leave_to_program(error)
            self._uses.clear()

    def _walk(self, roots: list[Any]) -> None:
        """Count the edges to each parameter, inputs before what is computed of them."""
        #: Nodes that are known, so that no other gets the id of one; and the parameters below each, a bit for each.
        known: dict[int, Any] = {}
        below: dict[int, int] = {}
        bits: dict[int, int] = {}
        todo = [(node, False) for node in roots]
        while todo:
            node, entered = todo.pop()
            key = id(node)
            if entered:
                below[key] = self._below(node, below, bits)
            elif key not in known:
                if len(known) >= _MAX_NODES:
                    self._uses.clear()
                    return
                known[key] = node
                todo.append((node, True))
                todo += [(before, False) for before, _ in node.next_functions if before is not None]

    def _below(self, node: Any, below: dict[int, int], bits: dict[int, int]) -> int:
        leaf = getattr(node, "variable", None)
        if is_tensor(leaf):
            return bits.setdefault(id(leaf), 1 << len(bits))
        befores = [before for before, _ in node.next_functions if before is not None]
        found = own = others = 0
        for before in befores:
            bit = below.get(id(before), 0)
            found |= bit
            if is_tensor(one := getattr(before, "variable", None)):
                self._uses[id(one)] += 1
            # A weight is transposed, and nothing else, before a layer multiplies by it.
            if _is_weight(before):
                own |= bit
            else:
                others |= bit
        self._recurrent |= bool(own & others)
        return found


def _is_weight(node: Any) -> bool:
    """Whether a node is a parameter, or that alone in another order or type."""
    befores = node.next_functions
    return is_tensor(getattr(node, "variable", None)) or (
        len(befores) == 1 and is_tensor(getattr(befores[0][0], "variable", None))
    )
