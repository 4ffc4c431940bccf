"""Frozen modules that get inputs of an earlier step again, whatever tensor a loader makes of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perfkit.record.watchers import recomputed_outputs
from perfkit.record.watchers.recomputed_outputs import RecomputedOutputWatch
from perfkit.run.records import RecomputedOutputs

#: Enough for rows that differ in each of their elements.
SAMPLES, BATCH = 64, 16


BUDGET_NS = recomputed_outputs._FIRST_NS


@pytest.fixture(autouse=True)
def no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much is looked at does not depend on how busy the machine is."""
    monkeypatch.setattr(recomputed_outputs, "_FIRST_NS", 10**12)


class Loop:
    """Steps that call a module with the watch told before it."""

    def __init__(self, *optimizers: Any) -> None:
        self.step = 0
        self.watch = RecomputedOutputWatch(optimizers, lambda: self.step)

    def call(self, module: Any, *inputs: Any, **named: Any) -> None:
        self.watch.add_call(module, (inputs, named))
        module(*inputs, **named)
        self.step += 1

    @torch.no_grad()
    def epochs(
        self, module: Any, data: Tensor, number: int = 2, change: Callable[[Tensor], Tensor] = Tensor.clone
    ) -> None:
        """Each epoch in another order, in new tensors."""
        for epoch in range(number):
            order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
            for batch in data[order].split(BATCH):
                self.call(module, change(batch))

    @property
    def row(self) -> RecomputedOutputs:
        [row] = self.watch.rows()
        return row


def pictures() -> Tensor:
    return torch.randn(SAMPLES, 3, 8, 8)


def backbone() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()


