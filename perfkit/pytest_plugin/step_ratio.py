"""How long a step takes in units of a fixed work that runs in turns with it, which a busy machine changes little.

The clock of a shared machine shows another time in each session: its cores are shared, and their frequency changes. The
fixed work (products of matrices, a sum over memory, a Python loop) is slowed by the same, so that the ratio of the two,
taken round by round, stays. What only one of them uses (the disk, a network) is not divided out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from perfkit import _env

#: Calls before the first round: what comes once (allocator, caches, compilation of kernels).
_WARM_UP = 3
#: Rounds, and the seconds after which there are no more, from `_MIN_ROUNDS` on.
_ROUNDS, _MIN_ROUNDS, _SECONDS = 31, 9, 5.0
#: A round lets the step run for this long at least, and the fixed work about as long: short times are mostly noise.
_ROUND_S = 0.01
_SIZE, _ELEMENTS, _LOOP = 128, 200_000, 2_000


class StepRatio(NamedTuple):
    """The median ratio of the rounds with its 95% interval, and the step's median time in ns."""

    ratio: float
    low: float
    high: float
    step_ns: int
    rounds: int


def measure_ratio(step: Callable[[], object]) -> StepRatio:
    """Run ``step`` and the fixed work in turns.

    The interval is that of a median by its order statistics (Conover, Practical Nonparametric Statistics): it assumes
    nothing of how times are distributed.
    """
    for _ in range(_WARM_UP):
        step()
    work = _fixed_work()
    work()
    calls, repeats = _calls(step), _calls(work)
    ratios: list[float] = []
    times: list[float] = []
    began = time.monotonic()
    before = _time(work, repeats)
    while len(ratios) < _ROUNDS and (len(ratios) < _MIN_ROUNDS or time.monotonic() - began < _SECONDS):
        took = _time(step, calls)
        after = _time(work, repeats)
        times.append(took)
        ratios.append(took / ((before + after) / 2))
        before = after
    ordered = sorted(ratios)
    rounds = len(ordered)
    # Ranks of the interval by the normal approximation of the binomial distribution.
    cut = max(0, int((rounds - 1.96 * rounds**0.5) / 2))
    return StepRatio(
        ratio=ordered[rounds // 2],
        low=ordered[cut],
        high=ordered[rounds - 1 - cut],
        step_ns=round(1e9 * sorted(times)[rounds // 2]),
        rounds=rounds,
    )


def machine_name() -> str:
    """What a ratio depends on: the processor, the cores, the device, and torch's threads."""
    torch: Any = _env.torch_if_loaded()
    threads = f", {torch.get_num_threads()} threads" if torch is not None else ""
    device = f", {name}" if (name := next(iter(_env.devices()), None)) is not None else ""
    return f"{_env.cpu_name()}, {_env.cores()} cores{device}{threads}"


def _calls(work: Callable[[], object]) -> int:
    """How often a work is done in `_ROUND_S`."""
    return max(1, round(_ROUND_S / max(1e-6, min(_time(work, 1) for _ in range(3)))))


def _time(work: Callable[[], object], calls: int) -> float:
    """Seconds of one call; the device, where there is one, is waited for."""
    wait = _wait()
    wait()
    began = time.perf_counter()
    for _ in range(calls):
        work()
    wait()
    return (time.perf_counter() - began) / calls


def _wait() -> Callable[[], object]:
    if not _env.cuda_in_use():
        return lambda: None
    torch: Any = _env.torch_if_loaded()
    wait: Callable[[], object] = torch.cuda.synchronize
    return wait


def _fixed_work() -> Callable[[], object]:
    """A work that is always the same; on the device that the program uses."""
    torch: Any = _env.torch_if_loaded()
    if torch is None:
        return lambda: sum(number * number for number in range(20 * _LOOP))
    device = "cuda" if _env.cuda_in_use() else "cpu"
    matrix = torch.full((_SIZE, _SIZE), 1.0 / _SIZE, device=device)
    memory = torch.ones(_ELEMENTS, device=device)

    def work() -> object:
        with torch.no_grad():
            product = matrix
            for _ in range(4):
                product = product @ matrix
            return product, memory + 1, sum(number * number for number in range(_LOOP))

    return work
