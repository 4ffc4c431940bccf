"""What `detect_syncs` costs: armed for CUDA, per reported sync, and as a dry run.

    python benchmarks/bench_detect_syncs.py

One process, one thread, process time. A training step runs plainly and under each candidate, interleaved round by
round, in reversed order every other round, with the garbage collector off. A ratio is that of the minima. Without a
GPU, detection on CUDA is armed without torch's debug mode: its cost is in Python, which is the same. Two torch modes
that do nothing are measured next to the dry run: what it would cost if it used them.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from perfkit.syncs import detect_syncs

#: Rounds, and steps per round: a round takes some ten milliseconds, so that one of them is undisturbed.
ROUNDS = 15
STEPS = {"MLP 3x64": 60, "MLP 100x64": 5, "transformer 12L d64": 3, "MLP 8x512, batch 256": 1}

#: The text of torch's warning.
SYNC = "called a synchronizing CUDA operation (Triggered internally at c10/cuda/CUDAFunctions.cpp:150.)"

Candidates = dict[str, Callable[[], AbstractContextManager[Any]]]


def mlp(layers: int, width: int, batch: int) -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    """A chain of linear layers, SGD and a batch."""
    model = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))
    return model, torch.optim.SGD(model.parameters(), lr=1e-3), torch.randn(batch, width)


def transformer() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    """Twelve small encoder layers, AdamW and a batch of four sequences of 16."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), torch.randn(4, 16, 64)


def models() -> dict[str, tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]]:
    """The models by name; in the last one the matrix products take the time, in the others torch's overhead."""
    torch.manual_seed(0)
    return dict(zip(STEPS, (mlp(3, 64, 16), mlp(100, 64, 16), transformer(), mlp(8, 512, 256)), strict=True))


class _EmptyFunctionMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _EmptyDispatchMode(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would load Dynamo and wrap each op

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _two_empty_modes() -> Iterator[None]:
    with _EmptyDispatchMode(), _EmptyFunctionMode():
        yield


@contextlib.contextmanager
def armed(**options: Any) -> Iterator[Any]:
    """A detection on CUDA, also without a GPU."""
    with contextlib.ExitStack() as stack:
        if not torch.cuda.is_available():
            answers = {"is_available": True, "device_count": 0, "get_sync_debug_mode": 0, "set_sync_debug_mode": None}
            for name, answer in answers.items():
                stack.enter_context(mock.patch.object(torch.cuda, name, return_value=answer))
        yield stack.enter_context(detect_syncs("cuda", **options))


def measure(name: str, parts: tuple[nn.Module, torch.optim.Optimizer, torch.Tensor], candidates: Candidates) -> Any:
    """Candidate -> ms per step in each round."""
    model, optimizer, batch = parts

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    rounds: dict[str, list[float]] = {}
    order = list(candidates.items())
    for number in range(ROUNDS):
        for candidate, context in order if number % 2 else reversed(order):
            gc.collect()
            gc.disable()
            with context():
                step()
                began = time.process_time_ns()
                for _ in range(STEPS[name]):
                    step()
                took = time.process_time_ns() - began
            gc.enable()
            rounds.setdefault(candidate, []).append(took / STEPS[name] / 1e6)
    return rounds


def pair() -> float:
    """A ``perf_counter_ns`` pair in ns: the minimum cost of any timer."""
    return _fastest(lambda: (time.perf_counter_ns(), time.perf_counter_ns()))


def _fastest(call: Callable[[], object]) -> float:
    best = 10**12
    for _ in range(50):
        began = time.perf_counter_ns()
        for _ in range(1000):
            call()
        best = min(best, time.perf_counter_ns() - began)
    empty = 10**12
    for _ in range(50):
        began = time.perf_counter_ns()
        for _ in range(1000):
            pass
        empty = min(empty, time.perf_counter_ns() - began)
    return (best - empty) / 1000


def _warn_of_sync() -> None:
    warnings.warn(SYNC, UserWarning, stacklevel=1)


def _print_steps(plain: str) -> None:
    print("| model | step | min ms | median ms | ratio |")
    print("|---|---|---|---|---|")
    for name, parts in models().items():
        model, optimizer, _ = parts
        candidates: Candidates = {
            plain: nullcontext,
            "armed for CUDA": armed,
            "dry run": lambda named=(model, optimizer): detect_syncs("dry", device_of=named),
            "two empty torch modes": _two_empty_modes,
        }
        rounds = measure(name, parts, candidates)
        base = min(rounds[plain])
        for candidate, times in rounds.items():
            ratio = "" if candidate == plain else f"{min(times) / base:.2f}"
            print(f"| {name} | {candidate} | {min(times):.2f} | {statistics.median(times):.2f} | {ratio} |")


def _print_calls() -> None:
    floor = pair()
    host = torch.ones(())
    plain = _fastest(host.item)
    with armed() as syncs:
        delivered = _fastest(_warn_of_sync)
        wrapped = _fastest(host.item)
    assert sum(event.count for event in syncs.events) == 50_000
    print(f"\nA `perf_counter_ns` pair takes {floor:.0f} ns.\n")
    print("| call | min ns | in clock pairs |")
    print("|---|---|---|")
    for name, took in (
        ("a sync that torch warns of, counted at its line", delivered),
        ("`item()` of a tensor on the host", plain),
        ("the same, armed", wrapped),
    ):
        print(f"| {name} | {took:.0f} | {took / floor:.1f} |")


def main() -> None:
    """Measure and print the tables."""
    torch.set_num_threads(1)
    _print_steps("plain")
    _print_calls()


if __name__ == "__main__":
    main()
