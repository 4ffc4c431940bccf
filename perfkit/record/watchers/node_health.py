"""What the node does to a GPU beside training: clocks, why they are low, power, heat, and who else uses it.

NVML is read when training has begun and every ten seconds after, by a thread of its own: a reading may take
milliseconds in the driver, in which it holds no interpreter lock, and the samplers of lines may be given up. Reading
neither waits for the device nor changes it. The device is found by its UUID, since CUDA_VISIBLE_DEVICES renumbers
devices for CUDA and not for NVML.

What a driver or a card does not support stays None; any other error of NVML ends the watch, and is told once.
A sample sees one instant: what comes and goes within ten seconds may be missed.

Not run on a GPU yet; the logic is tested with an NVML that a test makes up.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from perfkit import _clock
from perfkit.run.records import MinMedianMax, NodeHealth, NodeSample

#: Heat and power limits act over seconds, and a node that slows training does so for minutes.
PERIOD_S = 10.0
#: Samples kept, evenly over the run: every second one goes when there are more. A day then has one per 15 minutes.
MOST_SAMPLES = 100
#: Values per quantity that medians are taken of; a day has 8,640.
_MOST_VALUES = 10_000
#: What has a spread: fields of a sample and of the record.
_SPREADS = ("sm_mhz", "memory_mhz", "power_w", "temperature_c", "utilization")

#: NVML's bits (nvml.h, nvmlClocksEventReason*) -> its words. The numbers are part of its interface.
REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}

#: NVML's names of clocks and of the temperature sensor.
_SM, _MEMORY, _GPU_SENSOR = 1, 2, 0
#: Errors that say that a card or driver cannot tell, or has nothing to tell now (nvml.h, nvmlReturn_t).
_NOT_SUPPORTED, _NO_PERMISSION, _NOT_FOUND, _FUNCTION_NOT_FOUND, _NO_DATA = 3, 4, 6, 13, 21
_CANNOT_TELL = frozenset({_NOT_SUPPORTED, _NO_PERMISSION, _FUNCTION_NOT_FOUND})
#: pynvml raises success (0) where a list has no entries.
_NOTHING_NOW = frozenset({0, _NOT_FOUND, _NO_DATA})
#: Ancestors of a process that are looked through for this one.
_GENERATIONS = 8


class Nvml(Protocol):
    """What is needed of the module ``pynvml``; every other function may be missing."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None:
        """Begin."""

    def nvmlShutdown(self) -> None:
        """End, as often as begun."""

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        """A device by its UUID."""


