"""Each change takes effect on what a program makes, says where, and leaves nothing behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

import perfkit
from perfkit._patches import installed
from perfkit.errors import UsageError
from perfkit.rules._engine import find_rules
from perfkit.trial.catalog import find_changes, parse_changes

DATA = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def train(steps: int = 4, **options: Any) -> list[float]:
    """The losses of a small training whose numbers depend on nothing but the seed."""
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
    losses = []
    batches = iter(DataLoader(DATA, batch_size=4))
    for _ in range(steps):
        inputs, targets = next(batches)
        optimizer.zero_grad(set_to_none=False)
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# -- the catalogue


def test_a_change_answers_rules_that_exist() -> None:
    rules = {rule.id for rule in find_rules()}
    for change in find_changes().values():
        assert set(change.answers) <= rules, change.id
        assert change.answers
        assert change.title


def test_values_are_written_after_an_equals_sign_and_several_with_commas() -> None:
    assert [str(one) for one in parse_changes(["tf32,workers=0,2", "threads=1"])] == [
        "tf32", "workers=0", "workers=2", "threads=1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("worker=2", "no change is called 'worker': did you mean workers"),
        ("zzz", "no change is called 'zzz': the changes are "),
        ("workers", r"the change workers must have a whole number from 0 on, as in workers=\d+; got none"),
        ("workers=many", "got 'many'"),
        ("workers=-1", "got '-1'"),
        ("tf32=yes", "the change tf32 takes no value, got 'tf32=yes'"),
    ],
)
def test_a_wrong_name_or_value_is_an_error_that_says_which_there_are(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        perfkit.changes(text)


def test_no_change_at_all_is_an_error() -> None:
    with pytest.raises(UsageError, match="needs the name of a change"):
        perfkit.changes()


# -- in place, and undone


#: Values of those that suggest none.
_VALUES = {"batch-size": 2}


def values_of(change_id: str) -> str:
    change = find_changes()[change_id]
    value = next(iter(change.suggested()), _VALUES.get(change_id))
    return change_id if change.parse is None else f"{change_id}={value}"


def train_and_fail(change: str) -> None:
    with perfkit.changes(values_of(change)):
        train(2)
        raise ZeroDivisionError


@pytest.mark.parametrize("change", find_changes())
def test_a_change_leaves_nothing_behind_also_after_an_error(change: str) -> None:
    before = installed()
    if find_changes()[change].refuse() is not None:
        with pytest.raises(UsageError, match="cannot be applied"), perfkit.changes(values_of(change)):
            pass
    else:
        with pytest.raises(ZeroDivisionError):
            train_and_fail(change)
    assert installed() == before
    assert train() == train()


@pytest.mark.parametrize("change", [one.id for one in find_changes().values() if one.kind == "exact"])
def test_the_losses_of_an_exact_change_are_equal(change: str) -> None:
    expected = train()
    if find_changes()[change].refuse() is None:
        with perfkit.changes(values_of(change)):
            assert train() == expected


@pytest.mark.parametrize("change", ["fused-optimizer", "foreach-optimizer", "compile"])
def test_the_losses_of_a_numeric_change_differ_by_rounding(change: str) -> None:
    expected = train()
    with perfkit.changes(change) as applied:
        assert train() == pytest.approx(expected, rel=1e-5)
    assert applied.report()[0].count


def test_one_change_that_cannot_be_applied_undoes_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    before = installed(), torch.get_float32_matmul_precision()
    with pytest.raises(UsageError, match="pinned-memory cannot be applied: this build"):
        perfkit.changes("tf32", "pinned-memory").__enter__()
    assert (installed(), torch.get_float32_matmul_precision()) == before


# -- what each does


def test_loaders_get_their_workers_whatever_the_program_gave_them() -> None:
    with perfkit.changes("prefetch=3", "workers=2", "persistent-workers") as applied:
        loader = DataLoader(DATA, 4)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 3, True)
    assert [one.count for one in applied.report()] == [1, 1, 1]
    place = applied.report()[0].places[0]
    assert place.file == __file__
    assert place.function == test_loaders_get_their_workers_whatever_the_program_gave_them.__name__

    with perfkit.changes("workers=0"):
        loader = DataLoader(DATA, num_workers=2, prefetch_factor=4, persistent_workers=True, timeout=3)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (0, None, False)


def test_a_loader_that_has_the_value_already_is_not_changed() -> None:
    with perfkit.changes("workers=2") as applied:
        DataLoader(DATA, num_workers=2)
    assert applied.report()[0].count == 0
    assert "no effect" in repr(applied)


def test_a_stream_that_does_not_ask_for_its_part_gets_no_workers(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain_stream.py").write_text(
        "from torch.utils.data import IterableDataset\n"
        "class Plain(IterableDataset):\n    def __iter__(self): return iter(range(4))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from plain_stream import Plain  # type: ignore[import-not-found]  # written above

    assert get_worker_info() is None  # this file asks for it, so that its Stream may be shared
    with perfkit.changes("workers=2"):
        assert DataLoader(Plain()).num_workers == 0
        assert DataLoader(Stream()).num_workers == 2


def test_optimizers_without_the_option_stay_as_they_are() -> None:
    model = make_model()
    with perfkit.changes("fused-optimizer") as applied:
        adam = torch.optim.AdamW(model.parameters())
        lbfgs = torch.optim.LBFGS(model.parameters())
    assert adam.param_groups[0]["fused"] is True
    assert "fused" not in lbfgs.param_groups[0]
    assert applied.report()[0].count == 1


def test_a_model_in_eval_mode_builds_no_graph_unless_an_input_needs_one() -> None:
    model = make_model().eval()
    needed = torch.randn(2, 4, requires_grad=True)
    with perfkit.changes("no-grad-in-evaluation"):
        assert not model(torch.randn(2, 4)).requires_grad
        assert model(needed).requires_grad
        assert model.train()(torch.randn(2, 4)).requires_grad


def test_autocast_computes_in_bfloat16_and_returns_float32() -> None:
    model = make_model()
    seen: list[torch.dtype] = []
    model[0].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    with perfkit.changes("bf16-autocast"):
        assert model(torch.randn(2, 4)).dtype == torch.float32
    assert seen == [torch.bfloat16]
    assert model(torch.randn(2, 4)).dtype == torch.float32


def test_a_model_of_images_and_its_inputs_get_their_channels_last() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3))
    seen: list[bool] = []
    model[0].register_forward_pre_hook(
        lambda module, args: seen.append(args[0].is_contiguous(memory_format=torch.channels_last))
    )
    with perfkit.changes("channels-last"):
        model(torch.randn(2, 3, 8, 8))
    assert seen == [True]
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_gradients_are_freed_not_filled() -> None:
    model = make_model()
    model(torch.randn(2, 4)).sum().backward()
    with perfkit.changes("gradients-to-none"):
        torch.optim.SGD(model.parameters()).zero_grad(set_to_none=False)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_settings_of_torch_are_those_of_before_afterwards() -> None:
    threads = torch.get_num_threads()
    with perfkit.changes(f"threads={threads + 1}", "tf32", "no-anomaly-detection", "nondeterministic"):
        assert torch.get_num_threads() == threads + 1
        assert torch.get_float32_matmul_precision() == "high"
        torch.use_deterministic_algorithms(True)
        assert not torch.are_deterministic_algorithms_enabled()
        with torch.autograd.set_detect_anomaly(True):
            assert not torch.is_anomaly_enabled()
    assert torch.get_num_threads() == threads
    assert torch.get_float32_matmul_precision() == "highest"


def test_collections_of_the_program_do_nothing_and_old_objects_are_frozen() -> None:
    with perfkit.changes("no-collections") as applied:
        assert gc.collect() == 0
        train(1)
        assert gc.get_freeze_count()
    assert gc.get_freeze_count() == 0
    assert applied.report()[0].count == 2
