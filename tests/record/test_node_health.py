"""The node's health by NVML: what is read, what is unsupported, which processes count, and that training continues."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import perfkit
from perfkit import _env
from perfkit.commands import doctor
from perfkit.record.watchers import node_health
from perfkit.record.watchers.node_health import MAX_SAMPLES, NodeWatch
from perfkit.run.reading import read_run
from perfkit.run.records import NodeHealth, Rank

UUID = "8a3c1f2e-0000-0000-0000-000000000001"
HANDLE = "the card"


class NVMLError(Exception):
    """Like pynvml's: with NVML's number."""

    def __init__(self, value: int, text: str = "Unknown Error") -> None:
        super().__init__(text)
        self.value = value


def refuse(value: int, text: str = "Not Supported") -> Callable[..., Any]:
    def function(*_: Any) -> Any:
        raise NVMLError(value, text)

    return function


def process(pid: int, memory: int | None) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=memory)


def fake_nvml(**functions: Any) -> Any:
    """A card in use, cool and without other processes; ``functions`` replace or (None) remove some of its own."""
    known: dict[str, Any] = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: HANDLE if uuid == f"GPU-{UUID}" else refuse(6, "Not Found")(),
        "nvmlDeviceGetName": lambda handle: "NVIDIA H200",
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
        "nvmlDeviceGetMaxClockInfo": lambda handle, clock: {1: 1980, 2: 3201}[clock],
        "nvmlDeviceGetClockInfo": lambda handle, clock: {1: 1755, 2: 3201}[clock],
        "nvmlDeviceGetPowerUsage": lambda handle: 512_500,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=97, memory=40),
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0x4,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [process(os.getpid(), 2**30)],
        "nvmlDeviceGetProcessUtilization": refuse(6, "Not Found"),
    }
    return SimpleNamespace(**{name: value for name, value in (known | functions).items() if value is not None})


class Watched:
    """Runs watches whose threads take a given number of samples, and have ended before their record is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.step = 0

    def watch(self, nvml: Any, samples: int = 1, uuid: str | None = UUID) -> NodeWatch:
        """A watch that has taken this many samples, with ten steps between them."""
        done = threading.Event()
        taken = 0

        def step() -> int:
            nonlocal taken
            taken += 1
            if taken == samples:
                self._monkeypatch.setattr(node_health, "PERIOD_S", 10.0)
                done.set()
            return 10 * taken

        self._monkeypatch.setattr(node_health, "PERIOD_S", 0.0)

        def load() -> Any:
            if isinstance(nvml, BaseException):
                done.set()
                raise nvml
            return nvml

        watch = NodeWatch(step, lambda: uuid, load)
        watch.start_when_ready()
        thread = watch._thread
        while thread is not None and thread.is_alive() and not done.wait(0.01):
            pass
        watch.stop()
        return watch

    def record(self, nvml: Any, samples: int = 1, uuid: str = UUID) -> NodeHealth:
        found = self.watch(nvml, samples, uuid).record()
        assert found is not None
        return found


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_a_sample_has_clocks_limits_heat_power_and_reasons(watched: Watched) -> None:
    found = watched.record(fake_nvml())

    assert (found.uuid, found.name, found.power_limit_w) == (UUID, "NVIDIA H200", 700.0)
    assert (found.max_sm_mhz, found.max_memory_mhz) == (1980, 3201)
    sample = found.samples[0]
    assert (sample.sm_mhz, sample.memory_mhz, sample.power_w, sample.temperature_c) == (1755, 3201, 512.5, 61)
    assert (sample.utilization, sample.reasons, sample.others) == (97, ("sw_power_cap",), 0)
    assert found.reasons == {"sw_power_cap": 1}
    assert found.problem is None


def test_values_have_their_spread_and_reasons_their_counts(watched: Watched) -> None:
    heat = iter([50, 90, 70, 60, 80])
    bits = iter([0x1, 0x48, 0x48, 0x0, 0x40])

    found = watched.record(
        fake_nvml(
            nvmlDeviceGetTemperature=lambda *_: next(heat, 70),
            nvmlDeviceGetCurrentClocksEventReasons=lambda _: next(bits, 0),
        ),
        samples=5,
    )

    assert found.temperature_c is not None
    assert (found.temperature_c.min, found.temperature_c.max) == (50, 90)
    assert found.reasons == {"gpu_idle": 1, "hw_slowdown": 2, "hw_thermal_slowdown": 3}
    assert [sample.step for sample in found.samples] == [10, 20, 30, 40, 50]


