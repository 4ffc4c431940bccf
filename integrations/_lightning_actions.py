"""Turns what a Lightning Trainer announces to its profiler into steps and phases.

What a Trainer does it announces as named actions, the fetch and every hook included:
``trainer.profiler.profile("[Strategy]SingleDeviceStrategy.backward")``, or ``start`` and ``stop`` with that
name. `Listener` hears them through attributes of that one profiler, which goes on as it is.

Hooks of a callback alone would not do: none of them brackets the fetch, and torch's optimizer hooks fire
around forward and backward here, because Lightning runs both inside a closure.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import perfkit
from perfkit import PerfkitWarning, Phase
from perfkit._patches import Patches
from perfkit.integrations._step_means import StepMeans

#: What `perfkit.profile.step` takes.
Mode = Literal["train", "validation", "test", "predict"]

#: The callback's name inside the Trainer, under both names of Lightning.
STATE_KEY = "ProfilerCallback"
_OWN = f"[Callback]{STATE_KEY}."

#: Actions are no documented interface, but have been these from Lightning 2.0 to 2.6; a test tells when
#: one of them moves. The first pattern that is found in the action decides.
_PATTERNS: tuple[tuple[str, Phase], ...] = (
    (r"\.(train_dataloader|val|test|predict)_next$", "data"),
    (r"^\[Strategy\].*\.batch_to_device$", "transfer"),
    (r"^\[Lightning(Data)?Module\].*\.(on_before_batch_transfer|transfer_batch_to_device)$", "transfer"),
    (r"^\[Lightning(Data)?Module\].*\.on_after_batch_transfer$", "transfer"),
    (r"^\[Strategy\].*\.training_step$", "forward"),
    (r"^\[Strategy\].*\.(validation|test|predict)_step$", "validation"),
    (r"^\[Strategy\].*\.backward$", "backward"),
    # Manual optimization announces the bare name, once per optimizer.
    (r"^optimizer_step$", "optimizer"),
    (r"^\[LightningModule\].*\.(optimizer_step|configure_gradient_clipping|lr_scheduler_step)$", "optimizer"),
    (r"^\[LightningModule\].*\.(optimizer_zero_grad|on_before_zero_grad)$", "optimizer"),
    (r"\.on_save_checkpoint$", "checkpoint"),
    (r"^\[Callback\]", "callbacks"),
    # Other hooks of the module, the strategy, the data module.
    (r"^\[", "other"),
)

#: All phases but data and other, which are always told.
_TOLD: tuple[Phase, ...] = tuple(phase for phase in get_args(Phase) if phase not in ("data", "other"))

#: The fetch a step begins with: in training, and where a Trainer only evaluates.
_TRAINING_FETCH = re.compile(r"\.train_dataloader_next$")
_EVALUATION_FETCH = re.compile(r"\.(val|test|predict)_next$")
_EVALUATION_END = re.compile(r"\.on_(validation|test|predict)_epoch_end$")
_HOOK = re.compile(r"^\[(Callback|LightningModule|Strategy)\](.*)\.(\w+)$")

#: Hooks whose own implementation, Lightning's, does the work.
_WORKING_HOOKS = frozenset(
    {
        "transfer_batch_to_device",
        "optimizer_step",
        "optimizer_zero_grad",
        "configure_gradient_clipping",
        "lr_scheduler_step",
        "backward",
    }
)

#: What a Trainer that does not fit is told to do -> the mode of its steps.
_MODES: dict[str, Mode] = {"validate": "validation", "test": "test", "predict": "predict"}

#: A Trainer has hundreds of actions; users' own may be named after each batch, and must not pile up.
_MOST_ACTIONS = 10_000


def phase_of(action: str) -> Phase | None:
    """The phase that an action of a Trainer counts as.

    None: the phase it happens in. Such are "run_training_batch", and actions that users announce themselves.
    """
    return next((phase for pattern, phase in _PATTERNS if re.search(pattern, action)), None)


class _Action:
    """A name announced to the profiler; as a context manager, the action itself.

    One object serves every use of the name, also one inside another: what is open lies on the listener's stack.
    """

    __slots__ = ("__enter__", "__exit__", "after", "before", "name", "phase")

    def __init__(self, listener: Listener, name: str, phase: Phase | None) -> None:
        self.name = name
        self.phase = phase
        #: Called before the action's time begins, and after it has ended.
        self.before: Callable[[], object] | None = None
        self.after: Callable[[], object] | None = None
        # What a ``with`` calls, with nothing between: in a step that is twenty times.
        passes_through = listener.users_start is None
        self.__enter__ = partial(listener.begin if passes_through else listener.begin_around, self)
        self.__exit__ = partial(listener.end if passes_through else listener.end_around, self)


class _Unheard:
    """An action that means nothing to us, of a Trainer whose profiler only passes through: most of a step's are.

    What a ``with`` calls are methods of strings, which are called at half the cost of functions in Python: one gives
    the name, the other takes any arguments and gives what is false, so that an exception passes through.
    """

    __slots__ = ("__enter__", "__exit__")

    def __init__(self, name: str) -> None:
        self.__enter__ = name.__str__
        self.__exit__ = "".format


class Listener:
    """Hears a Trainer's actions and its loggers' work, and tells a ``perfkit.profile`` steps and phases.

    Actions nest, and each moment belongs to the innermost one. Two phases have no action of their own and
    are opened between two hooks of our callback instead: the whole validation, and a backward under
    manual optimization. `remove` puts all back.
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
        self._actions: dict[str, _Action | _Unheard] = {}
        self._open, self._close = profile.begin, profile.end
        #: Open actions, each with the phase around it; and the phase that runs.
        self._stack: list[tuple[_Action, Phase]] = []
        self._phase: Phase = "other"
        self._validating = self._inside = self._batch_done = False
        self._means = StepMeans() if log and training and trainer.loggers and trainer.log_every_n_steps else None
        self._steps_to_log = trainer.log_every_n_steps
        self._fetch_began = 0
        self._tells_phases = phases
        if phases:
            # A Trainer can tell all of them: what does not happen in a step took no time, which is known.
            profile.step()
            for phase in _TOLD:
                profile.begin(phase)
                profile.end(phase)
            profile.drop_step()

        profiler = trainer.profiler
        passes_through = type(profiler).__name__ == "PassThroughProfiler" and not vars(profiler).keys() & {
            "start",
            "stop",
        }
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
        if "profile" not in vars(profiler) and _is_lightnings(profiler, "profile", ".profilers.profiler"):
            # Lightning's own profile() does nothing but start and stop around a generator, which for a step's
            # fifty actions takes longer than all that we do. One that somebody wrote calls start and stop above.
            wrap(profiler, "profile", lambda original: self._announcing())
        if not self._tells_phases:
            return
        for logger in trainer.loggers:
            # Lightning announces no action for these two, and writing metrics can take long.
            wrap(logger, "log_metrics", self._as_logging)
            wrap(logger, "save", self._as_logging)
        # Announced by newer ones only.
        wrap(trainer, "save_checkpoint", self._as_checkpoint)

    def remove(self) -> None:
        """Put everything back."""
        self._alive = False
        self._patches.undo()

    # -- what the Trainer calls

    def _announcing(self) -> Callable[[str], _Action | _Unheard]:
        # In a step, thirty names are announced: nothing is looked up that can be bound once.
        known, learn = self._actions, self._learn

        def announced(action_name: str) -> _Action | _Unheard:
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

    # -- what an action means

    def _learn(self, name: str) -> _Action | _Unheard:
        action = _Action(self, name, phase_of(name))
        self._give_meaning(action)
        if not self._tells_phases and action.phase != "data":
            action.phase = None
        learned: _Action | _Unheard = action
        meaningless = action.before is None and action.after is None and (action.phase is None or self._is_empty(name))
        if meaningless:
            action.phase = None
            if self.users_start is None:
                learned = _Unheard(name)
        if len(self._actions) < _MOST_ACTIONS:
            self._actions[name] = learned
        return learned

    def _give_meaning(self, action: _Action) -> None:
        name, training = action.name, self._training
        if (_TRAINING_FETCH if training else _EVALUATION_FETCH).search(name):
            action.before = self._begin_step
            if self._means is not None:
                action.after = self._fetched
        elif training and name == "run_training_epoch":
            action.after = self._end_loop
        elif not training and _EVALUATION_END.search(name):
            action.before = self._end_loop
        elif not name.startswith(_OWN):
            return
        elif name in tuple(f"{_OWN}on_{kind}_batch_end" for kind in ("train", "validation", "test", "predict")):
            # Batches of a validation inside training end no step.
            if training == name.endswith(".on_train_batch_end"):
                action.after = self._end_batch
        elif self._manual and name == f"{_OWN}on_before_backward":
            action.after = lambda: self.begin(self._backward)
        elif self._manual and name == f"{_OWN}on_after_backward":
            action.before = lambda: self._pop(self._backward)
        elif self._tells_phases and training and name == f"{_OWN}on_validation_start":
            action.after = self._begin_validation
        elif self._tells_phases and training and name == f"{_OWN}on_validation_end":
            action.before = lambda: self._pop(self._validation)
        if name.startswith(_OWN):
            action.phase = None  # our own hooks do nothing in a step

    def _is_empty(self, name: str) -> bool:
        """Whether it is a hook that nobody has written: Lightning announces and calls those all the same."""
        found = _HOOK.match(name)
        if found is None:
            return False
        kind, owner, hook = found.groups()
        if kind == "Strategy":
            return hook.startswith("on_") and _is_lightnings(self._trainer.strategy, hook, ".strategies.")
        if kind == "LightningModule":
            return hook not in _WORKING_HOOKS and _is_lightnings(self._module, hook, ".core.")
        owners = [callback for callback in self._trainer.callbacks if callback.state_key == owner]
        return bool(owners) and all(_is_lightnings(callback, hook, ".callbacks.callback") for callback in owners)

    # -- phases

    def begin(self, action: _Action) -> str:
        """An action begins; its name, which ``with`` gives."""
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
            except Exception as error:  # noqa: BLE001 - nothing of perfkit's may end training
                self._give_up(error)
        return action.name

    def begin_around(self, action: _Action) -> str:
        """An action begins, for us and then for the user's profiler."""
        self.begin(action)
        if self.users_start is not None:
            try:
                self.users_start(action.name)
            except BaseException:
                self.end_around(action)
                raise
        return action.name

    def end_around(self, action: _Action, *_: object) -> None:
        """An action has ended, for the user's profiler and then for us."""
        try:
            if self.users_stop is not None:
                self.users_stop(action.name)
        finally:
            self.end(action)

    def end(self, action: _Action, *_: object) -> None:
        """An action has ended, and with it all that is still open inside; one that is not open is ignored."""
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
            except Exception as error:  # noqa: BLE001 - nothing of perfkit's may end training
                self._give_up(error)

    def _pop(self, action: _Action) -> None:
        """Close an action and all inside it, which somebody began and never ended."""
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
        """A fetch begins: the step before it is over, if its batch was; its own starts here."""
        if self._inside and not self._batch_done:
            # on_train_batch_start said skip, or the fetch is a second one of the same step.
            return
        # Before step(), which ends the program where stop_after is reached: the step must not end twice.
        self._inside, self._batch_done = True, False
        means = self._means
        if means is None:
            self._profile.step(mode=self._mode)
        else:
            means.end_step()
            self._profile.step(mode=self._mode)
            self._tell_loggers(means)
            means.begin_step()
            self._fetch_began = time.perf_counter_ns()
        # Below all lies "other", which a plain loop's clock would take for forward after a fetch.
        self._open("other")
        if self._stack:  # something is announced around the whole epoch
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
        """The loop over the batches has ended: its last step ends here, and no other begins until the next fetch."""
        finished = self._batch_done
        self._inside = self._batch_done = False
        if finished:
            self._profile.step(mode=self._mode)
        if self._means is not None:
            self._means.end_step()
        self._profile.drop_step()

    def _tell_loggers(self, means: StepMeans) -> None:
        """Every ``log_every_n_steps`` steps, and outside of every step: plain floats, at the Trainer's own x."""
        self._steps_to_log -= 1
        if self._steps_to_log >= 0:
            return
        self._steps_to_log = self._trainer.log_every_n_steps - 1
        self._profile.drop_step()
        try:
            metrics, at = means.take(), _logged_step(self._trainer)
            for logger in self._trainer.loggers if metrics else ():
                logger.log_metrics(metrics, step=at)
        except Exception as error:  # noqa: BLE001 - nothing of perfkit's may end training
            self._means = None
            warn(f"no more metrics for the Trainer's loggers: {type(error).__name__}: {error} (training goes on)")
        self._profile.step()

    def _give_up(self, error: Exception) -> None:
        self._alive = False
        warn(f"phases are not told any more: {type(error).__name__}: {error} (training goes on)")


def _logged_step(trainer: Any) -> int:
    """The x under which the Trainer logs its own metrics: batches that stepped, which is no public number."""
    at = getattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped", None)
    return int(trainer.global_step if at is None else at)


def _is_lightnings(instance: Any, method: str, module: str) -> bool:
    """Whether a method is the one that Lightning's own class, of a module with this in its name, has."""
    if method in vars(instance):
        return False
    owner = next((kind for kind in type(instance).__mro__ if method in vars(kind)), None)
    name = f"{owner.__module__}." if owner is not None else ""
    return name.startswith(("lightning.pytorch.", "pytorch_lightning.")) and module in name


def warn(text: str) -> None:
    """Say something beside a training that goes on."""
    warnings.warn(f"perfkit: {text}", PerfkitWarning, stacklevel=3)
