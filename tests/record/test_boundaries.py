"""Where steps end in loops that have no loader, no optimizer, or neither; time is a fake clock that the loop moves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from perfkit.record.hooks import boundaries
from perfkit.record.live_objects import instances_of, subclasses_of

pytestmark = pytest.mark.usefixtures("nothing_compiled")


class Samples(Dataset[torch.Tensor]):
    def __init__(self, clock: Any, count: int) -> None:
        self.clock, self.count = clock, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        self.clock.pass_ms(1)
        return torch.ones(3)


class Model(torch.nn.Linear):
    """Takes 10 ms a call on the fake clock."""

    clock: Any = None

    def __init__(self) -> None:
        super().__init__(3, 3)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        Model.clock.pass_ms(10)
        return super().forward(batch)


@pytest.fixture(autouse=True)
def slow(clock: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Optimizers that other tests of this process keep alive are not this program's.
    others = {id(one) for one in instances_of(subclasses_of(torch.optim.Optimizer))}
    monkeypatch.setattr(
        boundaries, "instances_of", lambda kinds: [one for one in instances_of(kinds) if id(one) not in others]
    )
    torch._dynamo.reset()  # and what they compiled
    Model.clock = clock
    yield
    Model.clock = None


def update(weight: torch.Tensor, grad: torch.Tensor | None, clock: Any) -> None:
    assert grad is not None
    with torch.no_grad():
        clock.pass_ms(4)
        weight -= 0.1 * grad


def test_each_update_is_a_step_in_a_loop_over_a_cached_list_of_a_loader(clock: Any, recorded: Any) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded() as recording:
        batches = list(DataLoader(Samples(clock, 8)))
        for _ in range(5):
            for batch in batches:
                model(batch).sum().backward()
                optimizer.step()

    # The first step also has the updates after which it is clear that the loader is not read any more.
    assert recording.walls_ms[1:] == [10] * 36
    assert sum(recording.walls_ms) == 400
    assert recording.counted_by == "optimizer"
    assert {step.mode for step in recording.closed} == {"train"}


def test_a_list_of_a_loader_made_again_in_each_epoch_stays_cached(clock: Any, recorded: Any) -> None:
    model, loader = Model(), DataLoader(Samples(clock, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded() as recording:
        for _ in range(3):
            for batch in list(loader):
                model(batch).sum().backward()
                optimizer.step()

    assert len(recording.closed) == 3 * 8 - 3
    assert max(recording.walls_ms[1:]) == 18


def test_one_batch_used_for_all_steps_has_a_step_per_update(clock: Any, recorded: Any) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded() as recording:
        batch = next(iter(DataLoader(Samples(clock, 8))))
        for _ in range(60):
            model(batch).sum().backward()
            optimizer.step()

    assert recording.walls_ms[1:] == [10] * 42


def test_a_loop_reads_batch_by_batch_again_after_a_cached_list(clock: Any, recorded: Any) -> None:
    model, loader = Model(), DataLoader(Samples(clock, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded() as recording:
        for batches in (list(loader), loader, loader):
            for batch in batches:
                model(batch).sum().backward()
                optimizer.step()

    assert recording.counted_by == "loader"
    assert recording.walls_ms[-12:] == [11] * 12


@pytest.mark.parametrize("critic_steps", [1, 5, 10])
def test_several_updates_per_batch_are_one_step(clock: Any, critic_steps: int, recorded: Any) -> None:
    critic, generator = Model(), Model()
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
    of_generator = torch.optim.SGD(generator.parameters(), lr=0.1)
    with recorded() as recording:
        for _ in range(2):
            for batch in DataLoader(Samples(clock, 4)):
                for _ in range(critic_steps):
                    critic(batch).sum().backward()
                    of_critic.step()
                generator(batch).sum().backward()
                of_generator.step()

    assert recording.walls_ms == [1 + 10 * (critic_steps + 1)] * 8
    assert recording.counted_by == "loader"


def test_the_update_left_over_from_accumulation_ends_no_step_of_its_own(clock: Any, recorded: Any) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded() as recording:
        for _ in range(3):
            for number, batch in enumerate(DataLoader(Samples(clock, 5))):
                model(batch).sum().backward()
                if number % 2:
                    optimizer.step()
            optimizer.step()

    assert recording.counted_by == "loader"
    assert len(recording.closed) == 9


def test_batches_that_are_fetched_ahead_belong_to_the_step_before(clock: Any, recorded: Any) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded() as recording:
        for _ in range(3):
            batches = iter(DataLoader(Samples(clock, 6)))
            batch = next(batches)
            while batch is not None:
                following = next(batches, None)
                model(batch).sum().backward()
                optimizer.step()
                batch = following

    assert recording.counted_by == "loader"
    assert len(recording.closed) == 18


def test_a_hand_written_update_of_a_model_belongs_to_the_step_of_its_backward(clock: Any, recorded: Any) -> None:
    model = Model()
    with recorded() as recording:
        for _ in range(6):
            model(torch.ones(3)).sum().backward()
            update(model.weight, model.weight.grad, clock)

    assert recording.walls_ms[1:] == [14] * 4
    assert recording.counted_by == "backward"
    assert [step.phases_ns.other for step in recording.closed[1:]] == [4_000_000] * 4


@pytest.mark.parametrize("by", ["backward", "grad"])
def test_each_backward_is_a_step_where_neither_a_module_nor_an_optimizer_is_used(
    clock: Any, by: str, recorded: Any
) -> None:
    weight = torch.ones(3, requires_grad=True)
    with recorded() as recording:
        for _ in range(6):
            clock.pass_ms(10)
            loss = (weight * 2.0).sum()
            if by == "grad":
                (grad,) = torch.autograd.grad(loss, weight)
            else:
                loss.backward()
                assert weight.grad is not None
                grad = weight.grad
            update(weight, grad, clock)

    assert recording.walls_ms[1:] == [14] * 4
    assert recording.counted_by == "backward"


def test_gradients_of_one_loss_by_each_parameter_are_one_step(clock: Any, recorded: Any) -> None:
    weights = [torch.ones(3, requires_grad=True) for _ in range(4)]
    with recorded() as recording:
        for _ in range(6):
            clock.pass_ms(10)
            loss = torch.stack(weights).square().sum()
            grads = [torch.autograd.grad(loss, weight, retain_graph=True)[0] for weight in weights]
            for weight, grad in zip(weights, grads, strict=True):
                update(weight, grad, clock)

    assert recording.walls_ms[1:] == [26] * 4
    assert recording.counted_by == "backward"


def test_a_hand_written_update_with_a_loader_has_a_step_per_batch(clock: Any, recorded: Any) -> None:
    weight = torch.ones(3, requires_grad=True)
    with recorded() as recording:
        for _ in range(2):
            for batch in DataLoader(Samples(clock, 6)):
                (weight * batch).sum().backward()
                update(weight, weight.grad, clock)

    assert recording.walls_ms[1:] == [5] * 10


def test_batches_accumulated_before_the_first_update_are_one_step(clock: Any, recorded: Any) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded() as recording:
        for number in range(24):
            model(torch.ones(3)).sum().backward()
            if number % 8 == 7:
                optimizer.step()

    assert recording.walls_ms == [80] * 3
    assert recording.counted_by == "optimizer"


def test_a_gradient_inside_of_a_loss_ends_no_step(clock: Any, recorded: Any) -> None:
    weight = torch.ones(3, requires_grad=True)
    with recorded() as recording:
        for _ in range(6):
            clock.pass_ms(10)
            (grad,) = torch.autograd.grad((weight**2).sum(), weight, create_graph=True)
            grad.square().sum().backward()
            update(weight, weight.grad, clock)

    assert recording.walls_ms[-2:] == [14] * 2


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_of_single_samples_before_the_first_update_end_no_step(
    clock: Any, create_graph: bool, recorded: Any
) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded() as recording:
        for _ in range(4):
            for _ in range(20):
                x = torch.ones(3, requires_grad=True)
                torch.autograd.grad(model(x).sum(), x, create_graph=create_graph)
            model(torch.ones(3)).sum().backward()
            optimizer.step()

    assert recording.counted_by == "optimizer"
    assert recording.walls_ms == [210] * 4


def test_without_a_loader_and_an_update_a_call_of_the_model_is_a_step(clock: Any, recorded: Any) -> None:
    model = torch.nn.Sequential(Model(), Model()).eval()
    with recorded() as recording, torch.no_grad():
        for _ in range(20):
            model(torch.ones(3))
            clock.pass_ms(5)

    assert recording.counted_by == "module"
    assert recording.walls_ms == [25] * 12
    assert {step.mode for step in recording.closed} == {"predict"}


def test_a_step_has_one_call_of_each_module_of_a_round(clock: Any, recorded: Any) -> None:
    encoder, planner = Model(), Model()
    with recorded() as recording, torch.no_grad():
        for _ in range(20):
            planner(encoder(torch.ones(3)))

    assert recording.walls_ms[1:] == [20] * 15


def test_the_module_that_is_called_over_and_over_has_the_steps(clock: Any, recorded: Any) -> None:
    encoder, decoder = Model(), Model()
    with recorded() as recording, torch.no_grad():
        state = encoder(torch.ones(3))
        for _ in range(50):
            state = decoder(state)

    assert recording.walls_ms[-20:] == [10] * 20


def test_calls_before_the_first_update_are_no_steps_where_the_program_holds_an_optimizer(
    clock: Any, recorded: Any
) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded() as recording:
        for _ in range(3):
            with torch.no_grad():
                for _ in range(20):
                    model(torch.ones(3))
            model(torch.ones(3)).sum().backward()
            optimizer.step()

    assert recording.walls_ms == [210] * 3
    assert recording.counted_by == "optimizer"


def test_calls_of_a_model_on_a_cached_list_of_a_loader_are_steps(clock: Any, recorded: Any) -> None:
    model = Model()
    with recorded() as recording, torch.no_grad():
        batches = list(DataLoader(Samples(clock, 20)))
        for batch in batches:
            model(batch)

    assert recording.counted_by == "module"
    assert recording.walls_ms[-11:] == [10] * 11
