"""``ProfilerCallback``: records what ``transformers.Trainer`` does as a perfkit run.

    Trainer(..., callbacks=[ProfilerCallback("runs/bert")])

A TrainerCallback is told where a step ends, but not of the fetch (all batches of a step are fetched before
``on_step_begin``), the forward pass, or an exception. So while it trains, the callback times the methods of that one
Trainer object which do these things, and restores them at the end. The same methods serve trainers that are built on
it, such as TRL's SFTTrainer.

A step here is one step of the optimizer: with gradient accumulation, all its batches.
"""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Callable
from typing import Any

import perfkit
from perfkit import MissingDependency, Phase
from perfkit._patches import Patches
from perfkit.integrations._recording_callback import RecordingCallback, declare_phases, warn
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


class ProfilerCallback(RecordingCallback, TrainerCallback):
    """Records what a ``transformers.Trainer`` does into a run folder, and prints the verdict at its end.

    Another call of ``train()`` continues the same run. An exception or Ctrl-C ends the recording, keeps what was
    recorded until then, and passes through.

    Args:
        run: Folder to record into; default ``runs/<script>-<date>-<time>``.
        log: Add ``perfkit/step_ms`` and ``perfkit/data_ms``, means since the Trainer's last log, to what it logs:
            plain floats from the host's clock, so no device is asked.
        options: Every other option of `perfkit.profile`.

    Raises:
        UsageError: an option is invalid.
    """

    # -- called by the Trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start to record."""
        trainer = _calling_trainer()
        if trainer is None:
            warn("on_train_begin was not called by a transformers.Trainer, so nothing is recorded")
            return
        if not self._is_first_of(trainer.callback_handler.callbacks):
            return
        if self._observer is not None:
            self._observer.remove()  # the previous training ended where no timed method could see it
        total_steps = max(1, state.max_steps - state.global_step) if state.max_steps > 0 else None
        profile = self._start(total_steps)
        if profile is not None:
            atexit.register(self._at_exit)
            self._observer = _TimedTrainer(trainer, profile, self._log, self._end)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the run."""
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        observer, self._observer = self._observer, None
        if observer is None or self.profile is None:
            return
        atexit.unregister(self._at_exit)
        observer.remove(finished=error is None)
        self.profile.stop(error)

    def _at_exit(self) -> None:
        """Keep the run of a program that ended where no timed method of the Trainer could see it."""
        self._end(getattr(sys, "last_value", None))


class _TimedTrainer:
    """Times the methods of one Trainer, through attributes of the instance; `remove` restores them.

    Methods that a version of transformers does not have are skipped: their time belongs to the caller's phase.
    """

    def __init__(
        self, trainer: Any, profile: perfkit.profile, log: bool, on_error: Callable[[BaseException], None]
    ) -> None:
        self._profile = profile
        self._on_error = on_error
        self._log = log
        self._patches = Patches()
        self._evaluating = False
        #: Between the first fetch of a step and its end.
        self._inside = self._stepped = self._epoch_over = False
        self._samples = self._tokens = 0
        self._means = StepMeans()
        declare_phases(profile)

        wrap, accelerator = self._patches.wrap, trainer.accelerator
        wrap(trainer, "get_batch_samples", self._fetching)
        wrap(trainer, "training_step", lambda original: self._outermost(self._in("forward", original)))
        wrap(accelerator, "backward", lambda original: self._in("backward", original))
        wrap(accelerator, "clip_grad_norm_", lambda original: self._in("optimizer", original))
        if type(trainer)._prepare_inputs.__module__ == "transformers.trainer":
            # An override does more than move a batch: GRPO generates text there.
            wrap(trainer, "_prepare_inputs", lambda original: self._in("transfer", original))
        wrap(trainer, "log", self._logging)
        wrap(trainer, "evaluate", self._evaluation)
        wrap(trainer, "_save_checkpoint", lambda original: self._in("checkpoint", original))
        wrap(trainer, "_maybe_log_save_evaluate", self._after_step)
        wrap(trainer.callback_handler, "call_event", self._events)

    def remove(self, *, finished: bool = False) -> None:
        """Restore everything; ``finished``: the last step is complete."""
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
        """For what the training loop itself calls: an exception that leaves it ends the training."""

        def with_errors_seen(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                self._on_error(error)
                raise

        return with_errors_seen

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
                # The time between two epochs, and after the last one, belongs to no step.
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
            # The writers behind on_log belong to the logging phase, which `log` has begun.
            done = (original if event == "on_log" else in_callbacks)(event, *args, **kwargs)
            if event == "on_pre_optimizer_step":
                # Until on_step_end: the optimizer's step, the scheduler's, and zeroing the gradients.
                profile.begin("optimizer")
            return done

        return self._outermost(call_event)

    # -- steps

    def _begin_step(self) -> None:
        """A fetch begins. It ends the step before it, if its optimizer stepped, and starts its own."""
        if self._inside and not self._stepped:
            return
        samples, tokens = self._take_counts()
        # Before step(), which ends the program if stop_after is reached: the step must not end twice.
        self._inside, self._stepped = True, False
        self._means.end_step()
        self._profile.step(samples, tokens)
        # "other" encloses all phases; without it the clock would count the time after a fetch as forward.
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
    """The Trainer that called the callback: no event passes it, so it is searched for among the callers."""
    from transformers import Trainer  # loads accelerate and more of torch, which importing this module must not

    frame = sys._getframe(2)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer):
            return owner
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return None
