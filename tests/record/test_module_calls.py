"""The modules that a line called in the traced step, repeated calls, and loops over samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torchmetrics
from torch import Tensor, nn

from perfkit.record.samplers.line_tracer import LineTracer
from perfkit.run.records import ModuleCalls, Phase


def traced(step: Callable[[], Any]) -> list[ModuleCalls]:
    """The calls of modules in a step, line by line."""
    tracer = LineTracer(lambda: "forward")
    tracer.start()
    step()
    tracer.stop()
    assert tracer.refused is None
    return [calls for row in sorted(tracer.rows(), key=lambda row: row.line) for calls in row.modules]


def again(step: Callable[[], Any]) -> int:
    return sum(calls.again for calls in traced(step))


def test_a_call_with_the_same_input_from_another_line_is_repeated() -> None:
    model, x = nn.Linear(4, 4), torch.randn(8, 4)

    def step() -> None:
        model(x).sum().backward()
        model(x)

    first, second = traced(step)

    assert (first.module, first.calls, first.again) == ("Linear", 1, 0)
    assert (second.again, second.again_backward) == (1, False)
    assert second.again_ns > 0


def test_a_repeated_call_with_a_backward_counts_with_it() -> None:
    model, x = nn.Linear(4, 4), torch.randn(8, 4)

    def step() -> None:
        one = model(x).sum()
        other = model(x).mean()
        (one + other).backward()

    assert [calls.again_backward for calls in traced(step)] == [False, True]


def test_a_metric_whose_value_a_statement_drops_is_told_from_one_that_is_read() -> None:
    metric, own = torchmetrics.MeanMetric(), nn.Identity()
    values, kept = torch.ones(4), list[Any]()

    def step() -> None:
        metric(values)
        own(values)
        kept.append(metric(values))
        read = metric(values)
        metric.update(read)

    assert [(calls.module, calls.drops_value) for calls in traced(step)] == [
        ("MeanMetric", True),
        ("Identity", False),
        ("MeanMetric", False),
        ("MeanMetric", False),
    ]


def test_another_or_a_changed_input_is_not_repeated() -> None:
    model, x = nn.Linear(4, 4), torch.randn(8, 4)

    def step() -> None:
        model(x)
        model(x + 1)
        x.add_(1)
        model(x)

    assert again(step) == 0


def test_two_networks_that_train_against_each_other_have_no_repeated_call() -> None:
    model, x = nn.Linear(4, 4), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        model(x).sum().backward()

    assert again(step) == 0


def test_a_call_after_the_update_without_a_backward_is_repeated() -> None:
    model, x = nn.Linear(4, 4), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        model(x)

    assert again(step) == 1


def test_a_call_with_active_dropout_is_not_repeated() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), torch.randn(8, 4)

    def step() -> None:
        model(x)
        model(x)

    assert again(step) == 0
    model.eval()
    assert again(step) == 1


def test_a_call_with_dropout_repeats_one_that_a_library_made_for_its_own_loss() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)), torch.randn(8, 4)
    trainer: dict[str, Any] = {}
    code = compile(
        "def compute_loss(model, x):\n    return model(x).sum()\n", "/lib/site-packages/trainer/loss.py", "exec"
    )
    exec(code, trainer)

    def step() -> None:
        loss = trainer["compute_loss"](model, x)
        (loss + model(x).sum()).backward()

    assert again(step) == 1


def test_a_call_without_a_graph_repeats_one_with_dropout_and_no_backward_follows_it() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)), torch.randn(8, 4)

    def step() -> None:
        loss = model(x).sum()
        with torch.no_grad():
            model(x)
        loss.backward()

    assert [(calls.again, calls.again_backward) for calls in traced(step)] == [(0, False), (1, False)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64])
def test_equal_numbers_in_another_memory_are_the_same_input_without_gradients_only(dtype: torch.dtype) -> None:
    model, x, others = nn.Identity(), torch.ones(8, 4).to(dtype), torch.ones(8, 4).to(dtype)
    others[7, 3] = 0

    def step() -> None:
        with torch.no_grad():
            model(x.clone())
            model(x.clone())
            model(others)
            model(others.conj())
        model(x.clone())

    assert [calls.again for calls in traced(step)] == [0, 1, 0, 1, 0]


def test_a_module_that_draws_random_numbers_repeats_nothing_by_equal_numbers_either() -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.randn_like(x)

    model = Noisy()

    def step() -> None:
        with torch.no_grad():
            model(torch.ones(8, 4))
            model(torch.ones(8, 4))
            for _ in range(3):
                model(torch.ones(8, 4))

    assert [(calls.again, calls.same) for calls in traced(step)] == [(0, 0)] * 3


def test_equal_numbers_are_no_equal_input_of_a_module_that_keeps_a_state() -> None:
    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = torch.zeros(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.hidden = torch.tanh(self.hidden + x.mean(0))
            return self.hidden

    model = Agent()

    def step() -> None:
        with torch.no_grad():
            model(torch.ones(8, 4))
            model(torch.ones(8, 4))

    assert again(step) == 0


def test_labels_of_the_first_call_are_no_part_of_its_input() -> None:
    class Model(nn.Module):
        def forward(self, words: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
            return words * 2 if labels is None else (words - labels).sum()

    model, x = Model(), torch.randn(8, 4)

    def step() -> None:
        model(words=x, labels=torch.zeros(8, 4))
        model(x)

    assert again(step) == 1


def test_a_module_that_a_library_calls_counts_at_the_line_that_calls_the_library() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4)), torch.randn(8, 4)

    def step() -> None:
        torch.func.functional_call(model, {}, (x,))
        model(x)

    assert [(calls.module, calls.calls, calls.again) for calls in traced(step)] == [
        ("Sequential", 1, 0),
        ("Sequential", 1, 1),
    ]


def test_another_tensor_in_the_same_memory_is_not_repeated() -> None:
    model = nn.Linear(64, 64)

    def step() -> None:
        model(torch.ones(64, 64))
        model(torch.zeros(64, 64))

    assert again(step) == 0


def test_samples_of_a_batch_are_slices_and_states_of_a_recurrence_are_not() -> None:
    model, cell, batch = nn.Linear(4, 4), nn.GRUCell(4, 4), torch.randn(16, 4)

    def samples() -> None:
        for sample in batch:
            model(sample.unsqueeze(0))

    def recurrence() -> None:
        state = torch.zeros(1, 4)
        for sample in batch:
            state = cell(sample.unsqueeze(0), state)

    [one] = traced(samples)
    [other] = traced(recurrence)

    assert (one.calls, one.sliced) == (16, True)
    assert (other.calls, other.sliced) == (16, False)


def test_slices_are_found_in_inference_mode_too() -> None:
    model = nn.Linear(4, 4)

    def step() -> None:
        with torch.inference_mode():
            batch = torch.randn(16, 4)
            for sample in batch:
                model(sample[None])

    [calls] = traced(step)

    assert calls.sliced


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_batches_of_a_table_are_no_samples(mode: Any) -> None:
    model, table = nn.Linear(4, 4), torch.randn(64, 4)

    def step() -> None:
        with mode():
            for rows in table.split(8):
                model(rows)

    [calls] = traced(step)

    assert (calls.calls, calls.sliced) == (8, False)


def test_pieces_of_a_text_are_samples() -> None:
    model = nn.Embedding(10, 4)

    def step() -> None:
        for piece in torch.randint(10, (64,)).split(8):
            model(piece)

    [calls] = traced(step)

    assert (calls.calls, calls.sliced) == (8, True)


def test_micro_batches_of_one_step_are_no_loop_over_samples() -> None:
    model, batch = nn.Linear(4, 4), torch.randn(16, 4)

    def step() -> None:
        for part in batch.split(2):
            model(part).sum().backward()

    [calls] = traced(step)

    assert (calls.calls, calls.sliced) == (8, False)


def test_lines_before_the_first_module_are_marked_and_functions_have_their_callers() -> None:
    model = nn.Linear(4, 4)

    def prepare() -> torch.Tensor:
        return torch.tensor([[float(n) for n in range(4)]])

    tracer = LineTracer(lambda: "forward")
    tracer.start()
    x = prepare()
    model(x)
    x.sum()
    tracer.stop()
    assert tracer.refused is None

    rows = tracer.rows()
    prepared = next(row for row in rows if row.function.endswith("prepare"))
    last = max((row for row in rows if not row.function.endswith("prepare")), key=lambda row: row.line)
    assert prepared.before_model is True
    assert any((by.function or "").startswith("test_lines_before") for by in prepared.callers)
    assert last.before_model is False


@pytest.mark.parametrize("in_function", [False, True], ids=["the loop", "a function of the loop"])
def test_what_ends_the_round_before_does_not_prepare_inputs_where_the_model_is_called_by(in_function: bool) -> None:
    model = nn.Linear(4, 4)
    tracer = LineTracer(lambda: "forward")
    written: list[str] = []

    def write(number: int) -> None:
        written.append(f"step {number}")

    def prepare() -> torch.Tensor:
        return torch.tensor([[float(number)] * 4 for number in range(3)])

    def training_step() -> None:
        x = prepare()
        model(x)

    # A step that begins with an update: the rest of a round, then the next round up to its update.
    for number in range(2):
        if in_function:
            training_step()
        else:
            x = prepare()
            model(x)
        if number == 1:
            break
        tracer.start()
        write(number)
    tracer.stop()

    before = {row.function.rpartition(".")[2]: row.before_model for row in tracer.rows() if row.function}
    assert (before["prepare"], before["write"]) == (True, False)


def test_a_model_that_a_library_calls_has_the_row_of_the_line_that_began_before_the_step() -> None:
    model, phase = nn.Linear(4, 4), ["other"]
    tracer = LineTracer(lambda: cast(Phase, phase[0]))
    trainer: dict[str, Any] = {}
    exec(compile(TRAINER, "/x/site-packages/trainer/loop.py", "exec"), trainer)

    def collate(size: int) -> torch.Tensor:
        return torch.randn(size, 4)

    trainer["train"](tracer, model, collate, phase)
    assert tracer.refused is None

    [row] = [row for row in tracer.rows() if row.modules]
    assert (row.function or "").startswith("test_a_model_that_a_library")
    assert (row.runs, row.phase, row.before_model) == (0, "forward", False)
    [calls] = row.modules
    assert (calls.module, calls.calls) == ("Linear", 3)
    assert row.host_ns >= calls.host_ns > 0
    collated = next(row for row in tracer.rows() if (row.function or "").endswith("collate"))
    assert (collated.phase, collated.runs) == ("data", 3)


#: A Trainer: its step begins in its own code, below a line of the user's.
TRAINER = """
def train(tracer, model, collate, phase):
    tracer.start()
    for _ in range(3):
        phase[0] = "data"
        batch = collate(8)
        phase[0] = "forward"
        model(batch)
    tracer.stop()
