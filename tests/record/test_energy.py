"""Energy per step: RAPL's counters in a stand-in folder, NVML's in the stand-in of node health, and a recorded run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import perfkit
from perfkit.commands import doctor, main
from perfkit.diagnosis import Diagnosis
from perfkit.record.watchers import processor_energy
from perfkit.record.watchers.node_health import NodeWatch
from perfkit.record.watchers.processor_energy import ProcessorEnergy, find_counters
from perfkit.run.reading import read_run
from tests.record.test_node_health import Watched, fake_nvml, refuse, watched  # noqa: F401 - a fixture

SECOND_MS = 1_000


class Rapl:
    """A folder like /sys/class/powercap, whose counters are set by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def counter(self, at: str, name: str, uj: int, wraps_uj: int = 262_143_328_850) -> None:
        place = self.folder / f"intel-rapl:{at}"
        place.mkdir(parents=True, exist_ok=True)
        (place / "name").write_text(f"{name}\n")
        (place / "max_energy_range_uj").write_text(f"{wraps_uj}\n")
        (place / "energy_uj").write_text(f"{uj}\n")


@pytest.fixture
def rapl(tmp_path: Path) -> Rapl:
    made = Rapl(tmp_path / "powercap")
    made.counter("0", "package-0", 5_000_000)
    made.counter("0:0", "core", 1)
    made.counter("0:1", "dram", 1_000_000)
    made.counter("1", "psys", 1)
    return made


def test_packages_and_memory_are_summed_from_the_first_step_on_and_their_parts_are_not(rapl: Rapl, clock: Any) -> None:
    energy = ProcessorEnergy(rapl.folder)
    energy.read_if_due(0)
    clock.pass_ms(SECOND_MS)
    rapl.counter("0", "package-0", 7_000_000)
    energy.read_if_due(2)
    assert energy.energy is None
    clock.pass_ms(SECOND_MS)
    rapl.counter("0", "package-0", 27_000_000)
    rapl.counter("0:1", "dram", 3_000_000)
    rapl.counter("0:0", "core", 10**9)
    energy.read_if_due(12)

    used = energy.energy
    assert used is not None
    assert (used.source, used.part, used.joules, used.steps, used.wall_ns) == (
        "rapl",
        "package-0, dram",
        22.0,
        10,
        10**9,
    )
    assert used.per_step_j == 2.2


def test_a_counter_that_wraps_goes_on(rapl: Rapl, clock: Any) -> None:
    rapl.counter("0", "package-0", 99_000_000, wraps_uj=100_000_000)
    energy = ProcessorEnergy(rapl.folder)
    energy.read_if_due(1)
    clock.pass_ms(SECOND_MS)
    rapl.counter("0", "package-0", 4_000_000, wraps_uj=100_000_000)
    energy.read_if_due(2)

    assert energy.energy is not None
    assert energy.energy.joules == 5.0


def test_what_lies_between_two_recordings_is_not_counted(rapl: Rapl, clock: Any) -> None:
    energy = ProcessorEnergy(rapl.folder)
    for step, package_j in ((1, 10), (3, 14)):
        rapl.counter("0", "package-0", package_j * 1_000_000)
        energy.read_if_due(step)
        clock.pass_ms(SECOND_MS)
    energy.pause(3)
    rapl.counter("0", "package-0", 500_000_000)
    energy.read_if_due(3)
    clock.pass_ms(SECOND_MS)
    rapl.counter("0", "package-0", 502_000_000)
    energy.read_if_due(5)

    assert energy.energy is not None
    assert (energy.energy.joules, energy.energy.steps) == (6.0, 4)


