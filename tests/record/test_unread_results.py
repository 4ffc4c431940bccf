"""Ops whose results nothing reads, as the step in which ops are listened to shows them."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from perfkit.record.samplers import unread_results
from perfkit.record.samplers.constant_ops import ConstantOpLog
from perfkit.run.records import Phase, UnreadResults

X = torch.randn(256, 64)
HEAD, OTHER = nn.Linear(64, 8), nn.Linear(64, 64)
NORM = nn.BatchNorm1d(64)
CACHE = torch.zeros(256, 64)
KEPT: dict[str, Any] = {}
PARAMETER = nn.Parameter(torch.zeros(256, 64))


@pytest.fixture(autouse=True)
def small_parts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_results, "_FEW", 0.0)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.layer(x))


class TwoLines(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        return F.relu(x)


class Encoder(nn.Module):
    def __init__(self, kind: type[Block]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind() for _ in range(6))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        found = [x]
        for block in self.blocks:
            found.append(block(found[-1]))
        return found


ENCODER, OF_TWO = Encoder(Block), Encoder(TwoLines)


class Phased:
    """A log whose phase a step may set."""

    def __init__(self) -> None:
        self.phase: Phase = "forward"
        self.log = ConstantOpLog(lambda: self.phase)

    def run(self, step: Callable[[], Any]) -> tuple[UnreadResults, ...]:
        for _ in range(2):
            self.phase = "forward"
            self.log.start()
            step()
            self.log.stop()
        return self.log.unread.rows()


def found(step: Callable[[], Any]) -> tuple[UnreadResults, ...]:
    def whole() -> None:
        step()
        needed_part()

    return Phased().run(whole)


def needed_part() -> None:
    needed = X @ X.T
    for _ in range(10):
        needed = needed @ needed / 1e3
    needed.sum().item()


def line_of(function: Any, after: int = 0) -> int:
    return int(function.__code__.co_firstlineno) + after


@pytest.mark.parametrize("encoder", [ENCODER, OF_TWO], ids=["of one line", "of two lines"])
def test_blocks_after_the_last_one_whose_result_is_read_are_found_at_the_line_that_calls_them(encoder: Encoder) -> None:
    def loss() -> float:
        return F.cross_entropy(HEAD(encoder(X)[3]), torch.zeros(256, dtype=torch.int64)).item()

    [row] = found(loss)

    block = type(encoder.blocks[0])
    assert (row.line, row.called) == (line_of(Encoder.forward, 3), f"{block.__name__}.forward")
    assert row.ops == 6
    assert not row.draws
    assert row.busiest.line == line_of(block.forward, 1)
    assert 0 < row.host_ns < row.of_ns / 2


def test_blocks_of_a_loss_that_a_backward_goes_through_are_found_too() -> None:
    one = Phased()

    def step() -> None:
        loss = HEAD(ENCODER(X)[3]).square().mean()
        one.phase = "backward"
        loss.backward()
        one.phase = "optimizer"
        HEAD.zero_grad()

    [row] = one.run(step)

    assert (row.line, row.ops) == (line_of(Encoder.forward, 3), 6)


@pytest.mark.parametrize("trains", [False, True])
def test_a_step_most_of_which_is_dead_is_a_benchmark_unless_it_has_a_backward(*, trains: bool) -> None:
    one = Phased()

    def step() -> None:
        loss = HEAD(X).square().mean()
        dropped_parts()
        for _ in range(10):
            ENCODER(X)
        if trains:
            one.phase = "backward"
            loss.backward()

    assert bool(one.run(step)) is trains


def test_what_a_thread_that_the_step_starts_reads_is_not_known() -> None:
    started = threading.Thread.start

    def step() -> None:
        dropped = OTHER(X)
        thread = threading.Thread(target=lambda: dropped.norm().item())
        thread.start()
        thread.join()

    assert found(step) == ()
    assert threading.Thread.start is started


def dropped_head() -> None:
    hidden = OTHER(X)
    F.dropout(OTHER(hidden), 0.5).softmax(-1)  # never read
    HEAD(hidden).sum().item()


def dropped_function() -> None:
    dropped_parts()
    HEAD(X).sum().item()


def dropped_parts() -> torch.Tensor:
    wide = OTHER(X)
    wide.relu_()
    out = torch.zeros(256, 64)
    out[:, :32] = wide[:, 32:]
    return out


def test_a_head_that_is_dropped_is_found_and_that_it_draws_random_numbers() -> None:
    [row] = found(dropped_head)

    assert (row.line, row.called, row.draws) == (line_of(dropped_head, 2), None, True)


def test_a_function_whose_result_is_dropped_is_one_row_with_what_it_writes_in_place() -> None:
    [row] = found(dropped_function)

    assert (row.line, row.called) == (line_of(dropped_function, 1), "dropped_parts")
    assert row.busiest.line == line_of(dropped_parts, 1)
    assert row.ops == 4


def saved_in_function() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x.sin())
            return 2 * x

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * ctx.saved_tensors[0]

    Twice.apply(OTHER(X)).sum().backward()


def filled_elsewhere() -> None:
    """What an extension does with pointers: no op reads ``wide``, or writes into ``out``."""
    wide, out = OTHER(X).detach(), torch.zeros(256, 64)
    with torch.utils._python_dispatch._disable_current_modes():
        out.copy_(wide)
    out.sum().item()


def beside_thread() -> None:
    """What a thread has read and dropped is gone at the step's end."""
    release = threading.Event()
    thread = threading.Thread(target=lambda: release.wait())
    thread.start()
    OTHER(X)
    KEPT["threads"] = (*KEPT.get("threads", ()), release.set, thread.join)


