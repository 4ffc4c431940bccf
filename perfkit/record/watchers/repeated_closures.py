"""Steps of L-BFGS that begin with an evaluation of the point at which the step before ended, and had evaluated it.

Some steps are watched. An evaluation is known by its loss and by some elements of the parameters and the gradients. On
a GPU these are copied and compared there, and what came of that is read once, after the last of these steps.

What a step came to is seen where the next one begins. No hook after a step is added: torch goes through a dict of them,
which nothing may change while perfkit's own hook ends the step.
"""

from __future__ import annotations

import statistics
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from itertools import pairwise
from math import isnan
from typing import Any, NamedTuple

import torch

from perfkit import _clock
from perfkit._callsite import CallSite, find_callsite
from perfkit._code_owner import own_work
from perfkit._location import Location
from perfkit._raised_signals import errors_dropped
from perfkit.record.hooks.constructions import made_at
from perfkit.record.program_values import SAMPLED, is_plain, is_tensor, sample_of, unseen, without_modes
from perfkit.run.records import RepeatedClosure

#: Steps of an L-BFGS before the first that is watched: in them memory is allocated and kernels are loaded (chosen).
_FIRST = 3
#: Steps of which it is tried to watch them: more cost the program time, and some of them are in windows (chosen).
_MAX_STEPS = 24
#: Steps that have to begin with a known evaluation at least: a median needs some (chosen).
_LEAST = 4
#: Evaluations of a step that are remembered: a line search ends at one of its last (torch: of 25 by default at most).
_REMEMBERED = 32
#: Devices on which elements are copied: elsewhere but on a CPU that may not be ordered with what the program does.
_COPIED_ON = ("cuda",)


class _Evaluation(NamedTuple):
    """A call of a closure: the loss, and samples of the parameters that it read and the gradients that it wrote."""

    began_ns: int
    took_ns: int
    known_by: tuple[Any, ...]


class _Watched(NamedTuple):
    """A step that is over; ``period_ns`` is from its beginning to that of the next one, without perfkit's own time.

    ``repeats`` is whether its first evaluation, which took ``first_ns``, was known: on a GPU a tensor. That can be so
    only where ``is_compared``: the step before, of the same optimizer, was watched too.
    """

    site: CallSite
    made_at: Location | None
    max_iter: int
    max_eval: int
    calls: int
    first_ns: int
    period_ns: int
    is_compared: bool
    repeats: Any


