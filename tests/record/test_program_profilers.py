"""A window gives way to a profiler that the program has prepared, whenever it was made, and finds it at no cost."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import perfkit
from perfkit._patches import installed
from perfkit.record.windows import torch_profiler
from perfkit.record.windows.torch_profiler import PROGRAM_PROFILERS, taken


@pytest.fixture
def watched() -> Iterator[None]:
    PROGRAM_PROFILERS.watch()
    yield
    PROGRAM_PROFILERS.unwatch()
    gc.collect()  # a profiler is part of a cycle


def warming() -> torch.profiler.profile:
    return torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], schedule=torch.profiler.schedule(wait=0, warmup=1, active=1)
    )


@pytest.mark.usefixtures("watched")
def test_a_prepared_profiler_is_found_whether_it_was_made_before_the_first_look_or_after_it() -> None:
    before = warming()
    assert taken()
    del before
    gc.collect()
    assert not taken()

    after = warming()
    assert taken()
    del after
    gc.collect()
    assert not taken()


def test_one_that_was_made_before_the_run_is_found_too() -> None:
    before = warming()
    PROGRAM_PROFILERS.watch()
    try:
        assert taken()
    finally:
        PROGRAM_PROFILERS.unwatch()
    assert taken()  # by looking at all objects
    del before
    gc.collect()


@pytest.mark.usefixtures("watched")
def test_all_objects_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(torch_profiler, "instances_of", lambda kinds: looks.append(kinds) or [])

    for _ in range(5):
        assert not taken()

    assert len(looks) == 1


def test_no_object_is_looked_at_where_the_run_began_as_torch_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(torch_profiler, "instances_of", lambda kinds: looks.append(kinds) or [])

    PROGRAM_PROFILERS.watch(none_yet=True)
    try:
        assert not taken()
        after = warming()
        assert taken()
        del after
        gc.collect()
        assert not taken()
    finally:
        PROGRAM_PROFILERS.unwatch()

    assert looks == []


@pytest.mark.usefixtures("watched")
def test_a_profiler_of_a_class_without_a_hash_can_be_made() -> None:
    assert not taken()

    class Profiler(torch.profiler.profile):
        __hash__ = None  # type: ignore[assignment]  # what a class with an __eq__ has

    kept = Profiler(schedule=torch.profiler.schedule(wait=0, warmup=1, active=1))

    assert taken()
    del kept


def test_nothing_of_it_is_left_after_a_run(tmp_path: Path) -> None:
    construct = torch.profiler.profile.__init__

    with perfkit.profile(tmp_path / "run", quiet=True) as prof:
        assert torch.profiler.profile.__init__ is not construct
        prof.step()

    assert torch.profiler.profile.__init__ is construct
    assert not [name for name in installed() if "profiler.profile" in name]


@pytest.mark.usefixtures("watched")
def test_a_window_that_an_error_ended_in_its_warm_up_is_no_other_profiler() -> None:
    profiler = torch_profiler.start(0, lambda number: "warmup", lambda _: None, None, {}, lambda: None)
    assert taken()

    torch_profiler.stop(profiler)

    # It still exists, as the traceback of an error keeps what it went through.
    assert not taken()
    assert profiler is not None
