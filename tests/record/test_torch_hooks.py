"""Phases and step boundaries of real torch loops, with no edit to them; time is a fake clock that the loop moves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[torch.Tensor]):
    def __init__(self, clock: Any, ms: float = 20, count: int = 4) -> None:
        self.clock, self.ms, self.count = clock, ms, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        self.clock.pass_ms(self.ms)
        return torch.ones(3)


class Slow(torch.autograd.Function):
    """Takes 10 ms forward and 6 ms backward, on the fake clock."""

    clock: Any = None

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        Slow.clock.pass_ms(10)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        Slow.clock.pass_ms(6)
        return grads[0]


class SlowSGD(torch.optim.SGD):
    """Takes 8 ms a step on the fake clock."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]  # torch's overloads
        Slow.clock.pass_ms(8)
        return super().step(closure)


@pytest.fixture
def weight(clock: Any) -> Iterator[torch.Tensor]:
    Slow.clock = clock
    yield torch.ones(3, requires_grad=True)
    Slow.clock = None


def loss_of(weight: torch.Tensor, batch: torch.Tensor | None = None) -> torch.Tensor:
    return Slow.apply(weight * (1.0 if batch is None else batch)).sum()  # type: ignore[no-any-return,no-untyped-call]


WHOLE = ("data", "forward", "backward", "optimizer", "other")


def test_a_plain_loop_is_split_into_its_phases(clock: Any, weight: torch.Tensor, recorded: Any) -> None:
    optimizer = SlowSGD([weight], lr=0.1)
    loader = DataLoader(Samples(clock))
    with recorded() as recording:
        for batch in loader:
            optimizer.zero_grad()
            loss_of(weight, batch).backward()
            optimizer.step()
            clock.pass_ms(3)

    assert recording.phases(*WHOLE) == [(20, 10, 6, 8, 3)] * 4
    assert recording.hooks.loaders[next(iter(recording.hooks.loaders))].num_workers == 0


@pytest.mark.parametrize("one", [True, False])
def test_a_loader_counts_the_iterators_that_were_read_from(
    clock: Any, weight: torch.Tensor, recorded: Any, one: bool
) -> None:
    optimizer = SlowSGD([weight], lr=0.1)
    loader, other = DataLoader(Samples(clock)), DataLoader(Samples(clock))
    with recorded() as recording:
        batches, others = iter(loader), iter(other)
        for _ in range(4):
            batch = next(batches) if one else next(iter(loader))
            optimizer.zero_grad()
            loss_of(weight, batch + next(others)).backward()
            optimizer.step()

    found = [(known.batches, known.iterators) for known in recording.hooks.loaders.values()]
    assert found == [(4, 1 if one else 4), (4, 1)]


def test_accumulated_batches_are_one_step(clock: Any, weight: torch.Tensor, recorded: Any) -> None:
    optimizer = SlowSGD([weight], lr=0.1)
    with recorded() as recording:
        for number, batch in enumerate(DataLoader(Samples(clock))):
            loss_of(weight, batch).backward()
            if number % 2:
                optimizer.step()

    assert recording.phases(*WHOLE) == [(40, 20, 12, 8, 0)] * 2


def test_a_closure_is_forward_and_backward_not_optimizer(clock: Any, weight: torch.Tensor, recorded: Any) -> None:
    optimizer = SlowSGD([weight], lr=0.1)
    with recorded() as recording:
        for batch in DataLoader(Samples(clock)):

            def closure(batch: torch.Tensor = batch) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(weight, batch)
                loss.backward()
                return loss

            optimizer.step(closure)

    assert recording.phases(*WHOLE) == [(20, 10, 6, 8, 0)] * 4


def test_two_optimizers_in_one_iteration_are_one_step(clock: Any, weight: torch.Tensor, recorded: Any) -> None:
    first, second = SlowSGD([weight], lr=0.1), SlowSGD([weight], lr=0.1)
    with recorded() as recording:
        for batch in DataLoader(Samples(clock)):
            for optimizer in (first, second):
                loss_of(weight, batch).backward()
                optimizer.step()

    assert recording.phases(*WHOLE) == [(20, 20, 12, 16, 0)] * 4


def test_validation_inside_the_epoch_is_kept_apart(clock: Any, weight: torch.Tensor, recorded: Any) -> None:
    optimizer = SlowSGD([weight], lr=0.1)
    train, evaluation = DataLoader(Samples(clock)), DataLoader(Samples(clock, ms=5, count=3))
    with recorded() as recording:
        for _ in range(2):
            for batch in train:
                loss_of(weight, batch).backward()
                optimizer.step()
            with torch.no_grad():
                for batch in evaluation:
                    loss_of(weight, batch)

    assert [step.mode for step in recording.closed] == ["train"] * 8
    # The validation of the first epoch stands in the step that follows it; that of the last in no step.
    assert recording.phases("validation")[4] == (45,)
    assert [phases[1] for phases in recording.phases(*WHOLE)] == [10] * 8


