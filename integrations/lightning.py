"""``ProfilerCallback``: a perfkit run of what a Lightning Trainer does.

    Trainer(callbacks=[ProfilerCallback("runs/mnist")])

What a Trainer does it announces to its profiler as named actions, the fetch and every hook included:
``trainer.profiler.start("[Strategy]SingleDeviceStrategy.backward")``. The callback listens to these calls
beside the Trainer's own profiler, which goes on as it is, and turns actions into the phases of a step
(`phase_of`). Hooks of a callback alone would not do: none of them brackets the fetch, and torch's
optimizer hooks fire around forward and backward here, because Lightning runs both inside a closure.

Lightning comes under two names, ``lightning.pytorch`` and ``pytorch_lightning``, with separate classes.
``ProfilerCallback`` is therefore built when it is first asked for, on the ``Callback`` of the one that
is in use, or on both; everything else in this module is free of either.
"""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, get_args

import perfkit
from perfkit import MissingDependency, PerfkitWarning, Phase, UsageError

__all__ = ["ProfilerCallback", "phase_of"]

#: The callback's name inside the Trainer, also where the class itself has another (see `__getattr__`).
_STATE_KEY = "ProfilerCallback"
_OWN = f"[Callback]{_STATE_KEY}."

#: Actions are no documented interface, but have been these from Lightning 2.0 to 2.6; a test tells when
#: one of them moves. The first pattern that is found in the action decides.
_PATTERNS: tuple[tuple[str, Phase], ...] = (
    (r"\.(train_dataloader|val|test|predict)_next$", "data"),
    (r"^\[Strategy\].*\.batch_to_device$", "transfer"),
    (r"^\[LightningModule\].*\.(on_before_batch_transfer|transfer_batch_to_device)$", "transfer"),
    (r"^\[LightningModule\].*\.on_after_batch_transfer$", "transfer"),
    (r"^\[Strategy\].*\.training_step$", "forward"),
    (r"^\[Strategy\].*\.(validation|test|predict)_step$", "validation"),
    (r"^\[Strategy\].*\.backward$", "backward"),
    # Manual optimization announces the bare name, once per optimizer.
    (r"^optimizer_step$", "optimizer"),
    (r"^\[LightningModule\].*\.(optimizer_step|configure_gradient_clipping|lr_scheduler_step)$", "optimizer"),
    (r"^\[LightningModule\].*\.(optimizer_zero_grad|on_before_zero_grad)$", "optimizer"),
    (r"^save_checkpoint$|\.on_save_checkpoint$", "checkpoint"),
    (r"^\[Logger\]", "logging"),
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


#: A Trainer has hundreds of actions; users' own may be named after each batch, and must not pile up.
_MOST_ACTIONS = 10_000

#: Names on the stack of what no action stands for; no action is called so.
_BOTTOM, _BACKWARD, _VALIDATION = "perfkit: bottom", "perfkit: backward", "perfkit: validation"


def phase_of(action: str) -> Phase | None:
    """The phase that an action of a Trainer counts as.

    None: the phase it happens in. Such are "run_training_batch", and actions that users announce themselves.
    """
    return next((phase for pattern, phase in _PATTERNS if re.search(pattern, action)), None)


class _Action:
    """What one action string means: its phase, and what else happens when it starts or has stopped."""

    __slots__ = ("at_start", "at_stop", "phase")

    def __init__(self, phase: Phase | None) -> None:
        self.phase = phase
        self.at_start: Callable[[], None] | None = None
        self.at_stop: Callable[[], None] | None = None


class _ActionPhases:
    """Turns the stream of a Trainer's actions into steps and phases of a ``perfkit.profile``.

    Actions nest, and each moment belongs to the innermost one. Two phases have no action of their own and
    are opened between two hooks of our callback instead: the whole validation, and a backward under
    manual optimization.
    """

    def __init__(self, profile: perfkit.profile, *, training: bool) -> None:
        self._profile = profile
        self._training = training
        self._actions: dict[str, _Action] = {}
        #: (action, phase, whether the phase was opened for it); an action inside one of the same phase needs none.
        self._stack: list[tuple[str, Phase, bool]] = [(_BOTTOM, "other", True)]
        self._validating = False
        self._inside = False
        self._batch_done = False
        # A Trainer can tell all phases: what does not happen in a step took no time, which is known.
        profile.step()
        for phase in _TOLD:
            profile.begin(phase)
            profile.end(phase)
        profile.drop_step()

    def start(self, name: str) -> None:
        """An action begins."""
        action = self._actions.get(name) or self._learn(name)
        if action.at_start is not None:
            action.at_start()
        self._push(name, action.phase)

    def stop(self, name: str) -> None:
        """An action has ended, and with it all that is still open inside; an unknown one is ignored."""
        self._pop(name)
        action = self._actions.get(name) or self._learn(name)
        if action.at_stop is not None:
            action.at_stop()

    def _learn(self, name: str) -> _Action:
        action = _Action(phase_of(name))
        if len(self._actions) < _MOST_ACTIONS:
            self._actions[name] = action
        if (_TRAINING_FETCH if self._training else _EVALUATION_FETCH).search(name):
            action.at_start = self._begin_step
        elif self._training and name == "run_training_epoch":
            action.at_stop = self._end_loop
        elif not self._training and _EVALUATION_END.search(name):
            action.at_start = self._end_loop
        elif name in tuple(f"{_OWN}on_{kind}_batch_end" for kind in ("train", "validation", "test", "predict")):
            # Batches of a validation inside training end no step.
            if self._training == name.endswith(".on_train_batch_end"):
                action.at_stop = self._end_batch
        elif name == f"{_OWN}on_before_backward":
            action.at_stop = lambda: self._push(_BACKWARD, "backward")
        elif name == f"{_OWN}on_after_backward":
            action.at_start = lambda: self._pop(_BACKWARD)
        elif self._training and name == f"{_OWN}on_validation_start":
            action.at_stop = self._begin_validation
        elif self._training and name == f"{_OWN}on_validation_end":
            action.at_start = self._end_validation
        return action

    # -- phases

    def _push(self, name: str, phase: Phase | None) -> None:
        around = self._stack[-1][1]
        if phase is None or self._validating:
            phase = around
        opened = phase != around
        if opened:
            self._profile.begin(phase)
        self._stack.append((name, phase, opened))

    def _pop(self, name: str) -> None:
        if self._stack[-1][0] != name and not any(entry[0] == name for entry in self._stack):
            return
        while True:
            top, phase, opened = self._stack.pop()
            if opened:
                self._profile.end(phase)
            if top == _VALIDATION:
                self._validating = False
            if top == name:
                return

    def _begin_validation(self) -> None:
        self._push(_VALIDATION, "validation")
        self._validating = True

    def _end_validation(self) -> None:
        self._pop(_VALIDATION)

    # -- steps

    def _begin_step(self) -> None:
        """A fetch begins: the step before it is over, if its batch was; its own starts here."""
        if self._inside and not self._batch_done:
            # on_train_batch_start said skip, or the fetch is a second one of the same step.
            return
        # Before step(), which ends the program where stop_after is reached: the step must not end twice.
        self._inside, self._batch_done = True, False
        self._profile.step()
        for _, phase, opened in self._stack:
            if opened:
                self._profile.begin(phase)

    def _end_batch(self) -> None:
        self._batch_done = True

    def _end_loop(self) -> None:
        """The loop over the batches has ended: its last step ends here, and no other begins until the next fetch."""
        finished = self._batch_done
        self._inside = self._batch_done = False
        if finished:
            self._profile.step()
        self._profile.drop_step()


class _Listener:
    """Hears a Trainer's actions and its loggers' work through instance attributes; `remove` puts all back."""

    def __init__(self, trainer: Any, phases: _ActionPhases) -> None:
        self._phases: _ActionPhases | None = phases
        self._undo: list[Callable[[], None]] = []
        self._wrap(trainer.profiler, "start", self._starting)
        self._wrap(trainer.profiler, "stop", self._stopping)
        for logger in trainer.loggers:
            # Lightning announces no action for these two, and writing metrics can take long.
            self._wrap(logger, "log_metrics", self._logging)
            self._wrap(logger, "save", self._logging)

    def _wrap(self, owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        before = vars(owner).get(name)
        replacement = around(getattr(owner, name))
        setattr(owner, name, replacement)

        def undo() -> None:
            # Somebody who wrapped it after us keeps the wrapper; ours below it then only calls through.
            if vars(owner).get(name) is replacement:
                if before is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)

        self._undo.append(undo)

    def _starting(self, start: Callable[..., Any]) -> Callable[..., Any]:
        def started(action_name: str) -> None:
            self._start(action_name)
            start(action_name)

        return started

    def _stopping(self, stop: Callable[..., Any]) -> Callable[..., Any]:
        def stopped(action_name: str) -> None:
            stop(action_name)
            self._stop(action_name)

        return stopped

    def _logging(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def logged(*args: Any, **kwargs: Any) -> Any:
            self._start("[Logger]")
            try:
                return write(*args, **kwargs)
            finally:
                self._stop("[Logger]")

        return logged

    def _start(self, action: str) -> None:
        if self._phases is not None:
            try:
                self._phases.start(action)
            except Exception as error:  # noqa: BLE001 - nothing of perfkit's may end training
                self._give_up(error)

    def _stop(self, action: str) -> None:
        if self._phases is not None:
            try:
                self._phases.stop(action)
            except Exception as error:  # noqa: BLE001 - nothing of perfkit's may end training
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._phases = None
        _warn(f"phases are not told any more: {type(error).__name__}: {error} (training goes on)")

    def remove(self) -> None:
        """Put everything back."""
        self._phases = None
        while self._undo:
            self._undo.pop()()


class _Recording:
    """Records what a Trainer does into a run folder, and prints the verdict at its end.

    Args:
        run: Folder to record into; default ``runs/<script>-<date>-<time>``.
        options: Every other option of `perfkit.profile`.

    Raises:
        UsageError: an option that cannot be, or, from the Trainer's setup, two of these in one Trainer.
        MissingDependency: neither ``lightning`` nor ``pytorch-lightning`` is installed.
    """

    def __init__(self, run: Any = None, **options: Any) -> None:
        super().__init__()
        # Made once to have wrong options told here, where they are written, and not when training begins.
        perfkit.profile(run, hooks=False, **options)
        self._run = run
        self._options = options
        #: The profile of the fit (or validate, test, predict) that runs or ran last: its folder, its diagnosis.
        self.profile: perfkit.profile | None = None
        self._listener: _Listener | None = None

    @property
    def state_key(self) -> str:
        """The callback's name in checkpoints and actions, the same under both names of Lightning."""
        return _STATE_KEY

    def __getstate__(self) -> dict[str, Any]:
        # A profile is of one process; a spawned child makes its own.
        return {**vars(self), "profile": None, "_listener": None}

    # -- what the Trainer calls

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse to be there twice."""
        count = sum(isinstance(callback, _Recording) for callback in trainer.callbacks)
        if count > 1:
            raise UsageError(f"a Trainer takes one ProfilerCallback, this one has {count}: leave {count - 1} out")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to record a fit; its sanity check lies before."""
        self._begin(trainer, training=True)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to record ``Trainer.validate``; a validation inside ``fit`` is recorded already."""
        if trainer.state.fn == "validate":
            self._begin(trainer, training=False)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to record ``Trainer.test``."""
        self._begin(trainer, training=False)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to record ``Trainer.predict``."""
        self._begin(trainer, training=False)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Keep what was recorded; the Trainer calls no other hook after this one."""
        self._end(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the run. Later than on_train_end, so that the progress bar is closed when the verdict is printed."""
        self._end(None)

    # -- the profile

    def _begin(self, trainer: Any, *, training: bool) -> None:
        options = self._options
        if _records_itself(trainer.profiler) and options.get("recorders", ("kineto",)):
            # Two torch profilers cannot run at once: the second one to start, theirs or ours, would raise.
            options = {**options, "recorders": ()}
            _warn("the Trainer has a PyTorchProfiler, so perfkit records no windows of its own; steps are recorded")
        self.profile = perfkit.profile(self._run, hooks=False, **options)
        self.profile.start()
        if self.profile.folder is None:
            return  # PERFKIT_DISABLE=1, or another profile records: it has said so
        self.profile.drop_step()  # the time until the first fetch belongs to no step
        self._listener = _Listener(trainer, _ActionPhases(self.profile, training=training))

    def _end(self, error: BaseException | None) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.remove()
        if self.profile is not None:
            self.profile.stop(error)


def _records_itself(profiler: Any) -> bool:
    return any(kind.__name__ == "PyTorchProfiler" for kind in type(profiler).__mro__)


def _warn(text: str) -> None:
    warnings.warn(f"perfkit: {text}", PerfkitWarning, stacklevel=2)


# -- the class, on the Callback of whichever Lightning is in use

#: Name of each class that can be built -> the namespaces it derives from. The names are fixed, so that a
#: spawned child finds the class it unpickles.
_CLASSES = {
    "_OnLightning": ("lightning.pytorch",),
    "_OnPytorchLightning": ("pytorch_lightning",),
    "_OnBoth": ("lightning.pytorch", "pytorch_lightning"),
}

if TYPE_CHECKING:
    from lightning.pytorch import Callback

    class ProfilerCallback(_Recording, Callback):
        """The class as type checkers see it."""


def __getattr__(name: str) -> Any:
    if name == "ProfilerCallback":
        return _class(_in_use())
    if name in _CLASSES:
        return _class(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _in_use() -> str:
    """Which class fits the program: of the namespaces it has imported, else of those installed."""
    namespaces = _CLASSES["_OnBoth"]
    found = tuple(name for name in namespaces if sys.modules.get(name) is not None) or tuple(
        name for name in namespaces if find_spec(name.partition(".")[0]) is not None
    )
    if not found:
        raise MissingDependency("ProfilerCallback needs Lightning: pip install 'perfkit[lightning]'")
    return next(name for name, bases in _CLASSES.items() if bases == found)


def _class(name: str) -> type:
    if name not in globals():
        bases = tuple(importlib.import_module(namespace).Callback for namespace in _CLASSES[name])
        body = {"__module__": __name__, "__qualname__": name, "__doc__": _Recording.__doc__}
        globals()[name] = type(name, (_Recording, *bases), body)
    built: type = globals()[name]
    return built
