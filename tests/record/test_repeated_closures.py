"""Steps of L-BFGS that begin with an evaluation that the step before has made."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.optim.optimizer import _global_optimizer_post_hooks

from perfkit.record.watchers import repeated_closures
from perfkit.record.watchers.repeated_closures import RepeatedClosureWatch

STEPS = 12
MATRIX = torch.randn(30, 20, generator=torch.Generator().manual_seed(0))
TARGET = torch.randn(30, generator=torch.Generator().manual_seed(1))


class Fit:
    """A small problem: its loss and its loop can be replaced."""

    def __init__(self, **settings: Any) -> None:
        self.weight = torch.zeros(20, requires_grad=True)
        given: dict[str, Any] = {"max_iter": 1, "max_eval": 20, "line_search_fn": "strong_wolfe"}
        given |= {"tolerance_change": 0.0, "tolerance_grad": 0.0}
        self.optimizer = torch.optim.LBFGS([self.weight], **(given | settings))
        self.calls = 0
        self.loss: Callable[[], torch.Tensor] = self.of_all

    def of_all(self) -> torch.Tensor:
        return ((MATRIX @ self.weight).tanh() - TARGET).square().mean()

    def of_a_batch(self) -> torch.Tensor:
        rows = torch.arange(self.at % 3, 30, 3)
        return ((MATRIX[rows] @ self.weight).tanh() - TARGET[rows]).square().mean()

    def with_dropout(self) -> torch.Tensor:
        return (F.dropout(MATRIX @ self.weight, 0.2).tanh() - TARGET).square().mean()

    def closure(self) -> torch.Tensor:
        self.calls += 1
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def as_number(self) -> float:
        return float(self.closure().detach())

    def run(self, closure: Callable[[], Any] | None = None, between: Callable[[], Any] = lambda: None) -> None:
        for self.at in range(STEPS):
            self.optimizer.step(closure or self.closure)
            between()


@pytest.fixture
def watch(recorded: Any) -> Iterator[RepeatedClosureWatch]:
    with recorded() as recording:
        made = RepeatedClosureWatch(lambda: recording.clock.step_num)
        recording.hooks.closures.watch = made
        yield made
    made.stop()


def test_a_step_of_one_iteration_evaluates_again_where_its_line_search_ended(watch: RepeatedClosureWatch) -> None:
    fit = Fit()
    fit.run()

    [row] = watch.rows(STEPS)
    line = Fit.run.__code__.co_firstlineno + 2
    assert (row.line, row.function, row.max_iter, row.share) == (line, "Fit.run", 1, 1.0)
    # Three steps are not watched, the last one has no end yet, and the first watched one has none before it.
    assert (row.steps, row.compared, row.again) == (STEPS - 4, STEPS - 5, STEPS - 5)
    assert (row.max_eval, row.ended_by_max_eval) == (20, 0)
    assert 2 * row.steps <= row.calls < fit.calls
    assert row.made_at is not None
    assert row.made_at.line == Fit.__init__.__code__.co_firstlineno + 4
    assert 0 < row.host_ns < row.of_ns


def test_the_last_step_of_an_optimizer_that_is_gone_counts_too(watch: RepeatedClosureWatch) -> None:
    for _ in range(2):
        Fit().run()

    # Of the second optimizer too the first step has none before it.
    [row] = watch.rows(2 * STEPS)
    assert (row.steps, row.compared, row.again) == (2 * STEPS - 4, 2 * STEPS - 6, 2 * STEPS - 6)


def test_of_one_iteration_the_default_of_max_eval_ends_each_line_search(watch: RepeatedClosureWatch) -> None:
    Fit(max_eval=None).run()

    [row] = watch.rows(STEPS)
    assert (row.max_eval, row.ended_by_max_eval) == (1, row.steps)


def test_steps_after_data_that_change_now_and_then_are_compared_and_begin_anew(watch: RepeatedClosureWatch) -> None:
    fit = Fit()
    fit.loss = lambda: fit.of_all() * (1.0 + fit.at // 8)
    fit.run()

    [row] = watch.rows(STEPS)
    assert (row.compared, row.again) == (STEPS - 5, STEPS - 6)


def test_a_closure_may_return_a_number(watch: RepeatedClosureWatch) -> None:
    fit = Fit()
    fit.run(fit.as_number)

    assert watch.rows(STEPS)[0].again == STEPS - 5


def test_on_a_device_elements_are_compared_there_and_read_once(
    watch: RepeatedClosureWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_closures, "sample_of", lambda tensor: None)
    monkeypatch.setattr(repeated_closures, "_COPIED_ON", ("cpu",))
    Fit().run()

    assert watch.rows(STEPS) == ()  # more steps may come: nothing is waited for
    watch.stop()
    [row] = watch.rows(STEPS)
    assert row.again == STEPS - 5
    fit = Fit()
    fit.loss = fit.of_a_batch
    watch.__init__(lambda: 0)  # type: ignore[misc]  # as of another run
    fit.run()
    watch.stop()
    assert watch.rows(STEPS) == ()


def _batches(fit: Fit) -> None:
    fit.loss = fit.of_a_batch
    fit.run()


def _dropout(fit: Fit) -> None:
    fit.loss = fit.with_dropout
    fit.run()


def _moved(fit: Fit) -> None:
    @torch.no_grad()
    def clamp() -> None:
        fit.weight.mul_(0.9)

    fit.run(between=clamp)


def _schedule(fit: Fit) -> None:
    scheduler = torch.optim.lr_scheduler.ExponentialLR(fit.optimizer, 0.99)
    fit.run(between=scheduler.step)


def _without_gradients(fit: Fit) -> None:
    """The same losses at other points, as of a problem that is solved: only the parameters differ."""
    fit.loss = lambda: fit.of_all() * 0.0 + 1.0 + (fit.weight * torch.ones(20)).sum() * 1e-12
    fit.run()


@pytest.mark.parametrize(
    ("settings", "run"),
    [
        ({}, _batches),
        ({}, _dropout),
        ({"line_search_fn": None}, Fit.run),
        ({"line_search_fn": None, "max_iter": 4}, Fit.run),
        ({}, _moved),
        ({}, _schedule),
        ({"line_search_fn": None, "lr": 1e-3}, _without_gradients),
        ({"max_iter": 20, "max_eval": 200, "tolerance_change": 1e-3}, Fit.run),
    ],
    ids=[
        "mini-batches",
        "dropout",
        "no line search",
        "no line search, several iterations",
        "parameters that the program changes",
        "another learning rate",
        "equal losses at other points",
        "a step that ends because it has converged",
    ],
)
def test_others_are_not(watch: RepeatedClosureWatch, settings: dict[str, Any], run: Callable[[Fit], None]) -> None:
    torch.manual_seed(0)
    run(Fit(**settings))

    assert watch.rows(STEPS) == ()


def test_of_twenty_iterations_one_evaluation_is_repeated(watch: RepeatedClosureWatch) -> None:
    Fit(max_iter=20, max_eval=25).run()

    [row] = watch.rows(STEPS)
    assert row.max_iter == 20
    assert row.calls > 10 * row.steps


def test_another_optimizer_with_a_closure_is_not_watched(watch: RepeatedClosureWatch) -> None:
    fit = Fit()
    optimizer = torch.optim.SGD([fit.weight], lr=0.0)
    for _ in range(STEPS):
        optimizer.step(fit.closure)

    assert watch.rows(STEPS) == ()
    assert not watch.watching


def test_closures_of_an_optimizer_that_follows_are_not_looked_at(
    watch: RepeatedClosureWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = Fit()
    for fit.at in range(10):
        fit.optimizer.step(fit.closure)
    assert watch.watching
    looked_at: list[Any] = []
    monkeypatch.setattr(repeated_closures, "_sample", looked_at.append)
    optimizer = torch.optim.SGD([fit.weight], lr=0.0)
    for _ in range(STEPS):
        optimizer.step(fit.closure)

    assert not watch.watching
    assert looked_at == []
    assert watch.rows(10)[0].steps == 6


def test_the_calls_of_a_closure_are_those_of_the_step_that_it_was_given_to(watch: RepeatedClosureWatch) -> None:
    fit, other = Fit(), Fit()
    fit.run()
    outer: Any = watch.begin(fit.optimizer)
    asked = watch.before_call(outer)
    inner: Any = watch.begin(other.optimizer)
    watch.after_call(inner, watch.before_call(inner), other.closure())
    watch.after_call(outer, asked, fit.closure())

    assert watch.before_call(outer) is None
    assert (outer.calls, inner.calls) == (0, 1)


def test_no_parameter_is_kept_alive(watch: RepeatedClosureWatch) -> None:
    fit = Fit()
    fit.run()
    weight, gradient = weakref.ref(fit.weight), weakref.ref(fit.weight.grad)
    assert watch.watching
    del fit
    gc.collect()

    assert weight() is None
    assert gradient() is None


def test_the_state_of_the_optimizer_gets_no_entry(watch: RepeatedClosureWatch) -> None:
    fit = Fit()
    fit.run()
    new = Fit()
    assert watch.begin(new.optimizer) is not None

    assert not new.optimizer.state


def test_tried_steps_whose_end_fails_count_too(watch: RepeatedClosureWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(repeated_closures._Step, "end", fails)
    for _ in range(5):
        Fit().run()

    looked_at: list[Any] = []
    monkeypatch.setattr(repeated_closures, "_sample", looked_at.append)
    Fit().run()
    assert looked_at == []
    assert not watch.watching


def test_what_cannot_be_read_of_one_device_leaves_that_of_others(
    watch: RepeatedClosureWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_closures, "sample_of", lambda tensor: None)
    monkeypatch.setattr(repeated_closures, "_COPIED_ON", ("cpu",))
    Fit().run()
    watch.stop()
    lost = torch.empty((), dtype=torch.bool, device="meta")
    watch._watched[-1] = watch._watched[-1]._replace(repeats=lost)

    assert watch.rows(STEPS)[0].again == STEPS - 6


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_nan_is_equal_to_nothing(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, on_device: bool) -> None:
    if on_device:
        monkeypatch.setattr(repeated_closures, "sample_of", lambda tensor: None)
        monkeypatch.setattr(repeated_closures, "_COPIED_ON", ("cpu",))

    def is_equal_to_itself(tensor: torch.Tensor) -> bool:
        return bool(repeated_closures._are_equal(*[(repeated_closures._sample(tensor),) for _ in range(2)]))

    assert is_equal_to_itself(torch.ones(5, dtype=dtype))
    assert is_equal_to_itself(torch.ones(0, dtype=dtype))
    assert not is_equal_to_itself(torch.tensor([1.0, float("nan")], dtype=dtype))


def test_what_the_program_computes_is_the_same(watch: RepeatedClosureWatch) -> None:
    watched = Fit()
    watched.run()
    assert watch.rows(STEPS)
    watch.stop()
    other = Fit()
    other.run()

    assert torch.equal(watched.weight, other.weight)
    assert watched.calls == other.calls


def test_the_watch_adds_no_hook_after_steps_and_ends_after_some_steps(watch: RepeatedClosureWatch) -> None:
    hooks = _global_optimizer_post_hooks
    before = len(hooks)
    fit = Fit()
    fit.run()
    assert len(hooks) == before
    fit.run()
    fit.run()

    assert not watch.watching
    [row] = watch.rows(3 * STEPS)
    assert row.steps == repeated_closures._MAX_STEPS


def test_a_closure_that_raises_leaves_the_next_step_alone(watch: RepeatedClosureWatch) -> None:
    fit = Fit()
    fit.run()

    def fails() -> torch.Tensor:
        fit.closure()
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        fit.optimizer.step(fails)
    fit.run()

    # Neither the broken step nor the next one, which ends it for the hooks, counts; the one after has none before it.
    [row] = watch.rows(2 * STEPS + 1)
    assert (row.steps, row.again) == (2 * STEPS + 1 - 6, 2 * STEPS + 1 - 8)


def test_the_share_of_steps_says_how_many_are_of_this_optimizer(watch: RepeatedClosureWatch) -> None:
    Fit().run()

    assert watch.rows(10 * STEPS)[0].share == pytest.approx(0.1)
