"""The random numbers of a rerun: the same in each, or those of another seed."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from typing import Any

from perfkit import _env
from perfkit._import_hook import when_imported
from perfkit._patches import Patches

#: What is replaced stays replaced until the process ends.
_patches = Patches()


def fix_seeds(offset: int) -> None:
    """Add ``offset`` to every seed that the program sets, and seed what it may leave unseeded.

    The system seeds all three, differently in every process. Generators that the program makes by itself
    (`torch.Generator`, `numpy.random.RandomState`) keep their seeds.
    """
    # Ranks draw different numbers, as they do without a seed.
    own = offset + 1000 * _env.rank()
    random.seed(own)
    _shift(random, ("seed",), offset)

    def on_numpy() -> None:
        module = sys.modules["numpy.random"]
        module.seed(own)
        _shift(module, ("seed", "default_rng"), offset)

    def on_torch() -> None:
        torch: Any = sys.modules["torch"]
        torch.manual_seed(own)
        _shift(torch, ("manual_seed",), offset)
        _shift(torch.random, ("manual_seed",), offset)
        _shift(torch.cuda, ("manual_seed", "manual_seed_all"), offset)

    when_imported("numpy.random", on_numpy)
    when_imported("torch", on_torch)


def _shift(owner: Any, names: tuple[str, ...], offset: int) -> None:
    if not offset:
        return

    def wrapper(seed: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(seed)
        def shifted(*given: Any, **named: Any) -> Any:
            given = tuple(_plus(one, offset) for one in given[:1]) + given[1:]
            named = {name: _plus(value, offset) if name in ("seed", "a") else value for name, value in named.items()}
            return seed(*given, **named)

        return shifted

    for name in names:
        _patches.wrap(owner, name, wrapper)


def _plus(seed: Any, offset: int) -> Any:
    return seed + offset if isinstance(seed, int) and not isinstance(seed, bool) else seed
