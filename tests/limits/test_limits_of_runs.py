"""limits.json: written after a run from the cache, measured once, read by rules as any other measure."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from perfkit import _env
from perfkit._background import BackgroundError
from perfkit.measures.gathering import measure
from perfkit.record import machine_limits
from perfkit.record.machine_limits import write_limits
from perfkit.run.rank_recording import Parts, RankRecording
from perfkit.run.reading import read_run
from perfkit.run.records import MachineLimits, Phases, Step

TORCH = _env.package_version("torch") or ""
Make = Callable[..., MachineLimits]
Keep = Callable[[MachineLimits], Path]


def recorded(folder: Path, *, steps: int = 3) -> RankRecording:
    """A run that is over, on one thread."""
    recording = RankRecording(folder, "a", lambda: Parts(facts={"steps": steps}, settings={"torch.num_threads": "1"}))
    recording.add([Step(step=n, start_ns=n * 9, wall_ns=9, phases_ns=Phases(forward=9)) for n in range(steps)])
    recording.finish("finished")
    return recording


def measured(monkeypatch: pytest.MonkeyPatch, result: MachineLimits | BackgroundError) -> list[tuple[str, int]]:
    """Replace measuring; returns the calls."""
    calls: list[tuple[str, int]] = []

    def replacement(torch: str, threads: int) -> MachineLimits:
        calls.append((torch, threads))
        if isinstance(result, BackgroundError):
            raise result
        return result

    monkeypatch.setattr(machine_limits, "measure_and_keep", replacement)
    return calls


def test_a_run_takes_its_limits_from_the_cache(
    tmp_path: Path, limits_with: Make, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(limits_with())
    calls = measured(monkeypatch, limits_with())

    write_limits(recorded(tmp_path / "run"), may_measure=True, quiet=True)

    assert read_run(tmp_path / "run").ranks[0].limits == limits_with()
    assert measure(tmp_path / "run").get(MachineLimits) == limits_with()
    assert calls == []


def test_where_they_are_not_known_they_are_measured_with_the_threads_of_the_run(
    tmp_path: Path, cache: Path, limits_with: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = measured(monkeypatch, limits_with())

    write_limits(recorded(tmp_path / "run"), may_measure=True, quiet=False)

    assert calls == [(TORCH, 1)]
    assert read_run(tmp_path / "run").ranks[0].limits == limits_with()
    assert "measuring what this machine could do" in capsys.readouterr().err


@pytest.mark.parametrize("why", ["interrupted", "no steps", "several ranks", "not the first of its machine"])
def test_a_run_that_should_not_wait_for_it_measures_nothing(
    why: str, tmp_path: Path, cache: Path, limits_with: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = measured(monkeypatch, limits_with())
    if why == "several ranks":
        monkeypatch.setenv("WORLD_SIZE", "2")
    if why == "not the first of its machine":
        monkeypatch.setenv("LOCAL_RANK", "1")

    recording = recorded(tmp_path / "run", steps=0 if why == "no steps" else 3)
    write_limits(recording, may_measure=why != "interrupted", quiet=True)

    assert calls == []
    assert not (recording.folder / "limits.json").exists()


def test_a_measurement_that_fails_is_reported_and_the_run_has_no_limits(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(monkeypatch, BackgroundError("it took longer than 20 s"))

    write_limits(recorded(tmp_path / "run"), may_measure=True, quiet=True)

    assert "were not measured: it took longer than 20 s" in capsys.readouterr().err
    assert measure(tmp_path / "run").get(MachineLimits) is None


def test_a_run_without_limits_has_those_of_the_cache_on_its_own_machine_only(
    tmp_path: Path, limits_with: Make, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path / "run")
    keep(limits_with())

    assert measure(tmp_path / "run").get(MachineLimits) == limits_with()
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert measure(tmp_path / "run").get(MachineLimits) is None


def test_limits_that_are_damaged_are_reported(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "run")
    (recording.folder / "limits.json").write_bytes(msgspec.json.encode({"method": 1}))

    found = measure(tmp_path / "run")

    assert found.get(MachineLimits) is None
    assert [text for text in found.missing if text.startswith("rank-0/limits.json: damaged")]
