"""Models whose gradients nothing uses are told from those that are trained, by an optimizer or by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import perfkit
from perfkit.run.reading import read_run
from perfkit.run.records import UnusedGradients

STEPS = 12


def recorded(folder: Path, step: Callable[[], None], steps: int = STEPS) -> tuple[UnusedGradients, ...]:
    with perfkit.profile(folder, quiet=True):
        for _ in range(steps):
            step()
    rank = read_run(folder).ranks[0].rank
    assert rank is not None
    return rank.unused_gradients


class Models:
    def __init__(self) -> None:
        self.teacher, self.student = nn.Linear(4, 2), nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.student.parameters(), lr=0.01)
        self.x = torch.ones(3, 4)

    def update(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def with_gradients(self) -> None:
        target = self.teacher(self.x)  # here
        self.update((self.student(self.x) - target).square().mean())

    def without_gradients(self) -> None:
        with torch.no_grad():
            target = self.teacher(self.x)
        self.update((self.student(self.x) - target).square().mean())

    def frozen(self) -> None:
        self.teacher.requires_grad_(False)
        self.with_gradients()

    def by_hand(self) -> None:
        self.with_gradients()
        with torch.no_grad():
            for parameter in self.teacher.parameters():
                assert parameter.grad is not None
                parameter -= 0.01 * parameter.grad
                parameter.grad = None

    def asked_last(self) -> None:
        self.update(self.teacher(torch.cat([self.student(self.x)] * 2, dim=1)).mean())


def test_a_teacher_with_gradients_is_found_with_the_line_that_calls_it(tmp_path: Path) -> None:
    [found] = recorded(tmp_path / "run", Models().with_gradients)

    assert (found.module, found.elements, found.passes_on) == ("Linear", 10, False)
    assert found.called_at is not None
    assert found.called_at.file == __file__
    assert "# here" in Path(__file__).read_text().splitlines()[(found.called_at.line or 0) - 1]


def test_a_teacher_that_is_gone_when_the_run_ends_is_found_too(tmp_path: Path) -> None:
    models = [Models()]

    def step() -> None:
        models[0].with_gradients()
        if len(done) == 20:
            models.clear()
        done.append(0)

    done: list[int] = []
    with perfkit.profile(tmp_path / "run", quiet=True, schedule=perfkit.schedule(wait=2, warmup=1, active=1, repeat=1)):
        while models:
            step()
    rank = read_run(tmp_path / "run").ranks[0].rank
    assert rank is not None
    assert len(rank.unused_gradients) == 1


def test_a_model_whose_inputs_need_gradients_passes_them_on(tmp_path: Path) -> None:
    [found] = recorded(tmp_path / "run", Models().asked_last)

    assert found.passes_on


@pytest.mark.parametrize("how", ["without_gradients", "frozen", "by_hand"])
def test_a_model_without_gradients_or_that_is_trained_by_hand_is_not(how: str, tmp_path: Path) -> None:
    assert recorded(tmp_path / "run", getattr(Models(), how)) == ()


def test_networks_that_train_by_turns_both_use_their_gradients(tmp_path: Path) -> None:
    models = Models()
    other = torch.optim.SGD(models.teacher.parameters(), lr=0.01)

    def step() -> None:
        models.with_gradients()
        other.step()

    assert recorded(tmp_path / "run", step) == ()


class Unhelpful(nn.Linear):
    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        raise ValueError("not now")


def test_a_model_that_answers_with_an_error_trains_on(tmp_path: Path) -> None:
    models = Models()
    models.teacher = Unhelpful(4, 2)

    assert recorded(tmp_path / "run", models.with_gradients) == ()
    assert models.teacher.weight.grad is not None


def test_without_an_optimizer_nothing_is_known(tmp_path: Path) -> None:
    models = Models()

    # Where an optimizer is alive, a backward is a step from the seventeenth on.
    assert recorded(tmp_path / "run", lambda: models.teacher(models.x).sum().backward(), steps=24) == ()


class Probe(nn.Module):
    """A backbone that nothing trains, before a head or after a stem."""

    def __init__(self, *, stem: bool = False) -> None:
        super().__init__()
        self.stem, self.backbone, self.head = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 8)), nn.Linear(8, 1)
        self.with_stem = stem
        trained = [*self.head.parameters(), *(self.stem.parameters() if stem else ())]
        self.optimizer = torch.optim.SGD(trained, lr=0.01)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.backbone(self.stem(x) if self.with_stem else x)  # the backbone
        return self.head(features)

    def step(self) -> None:
        self.zero_grad()
        self(torch.ones(3, 4)).mean().backward()
        self.optimizer.step()


def test_a_backbone_that_was_left_out_of_the_optimizer_is_found_where_it_is_called(tmp_path: Path) -> None:
    probe = Probe()
    [found] = recorded(tmp_path / "run", probe.step)

    assert (found.module, found.elements, found.passes_on) == ("Sequential", 40, False)
    assert found.called_at is not None
    assert "# the backbone" in Path(__file__).read_text().splitlines()[(found.called_at.line or 0) - 1]
    assert not any(module._forward_pre_hooks for module in probe.modules())


def test_a_backbone_whose_next_call_is_that_of_a_validation_is_found_in_the_training_after_it(tmp_path: Path) -> None:
    probe = Probe()

    def step() -> None:
        with torch.no_grad():
            probe(torch.ones(2, 4))
        probe.step()

    [found] = recorded(tmp_path / "run", step, steps=24)

    assert (found.module, found.elements) == ("Sequential", 40)


def test_a_backbone_in_the_closure_of_an_optimizers_step_is_found_too(tmp_path: Path) -> None:
    probe = Probe()

    def loss() -> torch.Tensor:
        probe.zero_grad()
        loss = probe(torch.ones(3, 4)).mean()
        loss.backward()
        return loss

    # As Lightning trains.
    [found] = recorded(tmp_path / "run", lambda: probe.optimizer.step(loss))

    assert (found.module, found.elements, found.of) == ("Sequential", 40, "Probe")


def test_a_backbone_behind_a_trained_module_passes_gradients_on(tmp_path: Path) -> None:
    [found] = recorded(tmp_path / "run", Probe(stem=True).step)

    assert (found.module, found.passes_on) == ("Sequential", True)


def test_a_part_that_is_not_called_again_has_no_hook_after_the_run(tmp_path: Path) -> None:
    probe, steps = Probe(), [0]

    def step() -> None:
        steps[0] += 1
        if steps[0] <= 8:
            probe.step()
        else:
            probe.head(torch.ones(1, 8)).mean().backward()
            probe.optimizer.step()

    assert recorded(tmp_path / "run", step) == ()
    assert not any(module._forward_pre_hooks for module in probe.modules())


def test_a_teacher_that_an_optimizer_trained_first_is_found(tmp_path: Path) -> None:
    models = Models()
    first = torch.optim.SGD(models.teacher.parameters(), lr=0.01)
    steps = [0]

    def step() -> None:
        steps[0] += 1
        if steps[0] <= 10:
            first.zero_grad()
            models.teacher(models.x).square().mean().backward()
            first.step()
        else:
            models.with_gradients()

    found = recorded(tmp_path / "run", step, 100)

    assert [(one.module, one.elements) for one in found] == [("Linear", 10)]


def test_a_teacher_that_keeps_gradients_of_its_own_training_and_gets_no_new_ones_is_not(tmp_path: Path) -> None:
    models = Models()
    first = torch.optim.SGD(models.teacher.parameters(), lr=0.01)
    steps = [0]

    def step() -> None:
        steps[0] += 1
        if steps[0] <= 10:
            models.teacher(models.x).square().mean().backward()
            first.step()
        else:
            models.without_gradients()

    assert recorded(tmp_path / "run", step, 100) == ()


def test_gradients_that_are_accumulated_are_used(tmp_path: Path) -> None:
    models = Models()
    other = torch.optim.SGD(models.teacher.parameters(), lr=0.01)
    steps = [0]

    def step() -> None:
        steps[0] += 1
        models.with_gradients()
        if steps[0] % 16 == 1:
            other.step()

    assert recorded(tmp_path / "run", step, 100) == ()


class Layers(nn.Module):
    """Layers of which the last is trained; a Trainer clears all gradients after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.optimizer = torch.optim.SGD(self.layers[-1].parameters(), lr=0.01)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def step(self) -> None:
        self(torch.ones(3, 4)).mean().backward()
        self.optimizer.step()
        self.zero_grad()


class Tagger(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.words(torch.zeros(len(x), dtype=torch.long))
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_table_of_embeddings_is_no_share_of_what_the_backward_computes(tmp_path: Path) -> None:
    found = {one.module: one for one in recorded(tmp_path / "run", Tagger().step, steps=3 * STEPS)}

    assert (found["Embedding"].elements, found["Embedding"].share) == (4000, 0.0)
    assert (found["Linear"].elements, found["Linear"].share) == (60, pytest.approx(0.75))


def test_layers_before_the_trained_one_are_found_together_though_their_gradients_are_cleared(tmp_path: Path) -> None:
    model = Layers()

    [found] = recorded(tmp_path / "run", model.step)

    assert (found.module, found.parts, found.elements, found.of) == ("Linear", 3, 60, "Layers")
    assert found.share == pytest.approx(0.75)
    assert not found.passes_on, "no trained layer is before them"
    assert not any(parameter._backward_hooks for parameter in model.parameters())


def test_a_model_that_a_fused_update_trains_uses_its_gradients(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)

    def step() -> None:
        model(torch.ones(3, 4)).mean().backward()
        optimizer.step()
        model.zero_grad()

    assert recorded(tmp_path / "run", step, 100) == ()