class NodeWatch:
    """Samples one GPU until `stop`. ``device`` names it by its UUID, None while the program has not chosen one yet.

    ``step`` is how many steps were begun; ``load`` gives NVML, and raises ImportError where it is not installed.
    """

    def __init__(
        self, device: Callable[[], str | None], step: Callable[[], int], load: Callable[[], Nvml] | None = None
    ) -> None:
        self._device = device
        self._step = step
        self._load = load or _pynvml
        self._health: NodeHealth | None = None
        self._samples: list[NodeSample] = []
        # All names from the beginning: `record` goes through them while the thread adds values.
        self._values: dict[str, list[float]] = {name: [] for name in _SPREADS}
        self._reasons: dict[str, int] = {}
        #: Samples that are merged into one kept, and those waiting to be.
        self._every = 1
        self._waiting: list[NodeSample] = []
        self._unsupported: set[str] = set()
        self._since_us = 0
        self._stop = threading.Lock()
        self._watching: threading.Thread | None = None
        self._absent = False
        #: What reading took, seconds of this thread.
        self.cost_s = 0.0
        #: Why there is nothing, or nothing more, to tell.
        self.problem: str | None = None

    def look(self) -> None:
        """Begin to sample as soon as the program uses a device; called in its own thread, which knows which one."""
        if self._watching is not None or self._absent or self.problem is not None:
            return
        try:
            uuid = self._device()
        except Exception as error:  # noqa: BLE001 - a program's loop is running
            self.problem = f"the node's health was not watched: the device has no name ({error})"
            return
        if uuid is None:
            return
        self._stop = threading.Lock()
        self._stop.acquire()
        self._watching = threading.Thread(
            target=self._run, args=(uuid, self._stop), name="perfkit node health", daemon=True
        )
        self._watching.start()

    def stop(self) -> None:
        """End sampling; what was read stays, and `look` begins again."""
        if self._stop.locked():
            self._stop.release()
        if self._watching is not None:
            # NVML hangs with a driver that does: then the thread is left behind.
            self._watching.join(timeout=1.0)
            self._watching = None

    def record(self) -> NodeHealth | None:
        """What was read until now; None where nothing was."""
        health = self._health
        if health is None:
            return None
        samples = tuple(self._samples)
        return msgspec.structs.replace(
            health,
            samples=samples,
            reasons=dict(self._reasons),
            problem=self.problem,
            **{name: _spread(values) for name, values in self._values.items()},
        )

    # -- in the thread

    def _run(self, uuid: str, stopped: threading.Lock) -> None:
        try:
            nvml = self._load()
            nvml.nvmlInit()
        except ImportError:
            # An extra that was not asked for; `perfkit doctor` says what it would give.
            self._absent = True
            return
        except Exception as error:  # noqa: BLE001 - NVML's errors never reach training
            self.problem = f"the node's health was not watched: NVML says {error}"
            return
        try:
            handle = _handle(nvml, uuid)
            self._health = self._health or self._constants(nvml, handle, uuid)
            while True:
                began = time.thread_time()
                self._add(self._sample(nvml, handle))
                self.cost_s += time.thread_time() - began
                if stopped.acquire(timeout=PERIOD_S):
                    break
        except Exception as error:  # noqa: BLE001 - as above: a device that is lost, a driver that is replaced
            self.problem = f"the node's health is watched no more: NVML says {error}"
        finally:
            _quietly(nvml.nvmlShutdown)

    def _constants(self, nvml: Nvml, handle: Any, uuid: str) -> NodeHealth:
        limit = self._ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)
        name = self._ask(nvml, "nvmlDeviceGetName", handle)
        return NodeHealth(
            uuid=uuid,
            name=name.decode() if isinstance(name, bytes) else name,
            max_sm_mhz=self._ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, _SM),
            max_memory_mhz=self._ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, _MEMORY),
            power_limit_w=limit / 1000 if limit is not None else None,
        )

    def _sample(self, nvml: Nvml, handle: Any) -> NodeSample:
        power = self._ask(nvml, "nvmlDeviceGetPowerUsage", handle)
        used = self._ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
        # New names of old functions: of reasons since driver 535, of the temperature from CUDA 14 on alone.
        bits = self._ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:
            bits = self._ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        heat = self._ask(nvml, "nvmlDeviceGetTemperature", handle, _GPU_SENSOR)
        if heat is None:
            heat = self._ask(nvml, "nvmlDeviceGetTemperatureV", handle, _GPU_SENSOR)
        others, others_bytes, others_utilization = self._others(nvml, handle)
        return NodeSample(
            at_ns=_clock.now_ns(),
            step=self._step(),
            sm_mhz=self._ask(nvml, "nvmlDeviceGetClockInfo", handle, _SM),
            memory_mhz=self._ask(nvml, "nvmlDeviceGetClockInfo", handle, _MEMORY),
            power_w=power / 1000 if power is not None else None,
            temperature_c=heat,
            utilization=int(used.gpu) if used is not None else None,
            reasons=tuple(word for bit, word in REASONS.items() if bits & bit) if bits is not None else None,
            others=others,
            others_bytes=others_bytes,
            others_utilization=others_utilization,
        )

    def _others(self, nvml: Nvml, handle: Any) -> tuple[int | None, int | None, int | None]:
        """Other processes on the device: how many, their memory, and how much they use it.

        In a container NVML tells process numbers of the host, among which this process does not find itself: all but
        one are then others, and nothing more is known of them.
        """
        processes = self._ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
        if processes is None:
            return None, None, None
        others = [process for process in processes if not _ours(int(process.pid))]
        if len(others) == len(processes):
            return max(0, len(processes) - 1), None, None
        known = [process.usedGpuMemory for process in others]
        in_all = sum(known) if None not in known else None
        if not others:
            return 0, 0, 0
        samples = self._ask(nvml, "nvmlDeviceGetProcessUtilization", handle, self._since_us)
        if samples is None:
            return len(others), in_all, None
        # There are several per process since the last look: the newest tells of now.
        newest: dict[int, Any] = {}
        for sample in sorted(samples, key=lambda sample: sample.timeStamp):
            newest[int(sample.pid)] = sample
        self._since_us = max((int(sample.timeStamp) for sample in samples), default=self._since_us)
        pids = {int(process.pid) for process in others}
        return len(others), in_all, min(100, sum(int(s.smUtil) for pid, s in newest.items() if pid in pids))

    def _ask(self, nvml: Nvml, name: str, *arguments: Any) -> Any:
        """What one of NVML's functions says; None where this driver or card cannot say it."""
        function = getattr(nvml, name, None)
        if function is None or name in self._unsupported:
            return None
        try:
            return function(*arguments)
        except nvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code in _CANNOT_TELL:
                self._unsupported.add(name)
            elif code not in _NOTHING_NOW:
                raise
            # No utilization of processes since the last look: none used it.
            return [] if code in _NOTHING_NOW and name == "nvmlDeviceGetProcessUtilization" else None
        except Exception:  # noqa: BLE001 - pynvml's own trouble, as with a library older than itself
            self._unsupported.add(name)
            return None

    def _add(self, sample: NodeSample) -> None:
        assert self._health is not None
        for name, values in self._values.items():
            value = getattr(sample, name)
            if value is not None and len(values) < _MOST_VALUES:
                values.append(value)
        for reason in sample.reasons or ():
            self._reasons[reason] = self._reasons.get(reason, 0) + 1
        self._health = msgspec.structs.replace(self._health, taken=self._health.taken + 1)
        self._waiting.append(sample)
        if len(self._waiting) < self._every:
            return
        samples = [*self._samples, _merged(self._waiting)]
        self._waiting = []
        if len(samples) > MOST_SAMPLES:
            samples = [_merged(samples[at : at + 2]) for at in range(0, len(samples), 2)]
            self._every *= 2
        self._samples = samples  # at once: `record` may be reading it