class _Step:
    """A step of an L-BFGS, from its beginning on; keeps no tensor of the program's alive."""

    def __init__(self, optimizer: Any, site: CallSite) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.site, self.made_at = site, made_at(optimizer)
        group = optimizer.param_groups[0]
        self.lr, self.max_iter, self.max_eval = float(group["lr"]), int(group["max_iter"]), int(group["max_eval"])
        trained = [one for one in group["params"] if one.requires_grad]
        #: The first, one in the middle, and the last.
        some = {id(one): one for one in (trained[0], trained[len(trained) // 2], trained[-1])}
        self._parameters = [weakref.ref(one) for one in some.values()]
        self._is_on_cpu = trained[0].device.type == "cpu"
        self._iterations_before = _iterations(optimizer)
        self.calls = 0
        self.first: _Evaluation | None = None
        self.latest: deque[_Evaluation] = deque(maxlen=_REMEMBERED)
        self.began_ns = self.own_ns = 0
        #: Whether its closure is being called; stays so where that raises.
        self.is_calling = False
        #: Whether max_iter or max_eval ended it, and not that it had converged; of one iteration torch checks only
        #: what it does before the line search.
        self.was_cut = False
        self.is_compared = False
        self.repeats: Any = False

    @property
    def parameters(self) -> list[Any]:
        """None in place of one that is gone."""
        return [one() for one in self._parameters]

    def add(self, made: _Evaluation) -> None:
        """The closure was called."""
        self.calls += 1
        self.first = self.first or made
        self.latest.append(made)

    def end(self, before: _Step | None) -> None:
        """The step is over, and ``before`` is the one before it."""
        # References to one object are one, also after it is gone, as at the last step of a function that makes it.
        if before is not None and before.optimizer is self.optimizer:
            self.is_compared = True
            if before.was_cut and before.lr == self.lr and self.first is not None:
                self.repeats = _is_among(self.first, before.latest)
        if (optimizer := self.optimizer()) is not None and self.calls > 1:
            iterations = _iterations(optimizer) - self._iterations_before
            self.was_cut = iterations > 0 and (iterations >= self.max_iter or self.calls >= self.max_eval)

    def first_ns(self, first: _Evaluation) -> int:
        """The time of the first evaluation; of a GPU's until the loss was read, which is as long as a later one took.

        The direction of the line search is computed between the first evaluation and the second. Of two only the host's
        time is known.
        """
        begins = [one.began_ns for one in self.latest if one is not first]
        if self._is_on_cpu or len(begins) < 2:
            return first.took_ns
        typical_ns = statistics.median(later - begin for begin, later in pairwise(begins))
        return max(first.took_ns, min(begins[0] - first.began_ns, round(typical_ns)))


class RepeatedClosureWatch:
    """Told of each step of an optimizer with a closure, and of the closure's calls; ``step`` returns the run's step.

    The calls of a closure are told with the step that `begin` has returned for it.
    """

    def __init__(self, step: Callable[[], int]) -> None:
        self._step_num = step
        self._over = False
        #: Steps of an L-BFGS; steps of the run in which one stepped, and the last of these.
        self._seen = self._stepped = 0
        self._last_step = -1
        #: Steps of which it was tried to watch them.
        self._tried = 0
        #: The step that is watched now; the last such step, whose period has not ended; and the one before that.
        self._running: _Step | None = None
        self._latest: _Step | None = None
        self._before: _Step | None = None
        self._watched: list[_Watched] = []
        self._repeats: list[bool] | None = None

    @property
    def watching(self) -> bool:
        """Whether the calls of a closure are to be told of."""
        return self._running is not None

    @own_work
    @unseen
    def begin(self, optimizer: Any) -> _Step | None:
        """An optimizer begins a step with a closure: returns the step if it is watched."""
        self._running = None
        if not isinstance(optimizer, torch.optim.LBFGS):
            return None
        if self._last_step != (now := self._step_num()):
            self._stepped, self._last_step = self._stepped + 1, now
        self._seen += 1
        if self._over or self._seen <= _FIRST:
            return None
        began_ns, ended, before = _clock.now_ns(), self._latest, self._before
        self._latest, self._before = None, ended
        with errors_dropped(), without_modes():  # the program's own optimizer is asked
            self._tried += 1
            # One whose closure raised, or still runs, has no end.
            if ended is not None and ended.is_calling:
                self._before = None
            elif ended is not None:
                ended.end(before)
                self._end_period(ended, began_ns)
            if before is not None:
                before.latest.clear()
            if self._tried > _MAX_STEPS:
                self.stop()
            elif (site := find_callsite(sys._getframe())) is not None:
                step = _Step(optimizer, site)
                step.began_ns = _clock.now_ns()
                self._running = self._latest = step
        return self._running

    def _end_period(self, ended: _Step, now: int) -> None:
        """The step after it begins."""
        if ended.first is not None:
            self._watched.append(
                _Watched(
                    site=ended.site,
                    made_at=ended.made_at,
                    max_iter=ended.max_iter,
                    max_eval=ended.max_eval,
                    calls=ended.calls,
                    first_ns=ended.first_ns(ended.first),
                    period_ns=now - ended.began_ns - ended.own_ns,
                    is_compared=ended.is_compared,
                    repeats=ended.repeats,
                )
            )

    @own_work
    @unseen
    def before_call(self, step: _Step) -> tuple[int, tuple[Any, ...]] | None:
        """The closure of this step is about to be called: returns when that is, and the parameters."""
        if step is not self._running or step.is_calling:
            return None
        asked_ns, step.is_calling = _clock.now_ns(), True
        with errors_dropped():  # tensors of any kind
            samples = tuple(_sample(one) for one in step.parameters)
            now = _clock.now_ns()
            step.own_ns += now - asked_ns
            return now, samples
        self._running = None
        return None

    @own_work
    @unseen
    def after_call(self, step: _Step, before: tuple[int, tuple[Any, ...]] | None, loss: Any) -> None:
        """The closure of this step returned this loss; ``before`` is what `before_call` returned."""
        now = _clock.now_ns()
        if step is not self._running or before is None:
            return
        self._running = None
        with errors_dropped():  # see `before_call`
            gradients = tuple(None if one.grad is None else _sample(one.grad) for one in step.parameters)
            value = _sample(loss) if not isinstance(loss, float) else object() if isnan(loss) else float.hex(loss)
            step.add(_Evaluation(before[0], now - before[0], (value, *before[1], *gradients)))
            step.own_ns += _clock.now_ns() - now
            step.is_calling, self._running = False, step

    def rows(self, steps: int) -> tuple[RepeatedClosure, ...]:
        """The line whose steps begin with a known evaluation, after ``steps`` steps of the run."""
        watched = list(zip(self._watched, self._read(), strict=False))
        again = [one for one, repeats in watched if repeats]
        if len(again) < _LEAST:
            return ()
        last = again[-1]
        return (
            RepeatedClosure(
                file=last.site.file,
                line=last.site.line,
                function=last.site.function,
                owner=last.site.owner,
                steps=len(watched),
                compared=sum(one.is_compared for one, _ in watched),
                again=len(again),
                calls=sum(one.calls for one, _ in watched),
                ended_by_max_eval=sum(one.calls >= one.max_eval for one, _ in watched),
                host_ns=round(statistics.median(one.first_ns for one in again)),
                of_ns=round(statistics.median(one.period_ns for one in again)),
                max_iter=last.max_iter,
                max_eval=last.max_eval,
                share=min(1.0, self._stepped / max(1, steps)),
                made_at=last.made_at,
            ),
        )

    @unseen
    def _read(self) -> list[bool]:
        """Whether each step repeats an evaluation; what a device has compared is read once, when all of it is there."""
        if self._repeats is not None:
            return self._repeats
        repeats = [one.repeats for one in self._watched]
        devices = {one.device for one in repeats if is_tensor(one)}
        if devices and not self._over:
            return []
        for device in devices:
            places = [at for at, one in enumerate(repeats) if is_tensor(one) and one.device == device]
            read = [False] * len(places)
            with errors_dropped(), without_modes():  # an error of the device that a kernel of the program's has caused
                read = torch.stack([repeats[at] for at in places]).tolist()
            for at, flag in zip(places, read, strict=True):
                repeats[at] = flag
        self._repeats = repeats if self._over else None
        return repeats

    def stop(self) -> None:
        """Watch no longer."""
        self._over, self._running, self._latest, self._before = True, None, None, None


def _iterations(optimizer: Any) -> int:
    """How many iterations an L-BFGS has done: its state is that of its first parameter."""
    # Not by []: the state makes an entry for what is asked for.
    return int(optimizer.state.get(optimizer.param_groups[0]["params"][0], {}).get("n_iter", 0))


def _sample(tensor: Any) -> Any:
    """Some elements: bytes, or a tensor on a GPU; an object equal to no other where one of them on a CPU is NaN."""
    if not is_tensor(tensor) or not is_plain(tensor):
        raise TypeError("not a tensor of torch's own")
    sample = sample_of(tensor)
    if sample is not None:
        return object() if sample and _has_nan(sample, tensor.dtype) else sample
    if tensor.device.type not in _COPIED_ON or not tensor.is_contiguous() or _is_captured():
        raise TypeError("not to be copied")
    with without_modes():
        elements = tensor.detach().reshape(-1)
        return elements[:: max(1, elements.numel() // SAMPLED)].clone()


def _has_nan(sample: bytes, dtype: torch.dtype) -> bool:
    """Whether one of these elements is NaN, which is equal to nothing; as bytes it would be."""
    with without_modes():
        return bool(torch.frombuffer(bytearray(sample), dtype=dtype).isnan().any())


def _is_captured() -> bool:
    """Whether a CUDA graph records what is launched."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _is_among(first: _Evaluation, others: Iterable[_Evaluation]) -> Any:
    """Whether an evaluation is equal to one of these: a bool, or a tensor on a GPU."""
    found = [_are_equal(first.known_by, one.known_by) for one in others]
    on_device = [one for one in found if is_tensor(one)]
    return True in [one for one in found if not is_tensor(one)] or (
        torch.stack(on_device).any() if on_device else False
    )


def _are_equal(one: tuple[Any, ...], other: tuple[Any, ...]) -> Any:
    """Whether samples are equal: a bool, or a tensor on a GPU."""
    on_device = []
    for sample, same in zip(one, other, strict=True):
        if not is_tensor(sample) or not is_tensor(same):
            if is_tensor(sample) or is_tensor(same) or sample != same:
                return False
        elif sample.shape != same.shape or sample.dtype != same.dtype or sample.device != same.device:
            return False
        else:
            on_device.append((sample == same).all())
    return torch.stack(on_device).all() if on_device else True