class Classifier(nn.Module):
    """A frozen backbone and a head that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = backbone().requires_grad_(False), nn.Linear(4, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images).mean((2, 3)))


def test_each_sample_of_the_second_epoch_came_before_in_another_order_and_tensor() -> None:
    loop = Loop()
    loop.epochs(backbone(), pictures())

    row = loop.row
    assert (row.module, row.of, row.inputs, row.again) == ("Sequential", None, 2 * SAMPLES, SAMPLES)
    assert (row.file, row.function) == (__file__, "Loop.call")


def test_words_are_known_by_their_numbers_and_arguments_by_their_values() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.attention = nn.Embedding(100, 8), nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, words: Tensor, layer: int = 0) -> Tensor:
            vectors = self.words(words)
            return self.attention(vectors, vectors, vectors)[0]

    encoder, texts, loop = Encoder().eval(), torch.randint(100, (SAMPLES, 12)), Loop()
    with torch.no_grad():
        loop.call(encoder, texts)
        loop.call(encoder, texts.clone())
        loop.call(encoder, texts, layer=1)

    assert (loop.row.inputs, loop.row.again) == (3 * SAMPLES, SAMPLES)


def test_sequences_that_differ_in_one_place_are_different_inputs() -> None:
    protein, loop, model = torch.randint(20, (1, 200)), Loop(), nn.Sequential(nn.Embedding(21, 4), nn.ReLU()).eval()
    for places in torch.arange(192).split(BATCH):
        masked = protein.repeat(BATCH, 1)
        masked[torch.arange(BATCH), places] = 20
        with torch.no_grad():
            loop.call(model, masked)
    assert loop.watch.rows() == ()

    with torch.no_grad():
        loop.call(model, masked)
    assert loop.row.again == BATCH


def test_boards_that_differ_in_one_place_are_different_inputs() -> None:
    loop, model = Loop(), backbone()
    for places in torch.arange(192).split(BATCH):
        boards = torch.zeros(BATCH, 192)
        boards[torch.arange(BATCH), places] = 1
        with torch.no_grad():
            loop.call(model, boards.view(BATCH, 3, 8, 8))

    assert loop.watch.rows() == ()


def test_augmented_samples_and_those_of_one_step_are_new() -> None:
    loop = Loop()
    loop.epochs(backbone(), pictures(), change=lambda batch: batch + torch.randn_like(batch))
    assert loop.watch.rows() == ()

    loop, model, images = Loop(), backbone(), pictures()
    with torch.no_grad():
        for _ in range(4):
            loop.call(model, images)
            loop.step = 0
    assert loop.watch.rows() == ()


@pytest.mark.parametrize("update", ["optimizer", "fused optimizer", "average", "average of lists"])
def test_a_model_that_changes_answers_anew(update: str) -> None:
    model, images = backbone(), pictures()
    optimizer = torch.optim.Adam(model.parameters(), fused=update == "fused optimizer")
    loop = Loop(*([optimizer] if "optimizer" in update else []))

    for _ in range(3):
        with torch.no_grad():
            loop.call(model, images)
        if "optimizer" in update:
            model(images).sum().backward()
            optimizer.step()
        elif update == "average":
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.9)
        else:
            with torch.no_grad():
                torch._foreach_mul_(list(model.parameters()), 0.9)

    assert loop.watch.rows() == ()


def test_a_change_between_two_looks_at_the_parameters_is_found_at_the_end() -> None:
    loop, model, images = Loop(), backbone(), pictures()
    with torch.no_grad():
        for _ in range(5):
            loop.call(model, images)
        assert loop.row.again
        next(model.parameters()).mul_(0.9)
        loop.call(model, images)

    assert loop.watch.rows() == ()


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Dropout(0.5)).train(),
        nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3)).train(),
    ],
    ids=["dropout", "normalized by the batch"],
)
def test_equal_inputs_with_other_answers_are_not_counted(module: nn.Module) -> None:
    loop = Loop()
    loop.epochs(module, pictures())
    assert loop.watch.rows() == ()


def test_one_word_at_a_time_and_a_cache_of_keys_depend_on_what_came_before() -> None:
    class Writer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.cell = nn.Embedding(10, 8), nn.GRU(8, 8, batch_first=True)

        def forward(self, words: Tensor, cache: Any = None) -> Tensor:
            return self.cell(self.words(words))[0]

    writer, loop = Writer().eval(), Loop()
    with torch.no_grad():
        for _ in range(8):
            loop.call(writer, torch.randint(10, (SAMPLES, 1)))
            loop.call(writer, torch.ones(SAMPLES, 4, dtype=torch.int64), cache=object())

    assert loop.watch.rows() == ()


def test_nodes_of_a_graph_are_one_input() -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
            return self.layer(nodes)[edges[0]]

    network, nodes, loop = Network().eval(), torch.randn(SAMPLES, 8), Loop()
    with torch.no_grad():
        for _ in range(20):
            loop.call(network, nodes, torch.randint(SAMPLES, (2, 100)))
        assert loop.watch.rows() == ()
        edges = torch.randint(SAMPLES, (2, 100))
        for _ in range(20):
            loop.call(network, nodes, edges)

    assert (loop.row.inputs, loop.row.again) == (40, 19)


def test_blank_pictures_say_nothing() -> None:
    loop, model = Loop(), backbone()
    with torch.no_grad():
        for _ in range(4):
            loop.call(model, torch.zeros(SAMPLES, 3, 8, 8))
    assert loop.watch.rows() == ()


def test_a_frozen_part_of_a_trained_model_is_seen_in_its_own_call() -> None:
    model = Classifier()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    loop, images = Loop(optimizer), pictures()
    for _ in range(3):
        for batch in images.split(BATCH):
            loop.call(model, batch.clone())
            model(batch).sum().backward()
            optimizer.step()

    row = loop.row
    assert (row.module, row.of, row.inputs, row.again) == ("Sequential", "Classifier", 3 * SAMPLES, 2 * SAMPLES)
    assert (row.file, row.function) == (__file__, "Classifier.forward")
    assert not model.backbone._forward_pre_hooks


def test_the_hook_of_a_part_that_is_not_called_again_is_removed() -> None:
    model, loop = Classifier(), Loop()
    loop.watch.add_call(model, ((pictures(),), {}))
    assert model.backbone._forward_pre_hooks

    loop.watch.stop()

    assert not model.backbone._forward_pre_hooks


def test_rows_of_a_program_without_steps_are_kept_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recomputed_outputs, "_MAX_ROWS", 2 * SAMPLES)
    loop, model = Loop(), backbone()
    with torch.no_grad():
        for _ in range(8):
            loop.call(model, pictures())
            loop.step = 0

    [[frozen]] = loop.watch._modules.values()
    assert (frozen.rows, len(frozen.running)) == (8 * SAMPLES, 2 * SAMPLES)


def test_looking_takes_a_fixed_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]

    def clock() -> int:
        now[0] += 1_000_000  # as if each reading came a millisecond after the one before
        return now[0]

    monkeypatch.setattr(recomputed_outputs, "_FIRST_NS", BUDGET_NS)
    monkeypatch.setattr(time, "perf_counter_ns", clock)
    loop, model, images = Loop(), backbone(), pictures()
    with torch.no_grad():
        for _ in range(100):
            loop.call(model, images)

    assert loop.row.inputs < (BUDGET_NS // 1_000_000 + 4) * SAMPLES


def perceptual(watch_model: nn.Module, *, change: Callable[[nn.Module], object] = lambda _: None) -> Loop:
    """Twenty steps that move a picture towards two others, as a network sees them whose parameters need gradients."""
    target, content, style = (torch.randn(1, 3, 8, 8) for _ in range(3))
    optimizer = torch.optim.SGD([target.requires_grad_()], lr=0.1)
    trained: list[Any] = []  # an optimizer is known when it has stepped
    loop = Loop()
    loop.watch = RecomputedOutputWatch(trained, lambda: loop.step)
    for _ in range(20):
        loop.watch.add_call(watch_model, ((target,), {}))
        loop.watch.add_call(watch_model, ((content,), {}))
        loop.watch.add_call(watch_model, ((style,), {}))
        (watch_model(target) - watch_model(content) - watch_model(style)).square().mean().backward()
        optimizer.step()
        trained[:] = [optimizer, *trained[1:]]
        change(watch_model)
        loop.step += 1
    return loop


def test_a_module_that_needs_gradients_and_that_no_optimizer_has_is_frozen_and_each_line_counts_alone() -> None:
    content, style = perceptual(backbone()).watch.rows()

    assert (content.module, content.inputs, content.again) == ("Sequential", 19, 18)
    assert (style.inputs, style.again, style.line - content.line) == (19, 18, 1)


@pytest.mark.parametrize("update", ["by hand", "by hand without versions", "average"])
def test_a_module_without_an_optimizer_that_the_program_changes_is_not_frozen(update: str) -> None:
    @torch.no_grad()
    def change(model: nn.Module) -> None:
        for parameter in model.parameters():
            if update == "by hand":
                parameter -= 0.1 * parameter.grad
            elif update == "average":
                parameter.lerp_(torch.ones_like(parameter), 0.1)
            else:
                parameter.data = parameter.data * 0.9

    assert perceptual(backbone(), change=change).watch.rows() == ()


def test_a_model_whose_optimizer_steps_after_that_of_another_is_trained() -> None:
    generator, critic, images = backbone(), backbone(), pictures()
    trained: list[Any] = []
    loop = Loop()
    loop.watch = RecomputedOutputWatch(trained, lambda: loop.step)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.0) for model in (critic, generator)]
    for step in range(20):
        for model in (critic, generator):
            loop.call(model, images)
        trained[:] = optimizers[: 1 + (step > 3)]

    assert loop.watch.rows() == ()


def test_a_module_that_is_called_with_weights_that_another_one_makes_is_not_frozen() -> None:
    model, maker, images, loop = nn.Linear(4, 4), nn.Linear(2, 20), torch.randn(BATCH, 4), Loop()
    optimizer = torch.optim.SGD(maker.parameters(), lr=0.1)
    loop.watch = RecomputedOutputWatch([optimizer], lambda: loop.step)

    class Told(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            loop.watch.add_call(self.model, ((x,), {}))
            return self.model(x)

    for _ in range(20):
        weights = maker(torch.ones(2))
        made = {"model.weight": weights[:16].view(4, 4), "model.bias": weights[16:]}
        torch.func.functional_call(Told(), made, images).sum().backward()
        loop.step += 1

    assert loop.watch.rows() == ()