def test_a_long_run_keeps_a_hundred_samples_over_all_of_it_and_no_reason_is_lost(watched: Watched) -> None:
    calls = iter(range(10**6))

    found = watched.record(
        fake_nvml(nvmlDeviceGetCurrentClocksEventReasons=lambda _: 0x40 if next(calls) == 333 else 0), samples=1500
    )

    assert MAX_SAMPLES / 2 < len(found.samples) <= MAX_SAMPLES
    assert found.taken == 1500
    assert found.samples[0].step <= 200
    assert found.samples[-1].step >= 14_500
    steps = [after.step - before.step for before, after in zip(found.samples, found.samples[1:], strict=False)]
    assert max(steps) <= 2 * min(steps)
    assert [sample.reasons for sample in found.samples].count(("hw_thermal_slowdown",)) == 1


@pytest.mark.parametrize("code", [3, 4, 13])
def test_what_a_card_does_not_support_is_null_and_read_once(watched: Watched, code: int) -> None:
    asked: list[int] = []

    def power(handle: Any) -> int:
        asked.append(1)
        raise NVMLError(code)

    found = watched.record(
        fake_nvml(nvmlDeviceGetPowerUsage=power, nvmlDeviceGetUtilizationRates=refuse(code)), samples=4
    )

    assert asked == [1]
    assert found.power_w is None
    assert found.samples[-1].utilization is None
    assert found.sm_mhz is not None
    assert found.problem is None


def test_functions_that_an_old_library_lacks_are_null(watched: Watched) -> None:
    old = fake_nvml(
        nvmlDeviceGetCurrentClocksEventReasons=None,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x80,
        nvmlDeviceGetProcessUtilization=None,
        nvmlDeviceGetEnforcedPowerLimit=None,
        nvmlDeviceGetName=lambda handle: b"Tesla V100",
    )

    found = watched.record(old)

    assert found.reasons == {"hw_power_brake_slowdown": 1}
    assert (found.name, found.power_limit_w) == ("Tesla V100", None)


def test_functions_that_a_new_library_has_renamed_are_found(watched: Watched) -> None:
    new = fake_nvml(nvmlDeviceGetTemperature=None, nvmlDeviceGetTemperatureV=lambda handle, sensor: 66)

    assert watched.record(new).samples[0].temperature_c == 66


def test_a_library_of_another_version_only_loses_what_it_lacks(watched: Watched) -> None:
    def mismatch(handle: Any) -> Any:
        raise RuntimeError("the pyNVML version does not match the NVML lib version")

    found = watched.record(fake_nvml(nvmlDeviceGetComputeRunningProcesses=mismatch))

    assert found.samples[0].others is None
    assert found.samples[0].sm_mhz == 1755


def test_a_lost_card_ends_the_watch_is_reported_and_the_samples_stay(watched: Watched) -> None:
    clocks = iter([1755, 3201, 1755, 3201])

    def clock(*_: Any) -> int:
        try:
            return next(clocks)
        except StopIteration:
            raise NVMLError(15, "GPU is lost") from None

    watch = watched.watch(fake_nvml(nvmlDeviceGetClockInfo=clock), samples=3)
    found = watch.record()

    assert found is not None
    assert found.taken == 2
    assert found.problem == watch.problem == "the node's health is not watched any more: NVML reports GPU is lost"


@pytest.mark.parametrize(
    ("nvml", "problem"),
    [
        (ImportError("no pynvml"), None),
        (OSError("torn"), "the node's health was not watched: NVML reports torn"),
        (
            fake_nvml(nvmlInit=refuse(9, "Driver Not Loaded")),
            "the node's health was not watched: NVML reports Driver Not Loaded",
        ),
        (
            fake_nvml(nvmlDeviceGetHandleByUUID=refuse(6, "Not Found")),
            "the node's health is not watched any more: NVML reports Not Found",
        ),
    ],
)
def test_without_nvml_there_are_no_samples_and_a_failure_is_reported(
    watched: Watched, nvml: Any, problem: str | None
) -> None:
    watch = watched.watch(nvml)

    assert watch.record() == NodeHealth(uuid=UUID, problem=problem)
    assert watch.problem == problem
    watch.start_when_ready()
    assert watch._thread is None


def test_a_device_that_the_program_has_not_chosen_yet_is_waited_for(watched: Watched) -> None:
    assert watched.watch(fake_nvml(), uuid=None).record() is None