class Tagged(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "step",
    [
        lambda: OTHER(X).sum().item(),
        lambda: bool(OTHER(X).any()),
        lambda: OTHER(X).tolist(),
        lambda: OTHER(X).detach().numpy().sum(),
        lambda: pickle.dumps(OTHER(X).detach()),
        lambda: OTHER(X).data_ptr(),
        lambda: torch.equal(OTHER(X), X),
        lambda: CACHE.copy_(OTHER(X).detach()),
        lambda: CACHE[3:9].add_(OTHER(X).detach()[3:9]),
        lambda: torch.mul(OTHER(X).detach(), 2, out=CACHE),
        lambda: KEPT.update(one=OTHER(X)),
        lambda: KEPT.update(one=OTHER(X).view(-1)[3:]),
        lambda: KEPT.update(one=[{"a": OTHER(X).sin()}]),
        lambda: setattr(PARAMETER, "data", OTHER(X).detach() * 2),
        lambda: setattr(PARAMETER, "grad", OTHER(X).detach() * 2),
        lambda: NORM(OTHER(X)),
        lambda: (OTHER(X) > 0).nonzero().shape[0],
        lambda: OTHER(X)[X > 0].shape[0],
        lambda: [one.item() for one in OTHER(X).unbind()[0]],
        lambda: checkpoint(lambda x: OTHER(x).relu().sum(), X, use_reentrant=False).backward(),
        lambda: OTHER(X).sum().backward(),
        saved_in_function,
        filled_elsewhere,
        beside_thread,
        lambda: OTHER(X).as_subclass(Tagged).sin(),
    ],
    ids=[
        *(
            "item",
            "bool",
            "tolist",
            "numpy",
            "pickled",
            "a pointer",
            "equal",
            "written into a cache",
            "added to a part",
        ),
        *("out=", "kept", "a kept view", "kept in a list", "a parameter's data", "a gradient", "running statistics"),
        *("a shape", "the shape of a choice", "its rows", "checkpointed", "a backward", "saved by a function"),
        *("an extension", "a thread", "a subclass"),
    ],
)
def test_what_is_read_is_not_reported(step: Callable[[], Any]) -> None:
    rows = found(step)
    for end in KEPT.pop("threads", ()):
        end()
    for one in (OTHER, NORM):
        one.zero_grad()

    assert rows == ()


@pytest.mark.parametrize("phase", ["backward", "optimizer", "validation"])
def test_what_other_phases_read_is_needed_and_their_own_ops_are_not_looked_at(phase: Phase) -> None:
    one = Phased()

    def step() -> None:
        hidden = OTHER(X)
        one.phase = phase
        hidden.exp()
        del hidden
        one.phase = "forward"
        needed_part()

    assert one.run(step) == ()


def test_a_norm_that_does_not_train_writes_no_statistics() -> None:
    norm = nn.BatchNorm1d(64).eval()

    [row] = found(lambda: norm(OTHER(X)))

    assert row.ops == 2


def test_a_step_that_computes_for_the_time_alone_is_not_reported() -> None:
    assert Phased().run(lambda: (ENCODER(X), X.sum().item())) == ()


def test_a_small_part_of_the_ops_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def step() -> None:
        for _ in range(20):  # so long that an op which the machine disturbs is a small part too
            needed_part()
        torch.ones(2).exp()

    assert found(step) == ()


def test_what_is_read_after_the_step_is_not_known_to_be_dead() -> None:
    def step() -> None:
        KEPT["before"] = KEPT.get("now")
        KEPT["now"] = OTHER(X)

    assert found(step) == ()
    KEPT.clear()


def test_no_tensor_is_kept_and_all_that_was_put_in_place_is_taken_away() -> None:
    before = torch.Tensor.data_ptr, torch.Tensor.__reduce_ex__
    log = Phased()
    log.run(dropped_head)

    assert (torch.Tensor.data_ptr, torch.Tensor.__reduce_ex__) == before
    assert not log.log.unread._made
    assert not log.log.unread._ops
