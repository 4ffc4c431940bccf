"""Turns the actions that a Lightning Trainer announces to its profiler into steps and phases.

A Trainer announces everything it does as named actions, including the fetch and every hook:
``trainer.profiler.profile("[Strategy]SingleDeviceStrategy.backward")``, or ``start`` and ``stop`` with that name.
`TrainerObserver` sees them through attributes of that one profiler, which works as before.

Hooks of a callback would not be enough: none of them encloses the fetch, and torch's optimizer hooks enclose forward
and backward here, because Lightning runs both inside a closure.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import perfkit
from perfkit import Phase
from perfkit._patches import Patches
from perfkit.integrations._lightning_actions import (
    EVALUATION_END,
    EVALUATION_FETCH,
    OWN,
    TRAINING_FETCH,
    is_empty_hook,
    is_lightnings,
    phase_of,
)
from perfkit.integrations._recording_callback import declare_phases, warn
from perfkit.integrations._step_means import StepMeans

#: What `perfkit.profile.step` takes.
Mode = Literal["train", "validation", "test", "predict"]

#: Function of a Trainer that does not fit -> the mode of its steps.
_MODES: dict[str, Mode] = {"validate": "validation", "test": "test", "predict": "predict"}

#: A Trainer has hundreds of actions; users may name one after each batch, and those must not fill the memory.
_MAX_ACTIONS = 10_000


class _Action:
    """The action of an announced name, as a context manager.

    One object serves every use of the name, including nested ones: open actions are on the observer's stack.
    """

    __slots__ = ("__enter__", "__exit__", "after", "before", "name", "phase")

    def __init__(self, observer: TrainerObserver, name: str, phase: Phase | None) -> None:
        self.name = name
        self.phase = phase
        #: Called before the action's time begins, and after it has ended.
        self.before: Callable[[], object] | None = None
        self.after: Callable[[], object] | None = None
        # ``with`` calls these directly, twenty times per step.
        passes_through = observer.users_start is None
        self.__enter__ = partial(observer.begin if passes_through else observer.begin_around, self)
        self.__exit__ = partial(observer.end if passes_through else observer.end_around, self)


class _IgnoredAction:
    """An action that perfkit ignores, of a Trainer without a profiler of its own: most actions of a step are.

    ``with`` calls methods of strings here, which cost half as much as Python functions: one returns the name, the other
    takes any arguments and returns a false value, so that exceptions pass through.
    """

    __slots__ = ("__enter__", "__exit__")

    def __init__(self, name: str) -> None:
        self.__enter__ = name.__str__
        self.__exit__ = "".format


class TrainerObserver:
    """Observes a Trainer's actions and its loggers, and reports steps and phases to a ``perfkit.profile``.

    Actions nest, and time belongs to the innermost one. Two phases have no action of their own and last from one hook
    of our callback to another: the whole validation, and a backward under manual optimization.
    """

    def __init__(
        self, trainer: Any, module: Any, profile: perfkit.profile, *, training: bool, log: bool, phases: bool
    ) -> None:
        self._trainer = trainer
        self._module = module
        self._profile = profile
        self._training = training
        self._mode: Mode = "train" if training else _MODES[trainer.state.fn]
        self._alive = True
        self._manual = phases and training and not getattr(module, "automatic_optimization", True)
        self._actions: dict[str, _Action | _IgnoredAction] = {}
        self._open, self._close = profile.begin, profile.end
        #: Open actions, each with its enclosing phase; and the current phase.
        self._stack: list[tuple[_Action, Phase]] = []
        self._phase: Phase = "other"
        self._validating = self._inside = self._batch_done = False
        self._means = StepMeans() if log and training and trainer.loggers and trainer.log_every_n_steps else None
        self._steps_to_log = trainer.log_every_n_steps
        self._fetch_began = 0
        self._with_phases = phases
        if phases:
            declare_phases(profile)

        profiler = trainer.profiler
        replaced = vars(profiler).keys() & {"start", "stop"}
        passes_through = type(profiler).__name__ == "PassThroughProfiler" and not replaced
        #: The profiler's own methods; None where they do nothing.
        self.users_start: Callable[[str], None] | None = None if passes_through else profiler.start
        self.users_stop: Callable[[str], None] | None = None if passes_through else profiler.stop
        self._backward = _Action(self, "perfkit: backward", "backward")
        self._validation = _Action(self, "perfkit: validation", "validation")
        self._patches = Patches()
        self._attach(trainer)

    def _attach(self, trainer: Any) -> None:
        profiler, wrap = trainer.profiler, self._patches.wrap
        wrap(profiler, "start", self._starting)
        wrap(profiler, "stop", self._stopping)
        if "profile" not in vars(profiler) and is_lightnings(profiler, "profile", ".profilers.profiler"):
            # Lightning's own profile() calls start and stop in a generator, which for the fifty actions of a step takes
            # longer than everything that perfkit does. A user's profile() calls start and stop, wrapped above.
            wrap(profiler, "profile", lambda original: self._announcing())
        if not self._with_phases:
            return
        for logger in trainer.loggers:
            # Lightning announces no action for these two, and writing metrics can be slow.
            wrap(logger, "log_metrics", self._as_logging)
            wrap(logger, "save", self._as_logging)
        # Only newer versions of Lightning announce it.
        wrap(trainer, "save_checkpoint", self._as_checkpoint)

    def remove(self) -> None:
        """Undo all patches."""
        self._alive = False
        self._patches.undo()

    # -- called by the Trainer

    def _announcing(self) -> Callable[[str], _Action | _IgnoredAction]:
        # Thirty names are announced per step, so everything that can be bound once is.
        known, learn = self._actions, self._learn

        def announced(action_name: str) -> _Action | _IgnoredAction:
            try:
                return known[action_name]
            except KeyError:
                return learn(action_name)

        return announced

    def _starting(self, start: Callable[..., Any]) -> Callable[..., Any]:
        announced, begin = self._announcing(), self.begin

        def started(action_name: str) -> None:
            action = announced(action_name)
            if type(action) is _Action:
                begin(action)
            start(action_name)

        return started

    def _stopping(self, stop: Callable[..., Any]) -> Callable[..., Any]:
        announced, end = self._announcing(), self.end

        def stopped(action_name: str) -> None:
            stop(action_name)
            action = announced(action_name)
            if type(action) is _Action:
                end(action)

        return stopped

    def _as_logging(self, write: Callable[..., Any]) -> Callable[..., Any]:
        return self._as(_Action(self, "perfkit: logger", "logging"), write)

    def _as_checkpoint(self, write: Callable[..., Any]) -> Callable[..., Any]:
        return self._as(_Action(self, "perfkit: checkpoint", "checkpoint"), write)

    def _as(self, action: _Action, write: Callable[..., Any]) -> Callable[..., Any]:
        def written(*args: Any, **kwargs: Any) -> Any:
            self.begin(action)
            try:
                return write(*args, **kwargs)
            finally:
                self.end(action)

        return written

    # -- the meaning of an action

    def _learn(self, name: str) -> _Action | _IgnoredAction:
        action = _Action(self, name, phase_of(name))
        self._set_callbacks(action)
        if not self._with_phases and action.phase != "data":
            action.phase = None
        learned: _Action | _IgnoredAction = action
        has_phase = action.phase is not None and not is_empty_hook(name, self._trainer, self._module)
        if action.before is None and action.after is None and not has_phase:
            action.phase = None
            if self.users_start is None:
                learned = _IgnoredAction(name)
        if len(self._actions) < _MAX_ACTIONS:
            self._actions[name] = learned
        return learned

    def _set_callbacks(self, action: _Action) -> None:
        name, training = action.name, self._training
        if (TRAINING_FETCH if training else EVALUATION_FETCH).search(name):
            action.before = self._begin_step
            if self._means is not None:
                action.after = self._fetched
        elif training and name == "run_training_epoch":
            action.after = self._end_loop
        elif not training and EVALUATION_END.search(name):
            action.before = self._end_loop
        elif not name.startswith(OWN):
            return
        elif name in tuple(f"{OWN}on_{kind}_batch_end" for kind in ("train", "validation", "test", "predict")):
            # A batch of a validation inside training does not end a step.
            if training == name.endswith(".on_train_batch_end"):
                action.after = self._end_batch
        elif self._manual and name == f"{OWN}on_before_backward":
            action.after = lambda: self.begin(self._backward)
        elif self._manual and name == f"{OWN}on_after_backward":
            action.before = lambda: self._pop(self._backward)
        elif self._with_phases and training and name == f"{OWN}on_validation_start":
            action.after = self._begin_validation
        elif self._with_phases and training and name == f"{OWN}on_validation_end":
            action.before = lambda: self._pop(self._validation)
        if name.startswith(OWN):
            action.phase = None  # perfkit's own hooks are not a phase of the step

    # -- phases

    def begin(self, action: _Action) -> str:
        """An action begins; returns its name, as ``with`` does."""
        if self._alive:
            try:
                if action.before is not None:
                    action.before()
                phase = action.phase
                if phase is not None:
                    around = self._phase
                    self._stack.append((action, around))
                    if phase != around and not self._validating:
                        self._open(phase)
                        self._phase = phase
            except Exception as error:  # noqa: BLE001 - an error of perfkit must not end training
                self._switch_off(error)
        return action.name

    def begin_around(self, action: _Action) -> str:
        """An action begins, for perfkit and then for the user's profiler."""
        self.begin(action)
        if self.users_start is not None:
            try:
                self.users_start(action.name)
            except BaseException:
                self.end_around(action)
                raise
        return action.name

    def end_around(self, action: _Action, *_: object) -> None:
        """An action has ended, for the user's profiler and then for perfkit."""
        try:
            if self.users_stop is not None:
                self.users_stop(action.name)
        finally:
            self.end(action)

    def end(self, action: _Action, *_: object) -> None:
        """An action has ended, and so has everything inside it that is still open; ignored if it is not open."""
        if self._alive:
            try:
                if action.phase is None:
                    pass
                elif self._stack and self._stack[-1][0] is action:
                    around = self._stack.pop()[1]
                    if around != self._phase:
                        self._close(self._phase)
                        self._phase = around
                else:
                    self._pop(action)
                if action.after is not None:
                    action.after()
            except Exception as error:  # noqa: BLE001 - an error of perfkit must not end training
                self._switch_off(error)

    def _pop(self, action: _Action) -> None:
        """Close an action and everything inside it that has not ended."""
        stack = self._stack
        while any(entry[0] is action for entry in stack):
            top, around = stack.pop()
            if top is self._validation:
                self._validating = False
            if around != self._phase:
                self._close(self._phase)
                self._phase = around

    def _begin_validation(self) -> None:
        self.begin(self._validation)
        self._validating = True

    # -- steps

    def _begin_step(self) -> None:
        """A fetch begins. It ends the step before it, if its batch is done, and starts the next one."""
        if self._inside and not self._batch_done:
            # on_train_batch_start skipped the batch, or this is a second fetch of the same step.
            return
        # Before step(), which ends the program if stop_after is reached: the step must not end twice.
        self._inside, self._batch_done = True, False
        means = self._means
        if means is None:
            self._profile.step(mode=self._mode)
        else:
            means.end_step()
            self._profile.step(mode=self._mode)
            self._log_means(means)
            means.begin_step()
            self._fetch_began = time.perf_counter_ns()
        # "other" encloses all phases; without it the clock would count the time after a fetch as forward.
        self._open("other")
        if self._stack:  # an action encloses the whole epoch
            around: Phase = "other"
            for phase in [*(phase for _, phase in self._stack), self._phase]:
                if phase != around:
                    self._open(phase)
                    around = phase

    def _fetched(self) -> None:
        if self._means is not None:
            self._means.waited(time.perf_counter_ns() - self._fetch_began)

    def _end_batch(self) -> None:
        self._batch_done = True

    def _end_loop(self) -> None:
        """The loop over the batches has ended, and with it the last step; the next fetch begins another."""
        finished = self._batch_done
        self._inside = self._batch_done = False
        if finished:
            self._profile.step(mode=self._mode)
        if self._means is not None:
            self._means.end_step()
        self._profile.drop_step()

    def _log_means(self, means: StepMeans) -> None:
        """Log the means every ``log_every_n_steps`` steps, outside of all steps, at the Trainer's own step number."""
        self._steps_to_log -= 1
        if self._steps_to_log >= 0:
            return
        self._steps_to_log = self._trainer.log_every_n_steps - 1
        self._profile.drop_step()
        try:
            metrics, at = means.take(), _logged_step(self._trainer)
            for logger in self._trainer.loggers if metrics else ():
                logger.log_metrics(metrics, step=at)
        except Exception as error:  # noqa: BLE001 - an error of perfkit must not end training
            self._means = None
            why = f"{type(error).__name__}: {error}"
            warn(f"step times are no longer logged to the Trainer's loggers: {why} (training continues)")
        self._profile.step()

    def _switch_off(self, error: Exception) -> None:
        self._alive = False
        warn(f"phases are no longer recorded: {type(error).__name__}: {error} (training continues)")


def _logged_step(trainer: Any) -> int:
    """The step number at which the Trainer logs its own metrics: the batches that stepped, which is not public."""
    at = getattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped", None)
    return int(trainer.global_step if at is None else at)
