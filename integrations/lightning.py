"""``ProfilerCallback``: a perfkit run of what a Lightning Trainer does.

    Trainer(callbacks=[ProfilerCallback("runs/mnist")])

Lightning comes under two names, ``lightning.pytorch`` and ``pytorch_lightning``, with separate classes.
``ProfilerCallback`` is therefore built when it is first asked for, on the ``Callback`` of the one that
is in use, or on both; everything else here is free of either.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import perfkit
from perfkit import MissingDependency
from perfkit.integrations._lightning_actions import STATE_KEY, warn
from perfkit.integrations._lightning_observer import TrainerObserver

__all__ = ["ProfilerCallback"]

#: The first Lightning that is tested. Older ones announce other actions.
_OLDEST = (2, 2)


class _Recording:
    """Records what a Trainer does into a run folder, and prints the verdict at its end.

    ``fit`` called again, and ``validate``, ``test`` and ``predict``, go on in the same run. An exception or Ctrl-C
    ends the recording with what was recorded until then, and passes through.

    Args:
        run: Folder to record into; default ``runs/<script>-<date>-<time>``.
        log: Give ``perfkit/step_ms`` and ``perfkit/data_ms`` to the Trainer's loggers, means of the last
            ``log_every_n_steps`` steps: plain floats, read from the host's clock alone.
        phases: False tells of a step only the wait for its batch from the rest, for where a fit has microseconds.
        options: Every other option of `perfkit.profile`.

    Raises:
        UsageError: an option that cannot be.
        MissingDependency: neither ``lightning`` nor ``pytorch-lightning`` is installed, or it is too old.
    """

    #: The callback's name in checkpoints and actions, the same under both names of Lightning; asked for at every hook.
    state_key = STATE_KEY

    def __init__(self, run: Any = None, *, log: bool = True, phases: bool = True, **options: Any) -> None:
        super().__init__()
        # Made once to have wrong options told here, where they are written, and not when training begins.
        perfkit.profile(run, hooks=False, **options)
        self._run = run
        self._log = log
        self._phases = phases
        self._options = options
        #: The profile of all that this callback has recorded in this process: its folder, its diagnosis.
        self.profile: perfkit.profile | None = None
        self._observer: TrainerObserver | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A profile is of one process; a spawned child makes its own.
        return {**vars(self), "profile": None, "_observer": None}

    # -- what the Trainer calls

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to record a fit; its sanity check lies before."""
        self._begin(trainer, pl_module, training=True)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to record ``Trainer.validate``; a validation inside ``fit`` is recorded already."""
        if trainer.state.fn == "validate":
            self._begin(trainer, pl_module, training=False)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to record ``Trainer.test``."""
        self._begin(trainer, pl_module, training=False)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to record ``Trainer.predict``."""
        self._begin(trainer, pl_module, training=False)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Keep what was recorded; the Trainer calls no other hook after this one."""
        self._end(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the run. Later than on_train_end, so that the progress bar is closed when the verdict is printed."""
        self._end(None)

    # -- the profile

    def _begin(self, trainer: Any, pl_module: Any, *, training: bool) -> None:
        ours = [callback for callback in trainer.callbacks if isinstance(callback, _Recording)]
        if ours[0] is not self:
            warn(f"this Trainer has {len(ours)} ProfilerCallbacks; the first one records, leave the others out")
            return
        if self.profile is None:
            self.profile = perfkit.profile(self._run, hooks=False, **self._fitting_options(trainer, training))
        self.profile.start()
        if self.profile.folder is None:
            return  # PERFKIT_DISABLE=1, or another profile records: it has said so
        self.profile.drop_step()  # the time until the first fetch belongs to no step
        self._observer = TrainerObserver(
            trainer, pl_module, self.profile, training=training, log=self._log, phases=self._phases
        )

    def _fitting_options(self, trainer: Any, training: bool) -> dict[str, Any]:
        options = self._options
        if _records_itself(trainer.profiler) and options.get("recorders", ("kineto",)):
            # Two torch profilers cannot run at once: the second one to start, theirs or ours, would raise.
            options = {**options, "recorders": ()}
            warn("the Trainer has a PyTorchProfiler, so perfkit records no windows of its own; steps are recorded")
        if training and options.get("schedule") is None and options.get("total_steps") is None:
            # The default schedule fits itself to the length of the run.
            options = {**options, "total_steps": _batches_to_train(trainer)}
        return options

    def _end(self, error: BaseException | None) -> None:
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.remove()
        if self.profile is not None:
            self.profile.stop(error)


def _records_itself(profiler: Any) -> bool:
    return any(kind.__name__ == "PyTorchProfiler" for kind in type(profiler).__mro__)


def _batches_to_train(trainer: Any) -> int | None:
    """How many batches a fit will train, where the Trainer knows; the loop's own limits, whichever comes first."""
    per_epoch, epochs = trainer.num_training_batches, trainer.max_epochs
    limits = [] if epochs in (None, -1) else [per_epoch * (epochs - trainer.current_epoch)]
    if trainer.max_steps > 0:
        limits.append(trainer.max_steps * trainer.accumulate_grad_batches)
    shortest = min(limits, default=float("inf"))
    return int(shortest) if 1 <= shortest < float("inf") else None


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
        modules = [importlib.import_module(namespace) for namespace in _CLASSES[name]]
        for module in modules:
            _check_version(module)
        bases = tuple(module.Callback for module in modules)
        body = {"__module__": __name__, "__qualname__": name, "__doc__": _Recording.__doc__}
        globals()[name] = type(name, (_Recording, *bases), body)
    built: type = globals()[name]
    return built


def _check_version(module: Any) -> None:
    version = str(module.__version__)
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise MissingDependency(
            f"ProfilerCallback needs Lightning {oldest} or later, {module.__name__} is {version}: "
            "pip install -U 'perfkit[lightning]'"
        )
