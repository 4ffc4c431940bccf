"""`perfkit doctor` shows what the machine could do, and measures what is not known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfkit import _env
from perfkit._background import BackgroundError
from perfkit.commands import _machine_limits, doctor, main
from perfkit.run.records import MachineLimits, Rate

Make = Callable[..., MachineLimits]
Keep = Callable[[MachineLimits], Path]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of doctor has its own tests."""
    monkeypatch.setattr(doctor, "facts", lambda: [("perfkit", "1")])
    monkeypatch.setattr(_env, "settings", lambda: {"torch.num_threads": "2"})


def test_it_shows_products_by_precision_and_threads_bandwidth_by_size_and_overheads(
    limits_with: Make, keep: Keep, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(limits_with(bandwidth={"read": (Rate(2**21, 50e9), Rate(2**22, 60e9))}))
    keep(limits_with(threads=2, products={"float32": (Rate(10**9, 190e9),)}, disturbed=True))

    assert main(["doctor"]) == 0
    shown = {line[:34].strip(): line[34:].split() for line in capsys.readouterr().out.splitlines()}

    assert shown["limits of this machine"] == ["1", "thread", "2", "threads"]
    assert shown["matrix product, float32"] == ["100", "GFLOP/s", "190", "GFLOP/s"]
    assert shown["matrix product, float64"] == ["50", "GFLOP/s"]
    assert shown["2.1 MB read"] == ["50", "GB/s"]
    assert shown["one op on one element"] == ["1.00", "µs", "1.00", "µs"]
    assert shown["disturbed by other programs"] == ["no", "yes"]


def test_what_is_not_known_is_measured_for_one_thread_and_for_the_default(
    limits_with: Make, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def measured(_: str, threads: int) -> MachineLimits:
        asked.append(threads)
        if threads == 2:
            raise BackgroundError("it took longer than 20 s")
        return limits_with(threads=threads)

    monkeypatch.setattr(_machine_limits, "measure_and_keep", measured)

    assert main(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert asked == [1, 2]
    assert "1 thread" in out
    assert "measuring what this machine could do with 2 threads" in err
    assert "it was not measured: it took longer than 20 s" in err


def test_without_torch_there_is_nothing_to_measure(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_env, "package_version", lambda _: None)

    assert main(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert "limits" not in out
    assert err == ""
