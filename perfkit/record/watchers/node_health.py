"""What limits a GPU from outside the training: its clocks, why they are low, power, heat, and other processes.

NVML is read when training starts and every ten seconds after, by a thread of its own: a reading may take milliseconds
in the driver, without the interpreter lock, and the samplers of lines may be switched off. Reading neither waits for
the device nor changes it. The device is found by its UUID, because CUDA_VISIBLE_DEVICES renumbers devices for CUDA and
not for NVML.

What a driver or a card does not support stays None; any other error of NVML ends the watch, and is reported once. A
sample is one instant: what comes and goes within ten seconds may be missed.

Run against a simulated NVML.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from perfkit import _clock, _env
from perfkit.run.records import EnergyUse, MinMedianMax, NodeHealth, NodeSample, clock_reasons

#: Heat and power limits act over seconds, and a node that slows training does so for minutes.
PERIOD_S = 10.0
#: Samples kept, evenly over the run: every second one is dropped when there are more. A day then has one per 15
#: minutes.
MAX_SAMPLES = 100
#: Values per quantity for the medians; a day has 8,640.
_MAX_VALUES = 10_000
#: Quantities with a spread: fields of a sample and of the record.
_SPREADS = ("sm_mhz", "memory_mhz", "power_w", "temperature_c", "utilization")

#: NVML's numbers of clocks and of the temperature sensor.
_SM, _MEMORY, _GPU_SENSOR = 1, 2, 0
#: Errors for what a card or driver does not support (nvml.h, nvmlReturn_t): not supported, no permission, function not
#: found.
_UNSUPPORTED = frozenset({3, 4, 13})
#: Errors for what has no value now: not found, no data; pynvml raises success (0) where a list has no entries.
_NOTHING_NOW = frozenset({0, 6, 21})
#: Ancestors of a process among which this process is searched.
_GENERATIONS = 8


def _current_uuid() -> str | None:
    """The UUID of the calling thread's current device, None until the program has started to use CUDA."""
    torch: Any = _env.torch_if_loaded()
    if torch is None or not torch.cuda.is_initialized():
        return None
    return str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", "")) or None


