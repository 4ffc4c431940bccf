"""Each change takes effect on what a program makes, says where, and leaves nothing behind."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo  # replaces functions of torch when it is imported
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info
from torch.utils.data.dataloader import _BaseDataLoaderIter

import perfkit
from perfkit._patches import installed
from perfkit.errors import UsageError
from perfkit.rules._engine import find_rules
from perfkit.trial.catalog import find_changes, parse_changes

pytestmark = pytest.mark.usefixtures("nothing_frozen")

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


#: The line of `train` that reads a number, from its first one.
ITEM_LINE = next(n for n, line in enumerate(inspect.getsourcelines(train)[0]) if ".item()" in line)


def train_compiled() -> None:
    """A training in which compiling takes no C++ compiler and its seconds."""
    with mock.patch.object(torch, "compile", partial(torch.compile, backend="eager")):
        train(2)


def train_images(bias: bool = True, double: bool = False) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, bias=bias), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    kind = torch.float64 if double else torch.float32
    model = model.to(kind)
    for _ in range(2):
        model(torch.randn(2, 3, 6, 6, dtype=kind)).sum().backward()


def attend_twice() -> None:
    for _ in range(2):
        q, k, v = torch.randn(3, 1, 2, 8, 4)
        (q @ k.transpose(-2, -1)).softmax(-1) @ v


class Samples(Dataset[Any]):
    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> int:
        return index


def copy_pinned() -> None:
    with mock.patch.object(torch.Tensor, "is_pinned", return_value=True):
        torch.ones(2).to(torch.device("cpu"))


def make_ddp() -> None:
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    try:
        torch.nn.parallel.DistributedDataParallel(make_model())
    finally:
        dist.destroy_process_group()


#: Changes that are run, and what each has an effect in where `train` shows none.
APPLIED = [one.id for one in find_changes().values() if one.apply is not None]
PROGRAMS: dict[str, Callable[[], Any]] = {
    "compile": train_compiled,
    "channels-last": train_images,
    "no-bias-before-norm": train_images,
    "fused-attention": attend_twice,
    "float32-batches": lambda: train_images(double=True),
    "dataset-in-memory": lambda: list(DataLoader(Samples(), 8)),
    "non-blocking-copies": copy_pinned,
    "ddp-buckets": make_ddp,
    "ddp-bucket-view": make_ddp,
    "dynamic-shapes": lambda: torch.compile(make_model(), backend="eager")(torch.ones(1, 4)),
    "nondeterministic": lambda: torch.use_deterministic_algorithms(True),
    "no-anomaly-detection": lambda: torch.autograd.set_detect_anomaly(True),
    "no-grad-in-evaluation": lambda: make_model().eval()(torch.ones(1, 4)),
}
#: Values, and other changes that must be applied for this one to have something to change.
IN_USE = {change: (change,) for change in APPLIED} | {
    "workers": ("workers=1",),
    "prefetch": ("workers=1", "prefetch=3"),
    "persistent-workers": ("workers=1", "persistent-workers"),
    "batch-size": ("batch-size=2",),
    "threads": (f"threads={torch.get_num_threads() + 1}",),
    "late-item": (f"late-item={__file__}:{inspect.getsourcelines(train)[1] + ITEM_LINE}",),
    "ddp-buckets": ("ddp-buckets=50",),
}


def pretend_to_have_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let changes that need CUDA be applied; what they set up needs no device."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.setenv(name, "expandable_segments:True")


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


#: Where changes put their patches.
OWNERS = (
    torch, torch.Tensor, torch.nn.Module, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.functional, torch.optim.Optimizer,
    torch.nn.parallel.DistributedDataParallel, torch.autograd.Function, DataLoader, _BaseDataLoaderIter, gc,
)  # fmt: skip

NAMES = {owner: [name for name, value in vars(owner).items() if callable(value)] for owner in OWNERS}


def state_of_torch() -> list[Any]:
    """The attributes that changes may replace, and the settings that they may set."""
    settings = (
        torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark,
        torch.backends.cudnn.allow_tf32, torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled(),
        torch.are_deterministic_algorithms_enabled(), gc.get_freeze_count(),
    )  # fmt: skip
    return [*settings, *((name, vars(owner).get(name)) for owner in OWNERS for name in NAMES[owner])]


def run_until_ctrl_c(change: str, applied: perfkit.changes) -> None:
    with applied:
        PROGRAMS.get(change, train)()
        raise KeyboardInterrupt


@pytest.mark.parametrize("change", APPLIED)
@pytest.mark.filterwarnings("ignore:'pin_memory' argument:UserWarning")
def test_a_change_has_an_effect_and_leaves_nothing_behind_also_after_ctrl_c(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_to_have_cuda(monkeypatch)
    if change in ("compile", "dynamic-shapes"):
        torch.compile(make_model(), backend="eager")(torch.ones(1, 4))  # Dynamo replaces methods at its first use
    before = state_of_torch()
    applied = perfkit.changes(*IN_USE[change])
    with pytest.raises(KeyboardInterrupt):
        run_until_ctrl_c(change, applied)
    assert applied.report()[-1].count, "the change had no effect in its program"
    assert installed() == []
    assert state_of_torch() == before


def test_a_change_leaves_nothing_behind_after_an_error() -> None:
    before = state_of_torch()
    with pytest.raises(ZeroDivisionError), perfkit.changes("tf32", "gradients-to-none"):
        raise ZeroDivisionError
    assert state_of_torch() == before


@pytest.mark.filterwarnings("ignore:'pin_memory' argument:UserWarning")
@pytest.mark.parametrize("change", [id_ for id_ in APPLIED if find_changes()[id_].kind == "exact"])
def test_the_losses_of_an_exact_change_are_equal(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_to_have_cuda(monkeypatch)
    expected = train()
    with perfkit.changes(*IN_USE[change]):
        assert train() == expected


@pytest.mark.parametrize(
    "change", ["fused-optimizer", "foreach-optimizer", pytest.param("compile", marks=pytest.mark.slow)]
)
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