@pytest.mark.parametrize("uuid", [f"GPU-{UUID}", UUID])
def test_a_device_is_found_by_its_uuid_with_and_without_the_prefix(watched: Watched, uuid: str) -> None:
    assert watched.record(fake_nvml(), uuid=uuid).taken == 1


def test_a_part_of_a_divided_card_is_found_too(watched: Watched) -> None:
    part = fake_nvml(nvmlDeviceGetHandleByUUID=lambda uuid: HANDLE if uuid == f"MIG-{UUID}" else refuse(6)())

    assert watched.record(part).taken == 1


def test_other_processes_are_counted_with_their_memory_and_their_use(watched: Watched) -> None:
    parent = os.getppid()
    used = [SimpleNamespace(pid=parent, timeStamp=5, smUtil=90), SimpleNamespace(pid=parent, timeStamp=9, smUtil=35)]
    shared = fake_nvml(
        nvmlDeviceGetComputeRunningProcesses=lambda _: [process(os.getpid(), 2**30), process(parent, 3 * 2**30)],
        nvmlDeviceGetProcessUtilization=lambda handle, since: used,
    )

    sample = watched.record(shared).samples[0]

    assert (sample.others, sample.others_bytes, sample.others_utilization) == (1, 3 * 2**30, 35)


def test_in_a_container_with_other_process_numbers_one_of_them_is_our_own(watched: Watched) -> None:
    far = 2**22 + 1  # above what Linux gives out

    alone = watched.record(fake_nvml(nvmlDeviceGetComputeRunningProcesses=lambda _: [process(far, None)])).samples[0]
    two = watched.record(
        fake_nvml(nvmlDeviceGetComputeRunningProcesses=lambda _: [process(far, None), process(far + 1, None)])
    ).samples[0]

    assert (alone.others, alone.others_bytes) == (0, None)
    assert (two.others, two.others_bytes, two.others_utilization) == (1, None, None)


def test_a_run_without_a_gpu_has_no_node_and_no_thread(tmp_path: Path) -> None:
    with perfkit.profile(tmp_path / "x", recorders=(), quiet=True) as prof:
        for _ in prof.steps(range(12)):
            assert "perfkit node health" not in [thread.name for thread in threading.enumerate()]

    rank = read_run(tmp_path / "x").ranks[0].rank
    assert rank is not None
    assert rank.node is None
    assert not [note for note in rank.notes if "node" in note]


def run_with(nvml: Any, folder: Path) -> Rank:
    """A run of 120 steps that watches this card, though there is no GPU here."""
    with perfkit.profile(folder, recorders=(), quiet=True) as prof:
        live = prof._live
        assert live is not None
        live.attachments.node = NodeWatch(lambda: live.clock.step_num, lambda: UUID, lambda: nvml)
        for _ in prof.steps(range(120)):
            pass
        watching = live.attachments.node._thread
        assert watching is not None
    assert not watching.is_alive()
    rank = read_run(folder).ranks[0].rank
    assert rank is not None
    return rank


def test_the_samples_are_in_rank_json_and_the_thread_ends_with_the_run(tmp_path: Path) -> None:
    rank = run_with(fake_nvml(), tmp_path / "x")

    assert rank.node is not None
    assert (rank.node.name, rank.node.taken) == ("NVIDIA H200", 1)
    assert rank.overhead_ns is not None


def test_a_run_on_a_card_that_nvml_loses_continues_and_reports_it_once(tmp_path: Path) -> None:
    rank = run_with(fake_nvml(nvmlDeviceGetClockInfo=refuse(15, "GPU is lost")), tmp_path / "x")

    assert rank.ending == "finished"
    assert rank.steps == 120
    assert [note for note in rank.notes if "GPU is lost" in note] == [
        "the node's health is not watched any more: NVML reports GPU is lost"
    ]


@pytest.mark.parametrize(
    ("module", "version", "words"),
    [
        (None, None, "nvidia-ml-py is not installed: node health is not recorded (pip install 'perfkit[nvml]')"),
        (fake_nvml(nvmlInit=refuse(12, "NVML Shared Library Not Found")), "12", "cannot be used here: NVML Shared"),
        (fake_nvml(nvmlSystemGetDriverVersion=lambda: "550.1"), "12", "are recorded (driver 550.1)"),
    ],
)
def test_doctor_prints_whether_the_node_can_be_watched(
    module: Any, version: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(
        _env, "package_version", lambda name: version if name == "nvidia-ml-py" else "1.0" if name else None
    )

    assert words in doctor._nvml()
