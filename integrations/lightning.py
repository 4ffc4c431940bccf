"""``ProfilerCallback``: records what a Lightning Trainer does as a perfkit run.

    Trainer(callbacks=[ProfilerCallback("runs/mnist")])

Lightning has two names, ``lightning.pytorch`` and ``pytorch_lightning``, with separate classes. ``ProfilerCallback`` is
therefore built at its first use, on the ``Callback`` of the one that the program uses, or on both. Everything else here
imports neither.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from perfkit import MissingDependency, UsageError
from perfkit.integrations._lightning_actions import STATE_KEY
from perfkit.integrations._lightning_observer import TrainerObserver
from perfkit.integrations._recording_callback import RecordingCallback, warn

__all__ = ["ProfilerCallback"]

#: The first Lightning that is tested. Older versions announce other actions.
_OLDEST = (2, 2)


class _LightningRecording(RecordingCallback):
    """Records what a Trainer does into a run folder, and prints the verdict at its end.

    ``fit`` called again, and ``validate``, ``test`` and ``predict``, continue the same run. An exception or Ctrl-C ends
    the recording, keeps what was recorded until then, and passes through.

    Args:
        run: Folder to record into; default ``runs/<script>-<date>-<time>``.
        log: Log ``perfkit/step_ms`` and ``perfkit/data_ms`` to the Trainer's loggers, means of the last
            ``log_every_n_steps`` steps: plain floats from the host's clock, so no device is asked.
        phases: False divides a step only into the wait for its batch and the rest, for fits in which microseconds
            matter.
        options: Every other option of `perfkit.profile`.

    Raises:
        UsageError: an option is invalid.
        MissingDependency: neither ``lightning`` nor ``pytorch-lightning`` is installed, or it is too old.
    """

    #: The callback's name in checkpoints and actions, the same under both names of Lightning; read at every hook.
    state_key = STATE_KEY

    def __init__(self, run: Any = None, *, log: bool = True, phases: bool = True, **options: Any) -> None:
        super().__init__(run, log=log, **options)
        self._phases = phases

    def __bool__(self) -> bool:
        # The Trainer evaluates `profiler or PassThroughProfiler()` in its __init__: the one place where the mistake can
        # be reported at the user's line. Later it calls `profiler.profile(action)`, which is None here.
        if sys._getframe(1).f_code.co_name == "_init_profiler":
            raise UsageError(
                "ProfilerCallback is a callback, not one of Lightning's profilers: "
                "write Trainer(callbacks=[ProfilerCallback()]) instead of Trainer(profiler=ProfilerCallback())"
            )
        return True

    # -- called by the Trainer

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start to record a fit; its sanity check has run before."""
        self._begin(trainer, pl_module, training=True)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Start to record ``Trainer.validate``; a validation inside ``fit`` is recorded already."""
        if trainer.state.fn == "validate":
            self._begin(trainer, pl_module, training=False)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Start to record ``Trainer.test``."""
        self._begin(trainer, pl_module, training=False)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Start to record ``Trainer.predict``."""
        self._begin(trainer, pl_module, training=False)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Keep what was recorded; the Trainer calls no other hook after this one."""
        self._end(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the run. Later than on_train_end, so that the progress bar is closed when the verdict is printed."""
        self._end(None)

    # -- the profile

    def _begin(self, trainer: Any, pl_module: Any, *, training: bool) -> None:
        if not self._is_first_of(trainer.callbacks):
            return
        overrides: dict[str, Any] = {}
        has_torch_profiler = any(kind.__name__ == "PyTorchProfiler" for kind in type(trainer.profiler).__mro__)
        if self.profile is None and has_torch_profiler and self._options.get("recorders", ("kineto",)):
            # Two torch profilers cannot run at the same time: the second one to start, theirs or ours, would raise.
            overrides["recorders"] = ()
            warn("the Trainer has a PyTorchProfiler, so perfkit records steps but no windows of its own")
        profile = self._start(_batches_to_train(trainer) if training else None, **overrides)
        if profile is not None:
            self._observer = TrainerObserver(
                trainer, pl_module, profile, training=training, log=self._log, phases=self._phases
            )

    def _end(self, error: BaseException | None) -> None:
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.remove()
        if self.profile is not None:
            self.profile.stop(error)


def _batches_to_train(trainer: Any) -> int | None:
    """How many batches a fit will train: the smallest of the loop's limits; None if the Trainer does not know."""
    per_epoch, epochs = trainer.num_training_batches, trainer.max_epochs
    limits = [] if epochs in (None, -1) else [per_epoch * (epochs - trainer.current_epoch)]
    if trainer.max_steps > 0:
        limits.append(trainer.max_steps * trainer.accumulate_grad_batches)
    shortest = min(limits, default=float("inf"))
    return int(shortest) if 1 <= shortest < float("inf") else None


# -- the class, on the Callback of whichever Lightning is in use

#: Name of each class that can be built -> the namespaces it derives from. The names are fixed, so that a spawned
#: process finds the class that it unpickles.
_CLASSES = {
    "_OnLightning": ("lightning.pytorch",),
    "_OnPytorchLightning": ("pytorch_lightning",),
    "_OnBoth": ("lightning.pytorch", "pytorch_lightning"),
}

if TYPE_CHECKING:
    from lightning.pytorch import Callback

    class ProfilerCallback(_LightningRecording, Callback):
        """The class for type checkers."""


def __getattr__(name: str) -> Any:
    if name == "ProfilerCallback":
        return _class(_in_use())
    if name in _CLASSES:
        return _class(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _in_use() -> str:
    """The class for this program: by the namespaces it has imported, else by those installed."""
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
        body = {"__module__": __name__, "__qualname__": name, "__doc__": _LightningRecording.__doc__}
        globals()[name] = type(name, (_LightningRecording, *bases), body)
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