def test_between_two_readings_nothing_is_opened(rapl: Rapl, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    energy = ProcessorEnergy(rapl.folder)
    energy.read_if_due(1)
    rapl.counter("0", "package-0", 6_000_000)
    clock.pass_ms(SECOND_MS - 1)
    monkeypatch.setattr(processor_energy.EnergyCounter, "read_uj", lambda self: pytest.fail("it was read"))

    for step in range(2, 1000):
        energy.read_if_due(step)


def test_a_counter_that_is_taken_away_leaves_what_was_counted(rapl: Rapl, clock: Any) -> None:
    energy = ProcessorEnergy(rapl.folder)
    for step in (1, 2, 3):
        rapl.counter("0", "package-0", step * 1_000_000)
        energy.read_if_due(step)
        clock.pass_ms(SECOND_MS)
    (rapl.folder / "intel-rapl:0" / "energy_uj").unlink()
    energy.read_if_due(4)

    assert energy.energy is not None
    assert (energy.energy.joules, energy.energy.steps) == (2.0, 2)


def test_without_counters_and_without_permission_there_is_none_and_doctor_says_why(
    rapl: Rapl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_counters(tmp_path / "none")[0] == []
    assert "no energy counters" in (find_counters(tmp_path / "none")[1] or "")

    def refused(self: Any) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(processor_energy.EnergyCounter, "read_uj", refused)
    counters, why = find_counters(rapl.folder)
    assert counters == []
    assert "can be read by root only" in (why or "")
    assert "not of the processor: " in doctor._energy()


@pytest.mark.parametrize("text", ["", "many", "9" * 40])
def test_a_damaged_counter_is_left_out(rapl: Rapl, text: str) -> None:
    (rapl.folder / "intel-rapl:0" / "max_energy_range_uj").write_text(text or "x")
    (rapl.folder / "intel-rapl:0" / "energy_uj").write_text(text)

    assert [counter.name for counter in find_counters(rapl.folder)[0]] in (["dram"], ["package-0", "dram"])


def test_the_energy_of_a_gpu_is_that_between_its_first_and_last_sample(watched: Watched) -> None:  # noqa: F811
    counter_mj = iter(range(1_000_000, 10**9, 300_000))
    watch = watched.watch(fake_nvml(nvmlDeviceGetTotalEnergyConsumption=lambda _: next(counter_mj)), samples=3)

    used = watch.energy
    assert used is not None
    # Three samples with ten steps between them, and one more when it was stopped.
    assert (used.source, used.part, used.joules, used.steps) == ("nvml", "NVIDIA H200", 900.0, 30)


@pytest.mark.parametrize("counter", [None, refuse(3)])
def test_a_gpu_that_does_not_count_energy_has_none(watched: Watched, counter: Any) -> None:  # noqa: F811
    watch: NodeWatch = watched.watch(fake_nvml(nvmlDeviceGetTotalEnergyConsumption=counter), samples=3)

    assert watch.energy is None
    assert watch.problem is None


def test_a_recorded_run_shows_its_energy_in_its_record_its_diagnosis_and_its_page(
    rapl: Rapl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = {"count": 0}

    def rising(self: Any) -> int:
        read["count"] += 1
        return read["count"] * 500_000

    monkeypatch.setattr(processor_energy, "_PERIOD_NS", 0)
    monkeypatch.setattr(processor_energy.EnergyCounter, "read_uj", rising)
    monkeypatch.setattr(ProcessorEnergy.__init__, "__defaults__", (rapl.folder,))
    monkeypatch.setattr(processor_energy.find_counters, "__defaults__", (rapl.folder,))
    import torch

    with perfkit.profile(tmp_path / "run", quiet=True) as prof:
        for _ in prof.steps(range(60)):
            torch.ones(200_000).sum()

    rank = read_run(tmp_path / "run").ranks[0].rank
    assert rank is not None
    (used,) = rank.energy
    assert used.joules > 0
    assert 0 < used.steps <= 60
    assert main(["diagnose", str(tmp_path / "run"), "--all", "--html"]) == 0
    assert "J per step: " in capsys.readouterr().out
    assert "package-0, dram (of all programs)" in (tmp_path / "run" / "report.html").read_text()
    stored = Diagnosis.from_json((tmp_path / "run" / "diagnosis.json").read_bytes())
    assert stored.figures.energy == rank.energy


def test_a_run_on_a_machine_without_counters_has_no_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_energy.find_counters, "__defaults__", (tmp_path / "none",))
    monkeypatch.setattr(ProcessorEnergy.__init__, "__defaults__", (tmp_path / "none",))
    with perfkit.profile(tmp_path / "run", quiet=True) as prof:
        for _ in prof.steps(range(10)):
            pass

    rank = read_run(tmp_path / "run").ranks[0].rank
    assert rank is not None
    assert rank.energy == ()