def test_evaluation_with_gradients_left_on_is_recognised_by_its_missing_backward(
    clock: Any, weight: torch.Tensor, recorded: Any
) -> None:
    optimizer = SlowSGD([weight], lr=0.1)
    train, evaluation = DataLoader(Samples(clock)), DataLoader(Samples(clock, ms=5, count=3))
    with recorded() as recording:
        for _ in range(2):
            for batch in train:
                loss_of(weight, batch).backward()
                optimizer.step()
            for batch in evaluation:
                loss_of(weight, batch)

    assert len(recording.closed) == 8
    assert recording.phases("data", "forward")[5:] == [(20, 10)] * 3


def test_a_loop_without_a_loader_ends_its_steps_at_the_optimizer(
    clock: Any, weight: torch.Tensor, recorded: Any
) -> None:
    optimizer = SlowSGD([weight], lr=0.1)
    with recorded() as recording:
        for _ in range(3):
            loss_of(weight).backward()
            optimizer.step()

    assert recording.phases(*WHOLE) == [(None, 10, 6, 8, 0)] * 3


def test_without_a_loader_two_optimizers_settle_into_one_step_each_round(
    clock: Any, weight: torch.Tensor, recorded: Any
) -> None:
    first, second = SlowSGD([weight], lr=0.1), SlowSGD([weight], lr=0.1)
    with recorded() as recording:
        for _ in range(4):
            for optimizer in (first, second):
                loss_of(weight).backward()
                optimizer.step()

    assert recording.phases("forward", "optimizer")[-3:] == [(20, 16)] * 3


def test_without_a_loader_a_new_optimizer_in_each_round_ends_the_steps_of_its_round(
    clock: Any, weight: torch.Tensor, recorded: Any
) -> None:
    with recorded() as recording:
        for _ in range(5):
            optimizer = SlowSGD([weight], lr=0.1)
            for _ in range(4):
                loss_of(weight).backward()
                optimizer.step()

    assert recording.phases("forward", "backward", "optimizer") == [(10, 6, 8)] * 5 * 4


def test_an_inner_optimizer_made_anew_in_each_round_does_not_end_the_steps_of_the_outer_one(
    clock: Any, weight: torch.Tensor, recorded: Any
) -> None:
    outer = SlowSGD([weight], lr=0.1)
    with recorded() as recording:
        for _ in range(5):
            inner = SlowSGD([weight], lr=0.1)
            for optimizer in (inner, inner, inner, outer):
                loss_of(weight).backward()
                optimizer.step()

    # Until the outer one steps, each update of the inner one is a step.
    assert recording.phases("forward", "backward", "optimizer")[-4:] == [(40, 24, 32)] * 4


def test_an_inference_loop_has_one_step_per_batch(clock: Any, weight: torch.Tensor, recorded: Any) -> None:
    with recorded() as recording, torch.no_grad():
        for batch in DataLoader(Samples(clock)):
            loss_of(weight, batch)

    assert [step.mode for step in recording.closed] == ["validation"] * 4
    assert recording.phases("data", "forward") == [(20, 10)] * 4


def test_a_scaled_step_that_is_skipped_still_ends_the_step(clock: Any, weight: torch.Tensor, recorded: Any) -> None:
    optimizer = SlowSGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with recorded() as recording:
        for number, batch in enumerate(DataLoader(Samples(clock))):
            loss = loss_of(weight, batch) * (float("inf") if number == 1 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    assert recording.phases("data", "optimizer") == [(20, 8), (20, 0), (20, 8), (20, 8)]


def test_the_iterator_of_a_loader_stays_torchs_own(clock: Any, recorded: Any) -> None:
    loader = DataLoader(Samples(clock))
    plain = type(iter(loader))
    with recorded():
        assert type(iter(loader)) is plain
        assert len(iter(loader)) == 4


def run_in_thread(function: Any) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_the_thread_that_trains_is_recorded_and_after_its_end_the_next_one(
    clock: Any, weight: torch.Tensor, recorded: Any
) -> None:
    optimizer = SlowSGD([weight], lr=0.1)

    def train() -> None:
        for batch in DataLoader(Samples(clock)):
            loss_of(weight, batch).backward()
            optimizer.step()

    with recorded() as recording:
        run_in_thread(train)
        run_in_thread(train)
        train()

    assert recording.phases("forward", "backward", "optimizer")[1:4] == [(10, 6, 8)] * 3
    # The first step of a thread has no fetch: nothing had trained in it yet.
    assert recording.phases("data")[:4] == [(None,)] + [(20,)] * 3
    assert len(recording.closed) >= 10


def test_a_thread_is_not_recorded_where_another_one_trains(clock: Any, weight: torch.Tensor, recorded: Any) -> None:
    optimizer = SlowSGD([weight], lr=0.1)

    def train() -> None:
        for batch in DataLoader(Samples(clock)):
            loss_of(weight, batch).backward()
            optimizer.step()

    with recorded() as recording:
        train()
        run_in_thread(train)

    assert len(recording.closed) == 4
