"""Fixtures of the sync tests: nothing may stay installed, and programs run from real files."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # replaces functions of torch when it is loaded, which must not look like a leak
import torch.overrides
from torch.utils import _python_dispatch

from perfkit import _torch_versions
from perfkit._patches import installed

_ACCELERATOR = [found for found in [_torch_versions.accelerator(torch)] if found is not None]


@pytest.fixture(autouse=True)
def nothing_of_a_detection_is_left() -> Iterator[None]:
    """After each test torch, the mode stacks and the warnings filters are as they were before it."""
    watched = (torch, torch.cuda, torch.Tensor, torch.autograd.graph, torch._C, warnings, *_ACCELERATOR)
    before = [dict(vars(owner)) for owner in watched]
    assert installed() == []

    yield

    assert installed() == []
    assert torch.overrides._get_current_function_mode_stack() == []
    assert _python_dispatch._get_current_dispatch_mode_stack() == []
    for owner, attributes in zip(watched, before, strict=True):
        now = vars(owner)
        # pytest itself replaces "filters" and similar attributes around each test.
        assert [n for n, value in attributes.items() if callable(value) and now.get(n) is not value] == []
    assert not [entry for entry in warnings.filters if hasattr(entry[1], "enter")]


@pytest.fixture
def run_program(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run source text from a real file, which is user code as any script is; returns its names."""
    numbers = iter(range(1000))

    def run(source: str, **names: Any) -> dict[str, Any]:
        file = tmp_path / f"program{next(numbers)}.py"
        file.write_text(source)
        exec(compile(source, str(file), "exec", dont_inherit=True), names)
        return names

    return run


@pytest.fixture
def marks() -> Callable[[str], dict[int, int]]:
    """Line -> how often it syncs, from the ``# sync: 2`` comments of a program."""

    def read(source: str) -> dict[int, int]:
        found = ((number, re.search(r"# sync: (\d+)", line)) for number, line in enumerate(source.splitlines(), 1))
        return {number: int(mark[1]) for number, mark in found if mark and mark[1] != "0"}

    return read


# Not the monkeypatch fixture: it must be undone only after the check of `nothing_of_a_detection_is_left`.


@pytest.fixture
def no_cuda() -> Iterator[None]:
    """A machine without a GPU, also where there is one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        yield


@pytest.fixture
def pretended_cuda() -> Iterator[list[int]]:
    """Lets detection on CUDA start without a GPU; returns the debug modes that were set, the last one last."""
    modes = [0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "is_initialized", lambda: False)
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        patch.setattr(torch.cuda, "synchronize", lambda *args, **kwargs: None)
        for owner, prefix in ((torch.cuda, ""), (torch._C, "_cuda_")):
            patch.setattr(owner, f"{prefix}get_sync_debug_mode", lambda: modes[-1], raising=False)
            patch.setattr(owner, f"{prefix}set_sync_debug_mode", lambda mode: modes.append(mode), raising=False)
        yield modes
