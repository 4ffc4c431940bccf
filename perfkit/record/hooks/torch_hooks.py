"""Reports fetch, backward and optimizer to the step clock, without an edit to the loop.

These places are patched; `detach` undoes all:

- ``_BaseDataLoaderIter.__next__`` (a class attribute; a test fails when the private name moves): every fetch from a
  DataLoader, whose iterator stays torch's own object;
- ``torch.autograd.backward`` (a module attribute that ``Tensor.backward`` looks up at each call) and ``grad``;
- calls of modules from outside of any other (`RootCalls`), and rounds of the script's loops (`loop_rounds`);
- the public global optimizer hooks, and ``GradScaler.step``, which skips the optimizer after an overflow.

Never hooks on modules: forward hooks cost 46 % of the forward, backward hooks 576 % (they drop torch's fast path).
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from perfkit._code_owner import own_work
from perfkit.ranges import dynamo
from perfkit.record.clock.step_clock import StepClock
from perfkit.record.hooks import loop_rounds
from perfkit.record.hooks.boundaries import COLLECTED_NS, StepBoundaries
from perfkit.record.hooks.closures import Closures
from perfkit.record.hooks.loop_observer import LoopObserver
from perfkit.record.hooks.root_calls import RootCalls
from perfkit.record.hooks.scaler_steps import ScalerSteps
from perfkit.record.program_values import is_tracing
from perfkit.run.records import Mode, StepBoundary


class LoopHooks(LoopObserver):
    """Splits the steps of a plain loop into phases.

    Args:
        clock: Gets the phases.
        boundaries: Whether the hooks also decide where a step ends: see `StepBoundaries`.
        on_optimizer: Called with each optimizer before its first step.
        on_samples: Called with the batch size, for the running step and later ones, when it changes (None: unknown).
        on_batch: Called with each batch of a step.
        on_epoch_end: Called when a training loader is exhausted.
        on_thread: Called with the identifier of the thread that trains, if it is not the one that attaches.
        on_evaluation: Called when an evaluation fetches a batch with gradients enabled; True: not its first one.
    """

    def __init__(
        self,
        clock: StepClock,
        *,
        boundaries: bool = True,
        on_optimizer: Callable[[Any], None] = lambda optimizer: None,
        on_samples: Callable[[int | None], None] = lambda samples: None,
        on_batch: Callable[[Any], None] = lambda batch: None,
        on_epoch_end: Callable[[], None] = lambda: None,
        on_evaluation: Callable[[bool], None] = lambda goes_on: None,
        on_thread: Callable[[int], None] = lambda thread: None,
    ) -> None:
        super().__init__(on_optimizer=on_optimizer, on_samples=on_samples, on_batch=on_batch)
        self._clock, self._bounds = clock, StepBoundaries(clock, active=boundaries)
        self._on_gone = self._bounds.forget
        self._roots = RootCalls(lambda: self._thread, self._before_call)
        #: Called with each module that is called from outside of any other, in a step, and its arguments.
        self.on_call: Callable[[Any, Any], None] = lambda module, inputs: None
        #: Called with each module that an evaluation calls with gradients enabled; and at its `torch.autograd.grad`.
        self.on_graph: Callable[[Any], None] = lambda module: None
        self.on_grad: Callable[[], None] = lambda: None
        self._on_epoch_end, self._on_evaluation, self._on_thread = on_epoch_end, on_evaluation, on_thread
        self._fetches = self._engines = self._optimizing = 0
        self.closures, self._loaders = Closures(clock), dict[int, Mode]()
        self._scaler_steps = ScalerSteps(self._is_scaler_step, self._optimizer_begins, self._optimizer_ends)
        self._doubted: int | None = None
        self._doubted_since: list[int] | None = None
        #: The loader that counts as an evaluation's because no backward came between two of its batches.
        self._judged: int | None = None
        #: The iterator that trains, weakly: one that the program has left must end its workers.
        self._training: Callable[[], Any] = lambda: None

    def leave_boundaries(self) -> None:
        """The program marks where its steps end; nothing else ends them from now on."""
        self._bounds.active = False

    @property
    def boundary(self) -> StepBoundary | None:
        """What the steps are counted by; None: by nothing yet."""
        return self._bounds.record

    # -- attaching

    def attach(self) -> None:
        """Attach the hooks."""
        patches = self._patches
        self._watch_loaders()
        patches.wrap(_BaseDataLoaderIter, "__next__", self._timed_fetch)
        patches.wrap(torch.autograd, "backward", self._timed_backward)
        patches.wrap(torch.autograd, "grad", self._timed_grad)
        patches.wrap(torch.amp.GradScaler, "step", self._scaler_steps.timed)
        before_optimizer, after_optimizer = self._timed_optimizers()
        patches.add("torch.optim: step pre-hook", register_optimizer_step_pre_hook(before_optimizer).remove)
        patches.add("torch.optim: step post-hook", register_optimizer_step_post_hook(after_optimizer).remove)
        self._roots.attach()
        loop_rounds.listen(self._at_round)
        self._clock.knows("backward", "optimizer")

    def detach(self) -> None:
        """Undo all patches."""
        super().detach()
        self._roots.detach()
        loop_rounds.leave()

    def look_again(self) -> None:
        """See which modules are called after the first steps, too."""
        self._roots.look_again()

    def _trains_here(self) -> bool:
        """Whether this thread trains: the first one that calls a backward or an optimizer does, until it ends."""
        if self._thread == -1 or self._engines:
            return False
        if self._bounds.trains and any(thread.ident == self._thread for thread in threading.enumerate()):
            return False
        self._thread = get_ident()
        self._on_thread(self._thread)
        if self._bounds.active:
            self._clock.start()
        return True

    def _forget_broken_optimizer(self) -> None:
        """Close an optimizer step that raised (torch calls no post hook then); none can be open where it is called."""
        if self._optimizing and not self.closures.running:
            self._optimizing = 0
            self._clock.leave("optimizer")

    # -- data

    def _timed_fetch(self, fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        clock, bounds = self._clock, self._bounds
        enter, leave = clock.meter("data")

        @functools.wraps(fetch)
        def __next__(iterator: Any) -> Any:
            if self._fetches or get_ident() != self._thread or not clock.running:
                # Another thread's, or a loader that reads from a loader: the time belongs to the outer fetch.
                return fetch(iterator)
            if self._optimizing:
                self._forget_broken_optimizer()
            if (
                bounds.stepped
                and bounds.at_fetch
                and self._training() is iterator
                and bounds.active
                and not clock.iterating
            ):
                # Most fetches: the next batch of the loader that trains, after an optimizer's step.
                if clock.validating:
                    clock.validation(False)
                if bounds.repeats:
                    bounds.repeats.clear()
                bounds.stepped = False
                clock.close_with_fetch()
                training = True
            else:
                training = self._before_fetch(iterator)
                if training:
                    enter()
            self._fetches = 1
            try:
                batch = fetch(iterator)
                if training:
                    self._take(iterator, batch)
                return batch
            except StopIteration:
                bounds.exhausted = True
                self._training = lambda: None
                if training:
                    self._on_epoch_end()
                raise
            finally:
                self._fetches = 0
                if training:
                    leave()

        return __next__

    def _before_fetch(self, iterator: Any) -> bool:
        """Decide what the fetch is for, and close the step if it ends here; returns whether it is for training."""
        key = self._seen.identify(iterator)
        if self._clock.fetching:
            # steps(loader) waits for this loader: it has the boundary and the time.
            self._take_role(key, "train")
            self._seen.describe(key, iterator, "train")
            self._seen.count(iterator)
            return True
        bounds = self._bounds
        # A loop that does nothing with its batches only collects them.
        collected = self._clock.idle_ns < COLLECTED_NS
        role = self._loaders.get(key)
        doubtful = collected and key == self._doubted
        if key == self._doubted and self._doubted_since is not None and not collected:
            # A second batch with no backward since the first: evaluation with gradients left on.
            role = self._take_role(key, "validation")
            self._judged = key
            if bounds.has_loader or self._optimizers:
                self._clock.move_to_validation(self._doubted_since)
        self._doubted = self._doubted_since = None
        if role is None and not torch.is_grad_enabled():
            role = self._take_role(key, "validation")
        elif role is None:
            # Where nothing has stepped yet, the first loader of all may be an evaluation's too.
            doubtful = bounds.has_loader or (bounds.active and not self._optimizers)
            role = self._take_role(key, "train")
        self._seen.describe(key, iterator, role)
        if role == "train":
            self._clock.validation(False)
            bounds.before_fetch()
            if not self._clock.active and self._clock.step_num == 0:
                # Everything before the first fetch is set-up, not a step.
                self._clock.start()
            self._seen.count(iterator)
            self._training = (lambda: None) if doubtful else weakref.ref(iterator)
            if doubtful:
                # A new loader each epoch, or an evaluation without no_grad: its next fetch decides.
                self._doubted, self._doubted_since = key, self._clock.times()
            return True
        if torch.is_grad_enabled():
            self._on_evaluation(bounds.evaluating or self._clock.validating)
        if self._optimizers or bounds.has_loader:
            self._clock.validation(True)
            return False
        # The program does not train: each batch of the evaluation is a step.
        if not (collected and bounds.evaluating):
            bounds.before_evaluation()
        self._seen.count(iterator)
        return True

    def _resume_training(self) -> None:
        """A backward follows a batch that counted as an evaluation's, or is doubtful: its loader trains."""
        self._doubted = self._doubted_since = None
        key, self._judged = self._judged, None
        if key is not None and (self._bounds.evaluating or self._clock.validating):
            self._take_role(key, "train")
            self._bounds.evaluating = False

    def _take_role(self, key: int, role: Mode) -> Mode:
        self._loaders[key] = role
        self._bounds.set_loader("train" in self._loaders.values())
        return role

    # -- calls of modules

    def _before_call(self, module: Any, inputs: Any) -> None:
        if outside := self._is_outside():
            self._bounds.before_call(module, inputs)
        if outside or (self.closures.running and self._is_outside(in_closure=True)):
            self.on_call(module, inputs)  # Lightning trains in the closure of the optimizer's step
        if outside and (self._clock.validating or self._bounds.evaluating) and torch.is_grad_enabled():
            self.on_graph(module)

    @own_work
    def _at_round(self, loop: loop_rounds.CountedLoop) -> None:
        if get_ident() == self._thread and self._is_outside():
            self._bounds.before_round(loop)

    def _is_outside(self, in_closure: bool = False) -> bool:
        """Whether a step runs, and neither a fetch, a backward nor an optimizer, other than ``in_closure`` of one."""
        busy = self._fetches or self._engines or is_tracing() or (self._optimizing and not in_closure)
        return self._clock.running and not busy

    # -- backward

    def _timed_backward(self, backward: Callable[..., None]) -> Callable[..., None]:
        clock = self._clock
        enter, leave = clock.meter("backward")

        def begin() -> bool:
            if self._engines or not clock.running or (get_ident() != self._thread and not self._trains_here()):
                return False
            if self._optimizing:
                self._forget_broken_optimizer()
            if self._judged is not None or self._doubted is not None:
                self._resume_training()
            if clock.validating:
                clock.validation(False)
            self._engines = 1
            enter()
            return True

        def end(whole: bool) -> None:
            self._engines = 0
            leave()
            if whole:
                (self._bounds.end_backward if self._optimizers else self._bounds.after_backward)()

        def run_backward(*args: Any, **kwargs: Any) -> None:
            timed, whole = not torch.compiler.is_compiling() and begin(), False
            try:
                backward(*args, **kwargs)
                whole = True
            finally:
                if timed:
                    end(whole)

        dynamo.skip(run_backward.__code__)
        dynamo.leave_alone(begin.__code__, end.__code__)
        return functools.wraps(backward)(run_backward)

    def _timed_grad(self, grad: Callable[..., Any]) -> Callable[..., Any]:
        """``torch.autograd.grad``: an evaluation may call it too, so it decides less than a backward."""
        clock = self._clock
        enter, leave = clock.meter("backward")

        @functools.wraps(grad)
        def run_grad(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return grad(*args, **kwargs)
            if self._engines or get_ident() != self._thread or not clock.running:
                return grad(*args, **kwargs)
            self._engines = 1
            enter()
            try:
                return grad(*args, **kwargs)
            finally:
                self._engines = 0
                leave()
                if self._clock.validating or self._bounds.evaluating:
                    self.on_grad()
                # A gradient with a graph is differentiated again: it is part of a loss.
                with_graph = args[4] if len(args) > 4 else kwargs.get("create_graph")
                if not self._optimizers and not with_graph:
                    self._bounds.after_grad(args[0] if args else kwargs.get("outputs"))

        return run_grad

    # -- optimizer

    def _timed_optimizers(self) -> tuple[Callable[..., Any], Callable[..., None]]:
        clock, bounds = self._clock, self._bounds
        enter, leave = clock.meter("optimizer")

        def before(optimizer: Any, args: Any, kwargs: Any) -> Any:
            if not clock.running or (get_ident() != self._thread and not self._trains_here()):
                return None
            if self._optimizing or clock.validating or id(optimizer) not in self._optimizers:
                self._optimizer_begins(optimizer)
                if self._optimizing > 1:
                    return None
            else:
                self._optimizing = 1
                enter()
            # torch passes step()'s own arguments, the optimizer itself first.
            return None if len(args) == 1 and not kwargs else self.closures.timed(args, kwargs)

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            if get_ident() != self._thread or not clock.running:
                return
            if self._optimizing == 1 and bounds.at_fetch and not (bounds.stepped and bounds.active):
                self._optimizing = 0
                leave()
                bounds.stepped = True
            else:
                self._optimizer_ends(optimizer)

        dynamo.leave_out(before, after)
        return before, after

    def _is_scaler_step(self) -> bool:
        return get_ident() == self._thread and self._clock.running and not self._optimizing

    def _optimizer_begins(self, optimizer: Any) -> None:
        self._optimizing += 1
        if self._optimizing > 1:
            return
        if self._clock.validating:
            self._clock.validation(False)
        if id(optimizer) not in self._optimizers:
            self._add_optimizer(optimizer)
        self._clock.enter("optimizer")

    def _optimizer_ends(self, optimizer: Any) -> None:
        if not self._optimizing:
            return
        self._optimizing -= 1
        if self._optimizing:
            return
        self._clock.leave("optimizer")
        number = self._optimizers.get(id(optimizer), id(optimizer))
        (self._bounds.after_optimizer_inside if self._engines else self._bounds.after_optimizer)(number)

    def finish(self) -> None:
        """Close the last step if it is complete; discard it if it only waited."""
        self._clock.validation(False)
        self._bounds.finish()
        self._clock.drop()
