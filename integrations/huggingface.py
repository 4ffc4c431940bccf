"""``ProfilerCallback``: a perfkit run of what ``transformers.Trainer`` does.

    Trainer(..., callbacks=[ProfilerCallback("runs/bert")])

A TrainerCallback hears where a step ends, but neither the fetch (all batches of a step are taken before
``on_step_begin``) nor the forward, nor an exception. So for as long as it trains, the callback times the
methods of the Trainer that do these things, on that one object, and puts all back at the end. A Trainer
built on it (TRL's SFTTrainer) is timed through the same methods.

A step here is one step of the optimizer: with gradient accumulation, all its batches.
"""

from __future__ import annotations

import atexit
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import perfkit
from perfkit import MissingDependency, PerfkitWarning, Phase
from perfkit._patches import Patches
from perfkit.integrations._step_means import StepMeans

try:
    from transformers import TrainerCallback, __version__
except ImportError as missing:
    raise MissingDependency("ProfilerCallback needs transformers: pip install 'perfkit[huggingface]'") from missing
if not hasattr(TrainerCallback, "on_pre_optimizer_step"):
    raise MissingDependency(
        f"ProfilerCallback needs transformers 4.46 or later, this is {__version__}: "
        "pip install -U 'perfkit[huggingface]'"
    )

__all__ = ["ProfilerCallback"]

#: A Trainer can tell all phases: what does not happen in a step took no time, which is known.
_TOLD: tuple[Phase, ...] = (
    "transfer",
    "forward",
    "backward",
    "optimizer",
    "validation",
    "callbacks",
    "logging",
    "checkpoint",
)


class ProfilerCallback(TrainerCallback):
    """Records what a ``transformers.Trainer`` does into a run folder, and prints the verdict at its end.

    ``train()`` called again goes on in the same run. An exception or Ctrl-C ends the recording with what was
    recorded until then, and passes through.

    Args:
        run: Folder to record into; default ``runs/<script>-<date>-<time>``.
        log: Add ``perfkit/step_ms`` and ``perfkit/data_ms``, means since the Trainer's last log, to what it logs:
            plain floats, read from the host's clock alone.
        options: Every other option of `perfkit.profile`.

    Raises:
        UsageError: an option that cannot be.
    """

    def __init__(self, run: Any = None, *, log: bool = True, **options: Any) -> None:
        # Made once to have wrong options told here, where they are written, and not when training begins.
        perfkit.profile(run, hooks=False, **options)
        self._run = run
        self._log = log
        self._options = options
        #: The profile of this callback's trainings: its folder and, after a training, its diagnosis.
        self.profile: perfkit.profile | None = None
        self._watch: _Watch | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A profile is of one process; another one makes its own.
        return {**vars(self), "profile": None, "_watch": None}

    # -- what the Trainer calls

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to record."""
        trainer = _calling_trainer()
        if trainer is None:
            _warn("on_train_begin was not called by a transformers.Trainer, so nothing is recorded")
            return
        ours = [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, ProfilerCallback)]
        if ours and ours[0] is not self:
            _warn(f"this Trainer has {len(ours)} ProfilerCallbacks; the first one records, leave the others out")
            return
        if self._watch is not None:
            self._watch.remove()  # the training before this one ended where it could not be seen
        if self.profile is None:
            options = self._options
            if options.get("schedule") is None and options.get("total_steps") is None and state.max_steps > 0:
                # The default schedule fits itself to the length of the run.
                options = {**options, "total_steps": max(1, state.max_steps - state.global_step)}
            self.profile = perfkit.profile(self._run, hooks=False, **options)
        self.profile.start()
        if self.profile.folder is None:
            return  # PERFKIT_DISABLE=1, or another profile records: it has said so
        self.profile.drop_step()  # the time until the first fetch belongs to no step
        atexit.register(self._at_exit)
        self._watch = _Watch(trainer, self.profile, self._log, self._end)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the run."""
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        watch, self._watch = self._watch, None
        if watch is None or self.profile is None:
            return
        atexit.unregister(self._at_exit)
        watch.remove(finished=error is None)
        self.profile.stop(error)

    def _at_exit(self) -> None:
        """Keep the run of a program that ended where no timed method of the Trainer saw it."""
        self._end(getattr(sys, "last_value", None))