class NodeWatch:
    """Samples one GPU until `stop`.

    Args:
        step: Returns how many steps have begun.
        device: Returns the UUID of the device, None while the program has not chosen one yet.
        load: Returns the module ``pynvml``; raises ImportError where it is not installed.
    """

    def __init__(
        self,
        step: Callable[[], int],
        device: Callable[[], str | None] = _current_uuid,
        load: Callable[[], Any] = lambda: importlib.import_module("pynvml"),
    ) -> None:
        self._step = step
        self._device = device
        self._load = load
        self._nvml: Any = None
        self._handle: Any = None
        self._health: NodeHealth | None = None
        self._samples: list[NodeSample] = []
        # All names from the beginning: `record` iterates over them while the thread adds values.
        self._values: dict[str, list[float]] = {name: [] for name in _SPREADS}
        self._reasons: Counter[str] = Counter()
        #: Samples that are merged into one kept, and those waiting to be.
        self._every = 1
        self._waiting: list[NodeSample] = []
        self._unsupported: set[str] = set()
        self._since_us = 0
        self._stop = threading.Lock()
        self._thread: threading.Thread | None = None
        self._absent = False
        #: The device's energy counter (mJ) at the first and the last sample, with the step and the time of these.
        self._energy: list[tuple[int, int, int]] = []
        #: Seconds of processor time that the thread took.
        self.cost_s = 0.0
        #: Why there are no samples, or no more.
        self.problem: str | None = None

    def start_when_ready(self) -> None:
        """Start sampling as soon as the program uses a device; called in the program's thread."""
        if self._thread is not None or self._absent or self.problem is not None:
            return
        try:
            uuid = self._device()
        except Exception as error:  # noqa: BLE001 - it must not end the program's loop
            self.problem = f"the node's health was not watched: the device has no UUID ({error})"
            return
        if uuid is None:
            return
        self._stop = threading.Lock()
        self._stop.acquire()
        self._thread = threading.Thread(
            target=self._run, args=(uuid, self._stop), name="perfkit node health", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling; the samples are kept, and `start_when_ready` starts again."""
        if self._stop.locked():
            self._stop.release()
        if self._thread is not None:
            # Where the driver hangs, NVML does too: the thread is then left running.
            self._thread.join(timeout=1.0)
            self._thread = None

    def record(self) -> NodeHealth | None:
        """What was read until now, of a device whose UUID alone is known too; None where the program used none."""
        if self._health is None:
            return None
        return msgspec.structs.replace(
            self._health,
            samples=tuple(self._samples),
            reasons=dict(self._reasons),
            problem=self.problem,
            **{name: MinMedianMax.of_values(values) for name, values in self._values.items()},
        )

    @property
    def energy(self) -> EnergyUse | None:
        """Energy of the device between the first and the last sample; None: not counted, or no step lies between."""
        if len(self._energy) < 2 or self._health is None:
            return None
        (first_mj, first_step, first_ns), (last_mj, last_step, last_ns) = self._energy
        if last_step <= first_step or last_mj < first_mj:  # a driver that was loaded anew counts from zero
            return None
        return EnergyUse(
            source="nvml",
            part=self._health.name or self._health.uuid,
            joules=(last_mj - first_mj) / 1e3,
            steps=last_step - first_step,
            wall_ns=last_ns - first_ns,
        )

    # -- in the thread

    def _run(self, uuid: str, stopped: threading.Lock) -> None:
        # By its UUID what DCGM recorded of the device is found, also where NVML cannot be read.
        self._health = self._health or NodeHealth(uuid=uuid)
        try:
            nvml = self._nvml = self._load()
            nvml.nvmlInit()
        except ImportError:
            # An optional extra; `perfkit doctor` lists what it adds.
            self._absent = True
            return
        except Exception as error:  # noqa: BLE001 - NVML's errors never reach training
            self.problem = f"the node's health was not watched: NVML reports {error}"
            return
        try:
            self._handle = _handle(nvml, uuid)
            if not self._health.taken:
                self._health = self._constants(uuid)
            while True:
                started_s = time.thread_time()
                self._add(self._sample())
                self.cost_s += time.thread_time() - started_s
                if stopped.acquire(timeout=PERIOD_S):
                    # Of a run shorter than the period there is else one reading, and two make a difference.
                    self._count_energy(self._sample())
                    break
        except Exception as error:  # noqa: BLE001 - as above: a lost device, a replaced driver
            self.problem = f"the node's health is not watched any more: NVML reports {error}"
        finally:
            with suppress(Exception):
                nvml.nvmlShutdown()

    def _constants(self, uuid: str) -> NodeHealth:
        limit_mw = self._read("nvmlDeviceGetEnforcedPowerLimit")
        name = self._read("nvmlDeviceGetName")
        return NodeHealth(
            uuid=uuid,
            name=name.decode() if isinstance(name, bytes) else name,
            max_sm_mhz=self._read("nvmlDeviceGetMaxClockInfo", _SM),
            max_memory_mhz=self._read("nvmlDeviceGetMaxClockInfo", _MEMORY),
            power_limit_w=limit_mw / 1000 if limit_mw is not None else None,
        )

    def _sample(self) -> NodeSample:
        power_mw = self._read("nvmlDeviceGetPowerUsage")
        used = self._read("nvmlDeviceGetUtilizationRates")
        # New names of old functions: of reasons since driver 535, of the temperature from CUDA 14 on alone.
        bits = self._read("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = self._read("nvmlDeviceGetCurrentClocksThrottleReasons")
        heat = self._read("nvmlDeviceGetTemperature", _GPU_SENSOR)
        if heat is None:
            heat = self._read("nvmlDeviceGetTemperatureV", _GPU_SENSOR)
        others, others_bytes, others_utilization = self._others()
        return NodeSample(
            at_ns=_clock.now_ns(),
            step=self._step(),
            sm_mhz=self._read("nvmlDeviceGetClockInfo", _SM),
            memory_mhz=self._read("nvmlDeviceGetClockInfo", _MEMORY),
            power_w=power_mw / 1000 if power_mw is not None else None,
            temperature_c=heat,
            utilization=int(used.gpu) if used is not None else None,
            reasons=clock_reasons(int(bits)) if bits is not None else None,
            others=others,
            others_bytes=others_bytes,
            others_utilization=others_utilization,
        )

    def _count_energy(self, sample: NodeSample) -> None:
        counter_mj = self._read("nvmlDeviceGetTotalEnergyConsumption")
        # From the first step on: what comes before it is no step's.
        if counter_mj is not None and (sample.step or not self._energy):
            reading = (int(counter_mj), sample.step or 0, sample.at_ns or 0)
            begun = bool(self._energy) and self._energy[0][1] > 0
            self._energy = [self._energy[0], reading] if begun else [reading]

    def _others(self) -> tuple[int | None, int | None, int | None]:
        """Other processes on the device: how many, their memory, and how much they use it.

        In a container NVML gives process numbers of the host, among which this process does not find itself: then all
        but one are others, and nothing more is known of them.
        """
        processes = self._read("nvmlDeviceGetComputeRunningProcesses")
        if processes is None:
            return None, None, None
        others = [process for process in processes if not _is_own(int(process.pid))]
        if len(others) == len(processes):
            return max(0, len(processes) - 1), None, None
        if not others:
            return 0, 0, 0
        sizes = [process.usedGpuMemory for process in others]
        total_bytes = sum(sizes) if None not in sizes else None
        samples = self._read("nvmlDeviceGetProcessUtilization", self._since_us)
        if samples is None:
            return len(others), total_bytes, None
        # There are several per process since the last call: the newest is the current one.
        newest = {int(one.pid): int(one.smUtil) for one in sorted(samples, key=lambda one: one.timeStamp)}
        self._since_us = max((int(one.timeStamp) for one in samples), default=self._since_us)
        pids = {int(process.pid) for process in others}
        return len(others), total_bytes, min(100, sum(used for pid, used in newest.items() if pid in pids))

    def _read(self, name: str, *arguments: Any) -> Any:
        """Call one of NVML's functions for the device; None where this driver or card does not support it."""
        function = getattr(self._nvml, name, None)
        if function is None or name in self._unsupported:
            return None
        try:
            return function(self._handle, *arguments)
        except self._nvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code in _UNSUPPORTED:
                self._unsupported.add(name)
            elif code not in _NOTHING_NOW:
                raise
            # No utilization of processes since the last call: none used the device.
            return [] if code in _NOTHING_NOW and name == "nvmlDeviceGetProcessUtilization" else None
        except Exception:  # noqa: BLE001 - pynvml's own errors, as with a library older than itself
            self._unsupported.add(name)
            return None

    def _add(self, sample: NodeSample) -> None:
        assert self._health is not None
        self._count_energy(sample)
        for name, values in self._values.items():
            value = getattr(sample, name)
            if value is not None and len(values) < _MAX_VALUES:
                values.append(value)
        self._reasons.update(sample.reasons or ())
        self._health = msgspec.structs.replace(self._health, taken=self._health.taken + 1)
        self._waiting.append(sample)
        if len(self._waiting) < self._every:
            return
        samples = [*self._samples, NodeSample.merged(self._waiting)]
        self._waiting = []
        if len(samples) > MAX_SAMPLES:
            samples = [NodeSample.merged(samples[at : at + 2]) for at in range(0, len(samples), 2)]
            self._every *= 2
        self._samples = samples  # replaced at once: `record` may be reading it


def _handle(nvml: Any, uuid: str) -> Any:
    """NVML's device of a UUID as CUDA gives it, which is without NVML's prefix; also a part of a divided device."""
    if uuid.startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except nvml.NVMLError:
        return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")


def _is_own(pid: int) -> bool:
    """Whether a process is this one or a descendant of it."""
    for _ in range(_GENERATIONS):
        if pid == os.getpid():
            return True
        try:
            with open(f"/proc/{pid}/stat") as file:
                # The name, in parentheses, may contain anything; the parent is the second word after it.
                pid = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
        if pid <= 1:
            return False
    return False
