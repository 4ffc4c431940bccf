"""Decides where the steps of a plain loop end, from what the loop does.

An update of the weights ends a step: an optimizer's, or in a program that has no optimizer the backward, after which
the program updates them by itself. A step that reads from a loader lasts until the fetch that follows the update, so an
accumulated step is one step. Where update after update comes without a fetch (a cached ``list(loader)``), each ends a
step. In a program that does neither, a call of its model is a step; and where it calls none, a round of its loop.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from perfkit._callsite import find_callsite
from perfkit.record.clock.step_clock import StepClock
from perfkit.record.hooks import loop_rounds
from perfkit.record.hooks.loop_rounds import ChosenLoop, CountedLoop
from perfkit.record.input_slices import InputSlices
from perfkit.record.live_objects import instances_of, subclasses_of
from perfkit.record.program_values import is_tensor
from perfkit.run.records import BoundaryKind, Mode, StepBoundary

#: More updates than this without a fetch in between are steps: a batch that is used several times (the critic of a GAN,
#: the epochs of PPO) is used 4 to 10 times. After the loader's last batch one or two updates are left, because some
#: loops fetch a batch ahead.
_MANY = 16
_AFTER_LAST = 2
#: Calls of modules before they stand for steps: a program that trains has called a backward by then, or has made an
#: optimizer.
_CALLS = 8
#: Where rounds of a loop are steps, and since the last one (chosen): the loop may be over then.
_CALLS_IN_ROUND = 64
#: Between two fetches of a loop that works with its batches, more time passes than this: an op of torch takes some
#: microseconds, a model several of them, and appending a batch to a list a tenth of one.
COLLECTED_NS = 20_000
#: The key of updates that follow a backward.
_BY_HAND = -1


def _nothing() -> None:
    return None


def has_optimizer() -> bool:
    """Whether the program holds an optimizer, also one that has not stepped yet."""
    return bool(instances_of(subclasses_of(torch.optim.Optimizer)))


class StepBoundaries:
    """Ends the steps of ``clock``; ``active`` is False where something else does."""

    def __init__(self, clock: StepClock, *, active: bool) -> None:
        self._clock = clock
        self.active = active
        self._kind: BoundaryKind | None = None
        #: An update came, and the step goes on until a fetch, or a call of the model.
        self.stepped = False
        #: Whether a loader trains, and whether steps end at its fetches.
        self.has_loader = self.at_fetch = False
        #: Whether the loader that was read last has no batch left.
        self.exhausted = False
        #: Whether each batch of an evaluation is a step, in a program that does not train.
        self.evaluating = False
        #: Updates since the last fetch of a loader that trains; where steps end there, without the first one.
        self.repeats: Counter[int] = Counter()
        self._first: int | None = None
        self._closing: int | None = None
        #: Whether the program trains; None: not known yet.
        self._trains: bool | None = None
        #: Whether it updates its weights by itself.
        self._by_hand = self._has_backward = False
        self._backwards = 0
        #: The first output of the last ``torch.autograd.grad``, weakly.
        self._differentiated: weakref.ref[Any] | None = None
        #: Whether it held an optimizer at the second backward.
        self._holds_optimizer = False
        #: Calls of modules since the last fetch, or backward; those of each module since the last step ended.
        self._calls = 0
        self._calls_of: Counter[int] = Counter()
        #: The module whose calls are steps, weakly; and what is recorded of it.
        self.root: Callable[[], Any] = _nothing
        self._model: dict[str, Any] = {}
        self._slices = InputSlices()
        #: The optimizers that stepped inside the running backward.
        self._stepped_inside: list[int] = []
        #: The loop whose rounds are steps.
        self._loop = ChosenLoop(self._shows_no_steps)

    @property
    def kind(self) -> BoundaryKind | None:
        """What ends the steps now; None: nothing yet."""
        return "marked" if not self.active else "loader" if self.at_fetch else self._kind

    @property
    def trains(self) -> bool:
        """Whether the program has called a backward or an optimizer."""
        return bool(self._backwards or self.stepped or self._kind not in (None, "module", "round"))

    @property
    def record(self) -> StepBoundary | None:
        """What ends the steps now, with the model where that is its calls."""
        if self.kind is None:
            return None
        if self.kind == "round" and self._loop.loop is not None:
            # Where there were two loops, the steps are rounds of both.
            return StepBoundary(by="round", called_at=self._loop.loop.at if self._loop.is_first else None)
        if self.kind != "module":
            return StepBoundary(by=self.kind)
        return StepBoundary(by="module", sliced=self._slices.share, items=self._slices.items, **self._model)

    def close(self, kind: BoundaryKind, mode: Mode = "train") -> None:
        """End the step here."""
        self._kind = kind
        self.stepped = False
        self._clock.close(mode)

    # -- fetches

    def set_loader(self, trains: bool) -> None:
        """Whether any loader trains has changed, perhaps."""
        self.at_fetch = trains and (self.at_fetch or not self.has_loader)
        self.has_loader = trains

    def before_fetch(self) -> None:
        """The next batch of a loader that trains is fetched."""
        if self.has_loader and not self.at_fetch and max(self.repeats.values(), default=0) == 1:
            self.at_fetch = True  # after exactly one update: the loop reads batch by batch again
        self.repeats.clear()
        if self.active and (self.evaluating or (self.stepped and self.at_fetch)):
            self.close("loader", "train" if self.stepped else "validation")
        self._calls, self.root = 0, _nothing
        self.evaluating = self.exhausted = False

    def before_evaluation(self) -> None:
        """A batch is fetched in a program that does not train: it is a step."""
        if self.active:
            if self.evaluating:
                self.close("loader", "validation")
            else:
                self._clock.start()
            self.evaluating = True
        self._calls, self.root = 0, _nothing
        self.exhausted = False

    # -- updates

    def after_optimizer(self, key: int) -> None:
        """The optimizer ``key`` has stepped; not called for the first one since the fetch at which the step began."""
        if self._by_hand:
            self._by_hand = False
            self._first = self._closing = None
        self._trains = True
        self._after_update(key, "optimizer")

    def forget(self, key: int | None) -> None:
        """The optimizer ``key`` is gone: where it ended the steps, another one will, as of the next round or fold."""
        if key is not None and key == self._closing:
            self._first = self._closing = None

    def after_optimizer_inside(self, key: int) -> None:
        """The optimizer ``key`` has stepped in a hook of the backward that runs.

        No step ends there: the pause after it may start a profiler of torch's, or stop one, under which torch crashes.
        """
        self._stepped_inside.append(key)

    def end_backward(self) -> None:
        """The backward is over in which optimizers may have stepped."""
        while self._stepped_inside:
            self.after_optimizer(self._stepped_inside.pop(0))

    def after_grad(self, outputs: Any) -> None:
        """``torch.autograd.grad`` is over: with the outputs of the call before it belongs to the same update."""
        first = outputs[0] if type(outputs) in (tuple, list) and outputs else outputs
        if self._differentiated is not None and self._differentiated() is first:
            return
        self._differentiated = weakref.ref(first) if is_tensor(first) else None
        self.after_backward(by_grad=True)

    def after_backward(self, *, by_grad: bool = False) -> None:
        """A backward is over, in a program in which no optimizer has stepped yet.

        With ``by_grad`` it was ``torch.autograd.grad``, which only counts in a program that calls no ``backward``.
        """
        if by_grad and self._has_backward:
            return
        if not by_grad and not self._has_backward:
            self._has_backward, self._by_hand, self._backwards = True, False, 0
        self._trains = True
        self._backwards += 1
        calls, self._calls = self._calls, 0
        # Until an optimizer steps for the first time, several batches may be accumulated.
        if self._backwards == 2:
            self._holds_optimizer = has_optimizer()
            self._by_hand = self._by_hand or not self._holds_optimizer
        # A gradient alone may be part of a loss, as a penalty on it is.
        elif self._backwards > _MANY and not (by_grad and self._holds_optimizer):
            self._by_hand = True
        if not self._by_hand or not self.active:
            return
        if calls and not self.at_fetch:
            # The program updates its weights now; the step ends where it calls its model again.
            self.stepped = True
        else:
            self._after_update(_BY_HAND, "backward")

    def _after_update(self, key: int, kind: BoundaryKind) -> None:
        self.stepped = True
        self.repeats[key] += 1
        if not self.active:
            return
        if self.at_fetch:
            if self.repeats[key] <= (_AFTER_LAST if self.exhausted else _MANY):
                return
            self.at_fetch = False
        # A step ends with the optimizer that steps last before the first one steps again; until there is a second one,
        # that is the only one.
        if self._first is None:
            self._first = self._closing = key
        elif self._closing == self._first and key != self._first:
            self._closing = key
        if key == self._closing:
            self.close(kind)

    # -- calls of modules

    def before_call(self, module: Any, inputs: Any) -> None:
        """The program calls a module, from outside of all others, and no phase is open."""
        self._calls += 1
        if not self.active:
            return
        if self._by_hand:
            if self.stepped and not self.at_fetch:
                self.close("backward")
        elif self.root() is not None and not self._trains:
            self._close_at_call(module, inputs)
        elif self._calls >= (_CALLS if self._loop.loop is None else _CALLS_IN_ROUND) and (
            self.exhausted or not (self.has_loader or self.evaluating)
        ):
            if self._trains is None:
                self._trains = has_optimizer()
            if not self._trains:
                self.evaluating = False
                self._choose(module)
                self._clock.start()

    def _close_at_call(self, module: Any, inputs: Any) -> None:
        """A step ends where the module is called again with which it began; or one that is called more often."""
        key = id(module)
        if module is self.root() or self._calls_of[key] >= _MANY:
            self._choose(module)
            self._slices.look(module, inputs)
            self.close("module", "predict")
        else:
            self._calls_of[key] += 1

    def _choose(self, module: Any) -> None:
        self._calls_of.clear()
        if module is self.root():
            return
        self.root = weakref.ref(module)
        self._slices = InputSlices()
        model = getattr(module, "_orig_mod", module)
        if isinstance(model, torch.nn.DataParallel | torch.nn.parallel.DistributedDataParallel):
            model = model.module
        called_at = find_callsite(sys._getframe())
        self._model = {
            "module": type(model).__name__,
            "training": bool(model.training),
            "called_at": called_at.at if called_at is not None else None,
        }

    # -- rounds of loops

    def before_round(self, loop: CountedLoop) -> None:
        """A round of a loop begins, and no phase is open."""
        if self.trains or not self.active:
            loop_rounds.leave()
            return
        others = self.has_loader or self.evaluating or self.root() is not None
        if others or not self._clock.running:
            return
        if (step := self._loop.step_at(loop)) is None:
            return
        self._calls = 0
        if step == "ends":
            self.close("round", "predict")
        else:
            self._kind = "round"
            self._clock.start()

    def _shows_no_steps(self) -> bool:
        """Whether rounds of a loop may be steps: a program that holds an optimizer will train."""
        return not has_optimizer()

    def finish(self) -> None:
        """Close the last step if it is complete."""
        if self.active and self._clock.running:
            if self.stepped:
                self.close(self._kind or "optimizer")
            elif self.evaluating and self._clock.active:
                self.close("loader", "validation")