class _Watch:
    """Times the methods of one Trainer, through attributes of the instance; `remove` puts all back.

    A method that a version of transformers does not have is not timed: its time is its caller's phase.
    """

    def __init__(
        self, trainer: Any, profile: perfkit.profile, log: bool, failed: Callable[[BaseException], None]
    ) -> None:
        from transformers import Trainer

        self._profile = profile
        self._failed = failed
        self._log = log
        self._patches = Patches()
        self._evaluating = False
        #: Between the first fetch of a step and the end of it.
        self._inside = self._stepped = self._epoch_over = False
        self._samples = self._tokens = 0
        self._means = StepMeans()
        profile.step()
        for phase in _TOLD:
            profile.begin(phase)
            profile.end(phase)
        profile.drop_step()

        wrap, accelerator = self._patches.wrap, trainer.accelerator
        wrap(trainer, "get_batch_samples", self._fetching)
        wrap(trainer, "training_step", lambda original: self._outermost(self._in("forward", original)))
        wrap(accelerator, "backward", lambda original: self._in("backward", original))
        wrap(accelerator, "clip_grad_norm_", lambda original: self._in("optimizer", original))
        if type(trainer)._prepare_inputs is Trainer._prepare_inputs:
            # One of their own does more than move a batch: GRPO generates text there.
            wrap(trainer, "_prepare_inputs", lambda original: self._in("transfer", original))
        wrap(trainer, "log", self._logging)
        wrap(trainer, "evaluate", self._evaluation)
        wrap(trainer, "_save_checkpoint", lambda original: self._in("checkpoint", original))
        wrap(trainer, "_maybe_log_save_evaluate", self._after_step)
        wrap(trainer.callback_handler, "call_event", self._events)

    def remove(self, *, finished: bool = False) -> None:
        """Put everything back; ``finished`` where the last step is a whole one."""
        self._patches.undo()
        if finished and self._stepped:
            self._end_step()
        self._profile.drop_step()

    # -- the wrappers

    def _in(self, phase: Phase, original: Callable[..., Any]) -> Callable[..., Any]:
        profile = self._profile

        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._evaluating:
                return original(*args, **kwargs)
            profile.begin(phase)
            try:
                return original(*args, **kwargs)
            finally:
                profile.end(phase)

        return timed

    def _outermost(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What the training loop itself calls: an exception that leaves it ends the training."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                self._failed(error)
                raise

        return watched

    def _fetching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        fetch = self._in("data", original)

        def fetching(*args: Any, **kwargs: Any) -> Any:
            self._begin_step()
            began = time.perf_counter_ns()
            fetched = fetch(*args, **kwargs)
            self._means.waited(time.perf_counter_ns() - began)
            self._count(fetched[0])
            return fetched

        return self._outermost(fetching)

    def _logging(self, original: Callable[..., Any]) -> Callable[..., Any]:
        write = self._in("logging", original)

        def logging(logs: dict[str, float], *args: Any, **kwargs: Any) -> Any:
            if self._log and self._inside and not self._evaluating:
                logs.update(self._means.take())
            return write(logs, *args, **kwargs)

        return logging

    def _evaluation(self, original: Callable[..., Any]) -> Callable[..., Any]:
        profile = self._profile

        def evaluating(*args: Any, **kwargs: Any) -> Any:
            outer, self._evaluating = self._evaluating, True
            profile.begin("validation")
            try:
                return original(*args, **kwargs)
            finally:
                profile.end("validation")
                self._evaluating = outer

        return evaluating

    def _after_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def after_step(*args: Any, **kwargs: Any) -> Any:
            done = original(*args, **kwargs)
            if self._epoch_over:
                # What lies between two epochs, and after the last, belongs to no step.
                self._epoch_over = False
                if self._stepped:
                    self._end_step()
                self._profile.drop_step()
            return done

        return self._outermost(after_step)

    def _events(self, original: Callable[..., Any]) -> Callable[..., Any]:
        profile = self._profile
        in_callbacks = self._in("callbacks", original)

        def call_event(event: str, *args: Any, **kwargs: Any) -> Any:
            if event == "on_step_end":
                profile.end("optimizer")
                self._stepped = True
            elif event == "on_epoch_end":
                self._epoch_over = True
            # The writers behind on_log are the logging, the uploads behind on_save the checkpoint.
            done = (original if event == "on_log" else in_callbacks)(event, *args, **kwargs)
            if event == "on_pre_optimizer_step":
                # Until on_step_end: the step, the scheduler's, and zeroing the gradients.
                profile.begin("optimizer")
            return done

        return self._outermost(call_event)

    # -- steps

    def _begin_step(self) -> None:
        """A fetch begins: the step before it is over, if its optimizer stepped; its own starts here."""
        if self._inside and not self._stepped:
            return
        samples, tokens = self._take_counts()
        # Before step(), which ends the program where stop_after is reached: the step must not end twice.
        self._inside, self._stepped = True, False
        self._means.end_step()
        self._profile.step(samples, tokens)
        # Below all lies "other", which a plain loop's clock would take for forward after a fetch.
        self._profile.begin("other")
        self._means.begin_step()

    def _end_step(self) -> None:
        samples, tokens = self._take_counts()
        self._inside = self._stepped = False
        self._means.end_step()
        self._profile.step(samples, tokens)

    def _take_counts(self) -> tuple[int | None, int | None]:
        samples, tokens = self._samples or None, self._tokens or None
        self._samples = self._tokens = 0
        return samples, tokens

    def _count(self, batches: Any) -> None:
        for batch in batches:
            get = getattr(batch, "get", None)
            if get is None:
                continue
            tokens = get("input_ids")
            counted = tokens if tokens is not None else next(iter(batch.values()), None)
            shape: Any = getattr(counted, "shape", ())
            if len(shape):
                self._samples += int(shape[0])
                if tokens is not None:
                    self._tokens += int(tokens.numel())


def _calling_trainer() -> Any:
    """The Trainer that called the callback: no event hands it over, so it is looked for among the callers."""
    from transformers import Trainer

    frame = sys._getframe(2)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer):
            return owner
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return None


def _warn(text: str) -> None:
    warnings.warn(f"perfkit: {text}", PerfkitWarning, stacklevel=3)
