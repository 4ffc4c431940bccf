"""The cache of limits: where it is, for which machine, and that damage or a missing right to write is no error."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from perfkit import _background, _env
from perfkit.limits import limits_cache
from perfkit.limits.limits_cache import (
    all_cached_limits,
    cached_limits,
    cached_limits_of,
    is_due,
    limits_file,
    measure_and_keep,
)
from perfkit.run.records import MachineLimits, Rank, Rate

TORCH = _env.package_version("torch") or ""
Make = Callable[..., MachineLimits]
Keep = Callable[[MachineLimits], Path]


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"PERFKIT_CACHE_DIR": "/c"}, "/c"),
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/perfkit"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/u/.cache/perfkit"),
        ("linux", {}, "/home/u/.cache/perfkit"),
        ("darwin", {"XDG_CACHE_HOME": "/x"}, "/home/u/Library/Caches/perfkit"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l/perfkit/Cache"),
    ],
)
def test_the_cache_is_where_the_platform_keeps_caches(
    platform: str, variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PERFKIT_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/u")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)

    assert _env.cache_folder() == Path(expected)


def test_limits_are_found_by_torch_and_threads_on_the_machine_that_they_are_of(limits_with: Make, keep: Keep) -> None:
    limits = limits_with()
    keep(limits)
    keep(limits_with(threads=4))

    assert cached_limits(TORCH, 1) == limits
    assert cached_limits(TORCH, 2) is None
    assert cached_limits("1.0", 1) is None
    assert [one.threads for one in all_cached_limits()] == [1, 4]


@pytest.mark.parametrize("change", [{"cpu": "another"}, {"host": "another"}, {"method": 0}, {"threads": 3}])
def test_limits_of_another_machine_or_method_are_not_used(
    change: dict[str, object], limits_with: Make, keep: Keep
) -> None:
    keep(limits_with()).write_bytes(msgspec.json.encode(limits_with(**change)))

    assert cached_limits(TORCH, 1) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"method": 1}', b" " * 2**21])
def test_a_damaged_file_is_as_if_it_were_missing(content: bytes, limits_with: Make, keep: Keep) -> None:
    keep(limits_with()).write_bytes(content)

    assert cached_limits(TORCH, 1) is None
    assert all_cached_limits() == []
    assert is_due(TORCH, 1)


@pytest.mark.parametrize(
    ("change", "found"),
    [({}, True), ({"host": "elsewhere"}, False), ({"settings": {}}, False), ({"versions": {}}, False)],
)
def test_a_run_has_the_limits_of_the_machine_that_recorded_it(
    change: dict[str, object], found: bool, limits_with: Make, keep: Keep
) -> None:
    limits = limits_with()
    keep(limits)
    rank = Rank(
        rank=0,
        launch_id="a",
        host=limits.host,
        pid=1,
        start_ns=0,
        versions={"torch": TORCH},
        settings={"torch.num_threads": "1"},
    )

    assert cached_limits_of(msgspec.structs.replace(rank, **change)) == (limits if found else None)


def test_one_run_in_an_hour_measures_what_is_unknown_or_was_disturbed(limits_with: Make, keep: Keep) -> None:
    assert is_due(TORCH, 1)
    assert not is_due(TORCH, 1)

    file = keep(limits_with(disturbed=True))
    assert not is_due(TORCH, 1)
    hour_ago = time.time() - 3601
    os.utime(file.with_suffix(".attempt"), (hour_ago, hour_ago))
    assert is_due(TORCH, 1)

    keep(limits_with())
    os.utime(file.with_suffix(".attempt"), (hour_ago, hour_ago))
    assert not is_due(TORCH, 1)


def test_where_the_cache_cannot_be_written_no_run_measures() -> None:
    # The fixtures of all tests name a file as the cache's folder.
    assert not is_due(TORCH, 1)


def printing(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of measuring for some seconds."""

    class Process:
        def __init__(self, *_: object, **__: object) -> None: ...

        def output(self) -> bytes:
            return text

    monkeypatch.setattr(limits_cache, "BackgroundProcess", Process)


def test_what_was_measured_is_kept_where_it_is_better_than_before(
    limits_with: Make, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(limits_with(disturbed=True, op_ns=10))
    printing(msgspec.json.encode(limits_with(products={"float32": (Rate(10**9, 120e9),)})), monkeypatch)

    limits = measure_and_keep(TORCH, 1)

    assert limits == cached_limits(TORCH, 1)
    assert (limits.products["float32"][-1], limits.op_ns, limits.disturbed) == (Rate(10**9, 120e9), 10, False)


def test_limits_that_cannot_be_kept_are_good_once(limits_with: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    printing(msgspec.json.encode(limits_with()), monkeypatch)

    assert measure_and_keep(TORCH, 1) == limits_with()
    assert not limits_file(TORCH, 1).exists()


@pytest.mark.parametrize("torch", ["", "9.9"])
def test_a_process_that_measures_nothing_or_another_torch_is_one_error(
    torch: str, limits_with: Make, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printing(msgspec.json.encode(limits_with(torch=torch)) if torch else b"hello", monkeypatch)

    with pytest.raises(_background.BackgroundError, match=r"torch 9\.9" if torch else "something else"):
        measure_and_keep(TORCH, 1)
    assert not cache.exists()