def watch_node(step: Callable[[], int]) -> NodeWatch:
    """A watch of the CUDA device that this process computes on."""
    return NodeWatch(_current_uuid, step)


def _current_uuid() -> str | None:
    """The UUID of the calling thread's current device, None until the program has begun to use CUDA."""
    import torch

    cuda: Any = torch.cuda  # parts of it are untyped
    if not cuda.is_initialized():
        return None
    return str(getattr(cuda.get_device_properties(cuda.current_device()), "uuid", "")) or None


def _pynvml() -> Nvml:
    module: Any = importlib.import_module("pynvml")  # without types
    return module  # type: ignore[no-any-return]  # its functions are those of Nvml


def _handle(nvml: Nvml, uuid: str) -> Any:
    """NVML's device of a UUID as CUDA tells it, which is without NVML's prefix; also a part of a divided device."""
    if uuid.startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except nvml.NVMLError:
        return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")


def _ours(pid: int) -> bool:
    """Whether a process is this one or has come of it."""
    for _ in range(_GENERATIONS):
        if pid == os.getpid():
            return True
        try:
            with open(f"/proc/{pid}/stat") as file:
                # The name, in parentheses, may hold anything; the parent is the second word after it.
                pid = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
        if pid <= 1:
            return False
    return False


def _merged(samples: Sequence[NodeSample]) -> NodeSample:
    """The last of some samples, with the reasons of all."""
    words = [sample.reasons for sample in samples if sample.reasons is not None]
    reasons = tuple(dict.fromkeys(word for some in words for word in some)) if words else None
    return msgspec.structs.replace(samples[-1], reasons=reasons)


def _spread(values: Sequence[float]) -> MinMedianMax | None:
    ordered = sorted(values)
    return MinMedianMax(ordered[0], ordered[len(ordered) // 2], ordered[-1]) if ordered else None


def _quietly(do: Callable[[], Any]) -> None:
    try:
        do()
    except Exception:  # noqa: BLE001 - it is over; what NVML says of its own end helps nobody
        pass