"""


def test_a_helper_that_two_lines_call_with_the_same_input_repeats_the_call() -> None:
    model, x = nn.Linear(4, 4), torch.randn(8, 4)

    def scores(x: torch.Tensor) -> torch.Tensor:
        return model(x).softmax(1)

    def step() -> None:
        scores(x)
        scores(x)
        for _ in range(2):
            scores(x + 1)

    [calls] = traced(step)

    assert (calls.calls, calls.again) == (4, 1)
    assert calls.again_at is not None
    assert calls.again_at.line == step.__code__.co_firstlineno + 2


def test_what_a_model_calls_in_a_repeated_call_is_not_counted_as_well() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    model, x = Model(), torch.randn(8, 4)

    def step() -> None:
        model(x)
        model(x)

    assert again(step) == 1


def test_a_forward_that_a_method_calls_as_a_function_after_the_update_repeats_what_it_calls() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

        @torch.no_grad()
        def predict(self, x: torch.Tensor) -> torch.Tensor:
            return self.forward(x).argmax(1)

    model, x = Model(), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        model.predict(x)

    [inner] = [calls for calls in traced(step) if calls.module == "Linear"]

    assert (inner.calls, inner.again, inner.again_backward) == (2, 1, False)
    assert inner.again_at is not None
    assert inner.again_at.line == step.__code__.co_firstlineno + 3


def test_a_closure_that_is_called_from_several_lines_of_an_optimizer_repeats_nothing() -> None:
    model, x = nn.Linear(4, 4), torch.randn(8, 4)

    def closure() -> torch.Tensor:
        return model(x).sum()

    def descend(scale: float) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(scale)

    def step() -> None:
        closure().backward()
        descend(0.9)
        with torch.no_grad():
            closure()
        descend(0.5)
        with torch.no_grad():
            closure()

    assert again(step) == 0


def test_a_module_that_draws_random_numbers_repeats_nothing() -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.randn_like(x)

    model, x = Noisy(), torch.randn(8, 4)

    def step() -> None:
        model(x)
        model(x)

    assert again(step) == 0


def test_calls_with_one_position_more_than_the_last_are_counted_with_the_time_of_the_others() -> None:
    model = nn.Embedding.from_pretrained(torch.rand(10, 4))  # below 1: the next word is the first

    def step() -> None:
        text = torch.zeros(3, 5, dtype=torch.long)
        for _ in range(12):
            text = torch.cat([text, model(text)[:, -1:, 0].long()], dim=1)

    class Cached(nn.Module):
        def forward(self, mask: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
            return model.weight[text]

    cached = Cached()

    def with_cache() -> None:
        text = torch.zeros(3, 1, dtype=torch.long)
        for place in range(12):
            text = cached(torch.ones(3, 5 + place), text)[:, -1:, 0].long()

    [calls] = traced(step)
    assert (calls.calls, calls.growing) == (12, 11)
    assert 0 < calls.growing_ns <= calls.host_ns * 15 / 16
    [calls] = traced(with_cache)
    assert (calls.calls, calls.growing, calls.growing_ns) == (12, 0, 0)


def test_passes_over_one_input_without_gradients_are_the_same_calls_and_with_gradients_they_are_not() -> None:
    model, first, second = nn.Sequential(nn.Linear(4, 4), nn.Dropout()), torch.randn(8, 4), torch.randn(8, 4)

    def step() -> None:
        with torch.no_grad():
            for x in (first, second):
                [model(x) for _ in range(5)]
        [model(first) for _ in range(3)]

    passes, graphs = traced(step)

    assert (passes.calls, passes.same, passes.same_most, passes.samples) == (10, 8, 4, 8)
    assert 0 < passes.same_ns < passes.host_ns
    assert (graphs.calls, graphs.same, graphs.same_ns) == (3, 0, 0)


def test_an_input_that_is_written_in_between_is_not_the_same() -> None:
    model, x = nn.Linear(4, 4), torch.randn(1, 4)

    def step() -> None:
        with torch.no_grad():
            for _ in range(5):
                x.copy_(model(x))

    [calls] = traced(step)

    assert (calls.calls, calls.same, calls.samples) == (5, 0, 1)


def test_a_mask_or_segments_that_end_in_equal_numbers_are_no_padding_of_the_words() -> None:
    class Reader(nn.Module):
        def forward(self, words: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
            return words + segments

    reader = Reader()
    words, segments = torch.arange(1, 41).view(2, 20), torch.ones(2, 20, dtype=torch.int64)
    segments[:, :4] = 0
    padded = words.clone()
    padded[:, 15:] = 0

    [whole] = traced(lambda: reader(words, segments))
    [part] = traced(lambda: reader(padded, segments))

    assert whole.padded_ns == 0
    assert 0 < (part.padded_ns or 0) < part.host_ns / 2


def test_a_call_knows_whether_a_backward_reaches_its_answer_and_where_that_goes_on() -> None:
    model, given, made = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), torch.randn(8, 4), torch.randn(8, 4)
    other, made = nn.Linear(4, 4), made.requires_grad_()

    def step() -> None:
        first = [model(made)]
        second = model(given)
        third = model(given).detach()
        with torch.no_grad():
            fourth = model(given)
        fifth = other(given)
        (first[0] + second + third + fourth + fifth).sum().backward()

    calls = traced(step)

    assert [one.reached for one in calls] == [True, True, False, None, True]
    assert [one.passes_on for one in calls] == [True, False, False, False, False]
    assert len({one.number for one in calls[:4]}) == 1
    assert calls[4].number != calls[0].number


def test_a_module_that_reads_what_is_trained_elsewhere_passes_gradients_on_and_one_with_noise_draws() -> None:
    class Patched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.patches = nn.Linear(4, 4), [torch.zeros(4, requires_grad=True)]

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x + self.patches[0])

    class Noisy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.randn(4)

    patched, noisy, x = Patched(), Noisy(4, 4), torch.randn(8, 4)

    def step() -> None:
        one = patched(x)
        other = noisy(x)
        (one + other).sum().backward()

    assert [(one.passes_on, one.draws) for one in traced(step)[-2:]] == [(True, False), (False, True)]
