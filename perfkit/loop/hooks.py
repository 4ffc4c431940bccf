"""Feeds the clock from torch, without an edit to the loop: fetch, backward, optimizer.

Three places, all put back by `detach`:

- ``_BaseDataLoaderIter.__next__`` (a class attribute; the name is private and stable, a test tells when
  it moves): every fetch from a DataLoader, whose iterator stays torch's own object;
- ``torch.autograd.backward`` (a module attribute that ``Tensor.backward`` looks up at each call);
- the public global optimizer hooks, and ``GradScaler.step``, which skips the optimizer after an overflow.

Never hooks on modules: global forward hooks cost 46 % of the forward, backward hooks 576 % (measured on
301 modules; they drop torch's fast path for every module).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any

from perfkit.loop.clock import StepClock
from perfkit.run.records import Loader, Mode


class LoopHooks:
    """Splits the steps of a plain loop into phases.

    With ``boundaries``, it also says where a step ends: at the fetch of a training loader after an
    optimizer has stepped (so an accumulated step is one step), or, in a loop without a loader, after
    the optimizer that steps last in the cycle. ``on_optimizer`` is called with each optimizer before
    its first step, ``on_epoch_end`` when a training loader is exhausted.
    """

    def __init__(
        self,
        clock: StepClock,
        *,
        boundaries: bool = True,
        on_optimizer: Callable[[Any], None] = lambda optimizer: None,
        on_epoch_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self.boundaries = boundaries
        self._on_optimizer = on_optimizer
        self._on_epoch_end = on_epoch_end
        self._thread = get_ident()
        self._undo: list[Callable[[], None]] = []
        self._fetches = 0
        self._engines = 0
        self._optimizing = 0
        self._closures = 0
        self._stepped = False
        self._loaders: dict[int, Mode] = {}
        self._kept_alive: list[Any] = []
        self._doubted: int | None = None
        self._doubted_since: list[int] | None = None
        self._evaluating = False
        #: The iterator that trains, weakly: one that the program has left must end its workers.
        self._training: Callable[[], Any] = lambda: None
        self._optimizers: dict[int, Any] = {}
        self._closing: int | None = None
        self._first: int | None = None
        self.loaders: dict[int, Loader] = {}
        #: Samples of the batch last fetched, where the loader says how many that is.
        self.samples: int | None = None

    # -- attaching

    def attach(self) -> None:
        """Install the hooks; torch must be loaded."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        # Any: a type checker rightly minds that methods are assigned to.
        iterators: Any = _BaseDataLoaderIter
        autograd: Any = torch.autograd
        scalers: Any = torch.amp.GradScaler
        self._grad_enabled = torch.is_grad_enabled
        fetch = iterators.__next__
        backward = autograd.backward
        scaler_step = scalers.step

        @functools.wraps(fetch)
        def __next__(iterator: Any) -> Any:
            return self._fetch(iterator, fetch)

        @functools.wraps(backward)
        def run_backward(*args: Any, **kwargs: Any) -> None:
            self._run_backward(backward, args, kwargs)

        @functools.wraps(scaler_step)
        def step(instance: Any, *args: Any, **kwargs: Any) -> Any:
            return self._scaled_step(scaler_step, instance, args, kwargs)

        iterators.__next__ = __next__
        autograd.backward = run_backward
        scalers.step = step
        before = register_optimizer_step_pre_hook(self._before_optimizer)
        after = register_optimizer_step_post_hook(self._after_optimizer)

        def undo() -> None:
            # Only what is still ours: a program that wrapped it after us keeps its wrapper, which calls ours
            # through; ours then does nothing but call the original.
            if iterators.__next__ is __next__:
                iterators.__next__ = fetch
            if autograd.backward is run_backward:
                autograd.backward = backward
            if scalers.step is step:
                scalers.step = scaler_step

        self._undo += [before.remove, after.remove, undo]
        self._clock.knows("backward", "optimizer")

    def detach(self) -> None:
        """Put everything back."""
        self._thread = -1
        while self._undo:
            self._undo.pop()()

    def _mine(self) -> bool:
        return get_ident() == self._thread and self._clock.running

    def _forget_broken_optimizer(self) -> None:
        """Close an optimizer step that raised, for which torch calls no post hook.

        Called where none can be open: at a fetch or a backward outside of a closure.
        """
        if self._optimizing and not self._closures:
            self._optimizing = 0
            self._clock.leave("optimizer")

    # -- data

    def _fetch(self, iterator: Any, fetch: Callable[[Any], Any]) -> Any:
        clock = self._clock
        if self._fetches or get_ident() != self._thread or not clock.running:
            # Another thread's, or a loader that reads from a loader: the outer fetch has the time.
            return fetch(iterator)
        if self._optimizing:
            self._forget_broken_optimizer()
        if self._training() is iterator and self._stepped and self.boundaries and not clock.iterating:
            # Most fetches: the next batch of the loader that trains, after an optimizer's step.
            if clock.validating:
                clock.validation(False)
            self._close()
            training = True
        else:
            training = self._before_fetch(iterator)
        self._fetches += 1
        if training:
            clock.enter("data")
        try:
            return fetch(iterator)
        except StopIteration:
            if training:
                self._on_epoch_end()
            raise
        finally:
            self._fetches -= 1
            if training:
                clock.leave("data")

    def _before_fetch(self, iterator: Any) -> bool:
        """Decide whose fetch it is, close the step where one ends here; whether it is a training fetch."""
        key = self._identify(iterator)
        if self._clock.fetching:
            # steps(loader) is waiting for this loader: the boundary and the wait are its own.
            self._loaders[key] = "train"
            self._describe(key, iterator, "train")
            self._count(iterator)
            return True
        role = self._loaders.get(key)
        if key == self._doubted and self._doubted_since is not None:
            # A second batch with no backward since the first: evaluation with gradients left on.
            role = self._loaders[key] = "validation"
            self._clock.move_to_validation(self._doubted_since)
        self._doubted = self._doubted_since = None
        doubtful = False
        if role is None and not self._grad_enabled():
            role = self._loaders[key] = "validation"
        elif role is None:
            doubtful = "train" in self._loaders.values()
            role = self._loaders[key] = "train"
        self._describe(key, iterator, role)
        if role == "train":
            self._clock.validation(False)
            if self.boundaries and (self._stepped or self._evaluating):
                self._close("train" if self._stepped else "validation")
            elif not self._clock.active and self._clock.step_num == 0:
                # Everything before the first fetch is set-up, not a step.
                self._clock.start()
            self._evaluating = False
            self._count(iterator)
            self._training = (lambda: None) if doubtful else weakref.ref(iterator)
            if doubtful:
                # A new loader each epoch, or an evaluation without no_grad? Its next fetch will tell.
                self._doubted, self._doubted_since = key, self._clock.times()
            return True
        if self._optimizers or "train" in self._loaders.values():
            self._clock.validation(True)
            return False
        # Nothing trains here: each batch of the evaluation is a step of its own.
        if self.boundaries:
            if self._evaluating:
                self._close("validation")
            else:
                self._clock.start()
            self._evaluating = True
        self._count(iterator)
        return True

    def _identify(self, iterator: Any) -> int:
        # The index sampler belongs to the loader and outlives its iterators, one of which is made per epoch.
        owner = getattr(iterator, "_index_sampler", iterator)
        key = id(owner)
        if key not in self._loaders and len(self._kept_alive) < 64:
            self._kept_alive.append(owner)  # so that the id stays this object's
        return key

    def _describe(self, key: int, iterator: Any, role: Mode) -> None:
        if key in self.loaders:
            if self.loaders[key].role == role:
                return
        elif len(self.loaders) >= 16:
            return
        self.loaders[key] = Loader(
            dataset=type(getattr(iterator, "_dataset", None)).__name__,
            batch_size=getattr(getattr(iterator, "_index_sampler", None), "batch_size", None),
            num_workers=int(getattr(iterator, "_num_workers", 0)),
            pin_memory=bool(getattr(iterator, "_pin_memory", False)),
            prefetch_factor=getattr(iterator, "_prefetch_factor", None),
            persistent_workers=bool(getattr(iterator, "_persistent_workers", False)),
            role=role,
        )

    def _count(self, iterator: Any) -> None:
        size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
        self.samples = size if isinstance(size, int) else None

    def _close(self, mode: Mode = "train") -> None:
        self._stepped = False
        self._optimizing = 0
        self._clock.close(mode)

    # -- backward

    def _run_backward(self, backward: Callable[..., Any], args: Any, kwargs: Any) -> None:
        clock = self._clock
        if self._engines or get_ident() != self._thread or not clock.running:
            backward(*args, **kwargs)
            return
        if self._optimizing:
            self._forget_broken_optimizer()
        self._doubted = self._doubted_since = None  # the loader we doubted trains
        if clock.validating:
            clock.validation(False)
        self._engines += 1
        clock.enter("backward")
        try:
            backward(*args, **kwargs)
        finally:
            self._engines -= 1
            clock.leave("backward")

    # -- optimizer

    def _scaled_step(self, step: Callable[..., Any], scaler: Any, args: Any, kwargs: Any) -> Any:
        if not self._mine() or self._optimizing:
            return step(scaler, *args, **kwargs)
        optimizer = args[0] if args else kwargs.get("optimizer")
        self._optimizer_begins(optimizer)
        try:
            return step(scaler, *args, **kwargs)
        finally:
            self._optimizer_ends(optimizer)

    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if not self._mine():
            return None
        self._optimizer_begins(optimizer)
        if self._optimizing > 1:
            return None
        # A closure runs forward and backward inside step(): LBFGS, and every step under Lightning.
        # torch hands over step()'s own arguments, the optimizer itself first.
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._wrap_closure(args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._wrap_closure(kwargs["closure"])}
        return None

    def _wrap_closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(closure)
        def timed() -> Any:
            self._closures += 1
            self._clock.enter("forward")
            try:
                return closure()
            finally:
                self._closures -= 1
                self._clock.leave("forward")

        return timed

    def _after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._mine():
            self._optimizer_ends(optimizer)

    def _optimizer_begins(self, optimizer: Any) -> None:
        self._optimizing += 1
        if self._optimizing > 1:
            return
        if self._clock.validating:
            self._clock.validation(False)
        if id(optimizer) not in self._optimizers and len(self._optimizers) < 64:
            self._optimizers[id(optimizer)] = optimizer
            self._on_optimizer(optimizer)
        self._clock.enter("optimizer")

    def _optimizer_ends(self, optimizer: Any) -> None:
        if not self._optimizing:
            return
        self._optimizing -= 1
        if self._optimizing:
            return
        self._clock.leave("optimizer")
        self._stepped = True
        if self.boundaries and "train" not in self._loaders.values():
            # No loader to tell where a step begins. The step ends with the optimizer that steps last before
            # the first one steps again; until a second one is seen, that is the only one.
            key = id(optimizer)
            if self._first is None:
                self._first = self._closing = key
            elif self._closing == self._first and key != self._first:
                self._closing = key
            if key == self._closing:
                self._close()

    def finish(self) -> None:
        """Close the last step if it did its work; drop it if it only waited."""
        self._clock.validation(False)
        if self.boundaries and self._clock.running:
            if self._stepped:
                self._close()
            elif self._evaluating and self._clock.active:
                self._close("validation")
        self._clock.drop()
