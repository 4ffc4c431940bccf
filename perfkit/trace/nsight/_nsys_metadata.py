"""The metadata of an nsys export: when the recording began, on which GPUs, and the events that nsys reports missing."""

from __future__ import annotations

import re

from perfkit.trace.columns import DeviceProperties
from perfkit.trace.intervals import Ints
from perfkit.trace.nsight._nsys_tables import NsysTables, recode
from perfkit.trace.occupancy import MultiprocessorLimits

#: Later than any recording (in the year 2043), and far from the end of int64.
MAX_NS = 2**61

#: The kind of events that a message of nsys is about (the first match), and the messages about missing events: "Not all
#: NVTX events might have been collected", "NVTX profiling might have not been started correctly", "CUDA device 0:
#: Unified Memory cannot be traced". Their severity differs between versions, so the words decide.
SUBJECTS = (
    ("unified memory", re.compile(r"unified memory", re.IGNORECASE)),
    ("NVTX", re.compile(r"\bNVTX\b", re.IGNORECASE)),
    ("OS call", re.compile(r"\bOS runtime|\bOSRT\b", re.IGNORECASE)),
    ("CPU sample", re.compile(r"\bsampl|context switch|backtrace", re.IGNORECASE)),
    ("CUDA", re.compile(r"\bCUDA\b|\bCUPTI\b|\bGPU\b", re.IGNORECASE)),
)
INCOMPLETE = re.compile(
    r"not all .* collected|no .* (?:events|data) (?:were |was )?collected|dropped|\blost\b|overflow|incomplete"
    r"|truncated|not been started correctly|out of memory|cannot be traced|failed to",
    re.IGNORECASE,
)
WARNING, ERROR = 2, 3
#: How the report of missing CUDA events begins, without which no device time is known.
CUDA_INCOMPLETE = "CUDA events are incomplete"
#: Maximum number of messages that are reported, and of characters of each.
MAX_MESSAGES, MAX_MESSAGE = 10, 300


#: The number of multiprocessors of a GPU, and the limits of one; None where the export does not have them.
Multiprocessors = tuple[int | None, MultiprocessorLimits | None]


class Gpus:
    """The GPUs of an export, by their number in the trace.

    That is CUDA's number, which kernels have. Where processes number GPUs differently (``CUDA_VISIBLE_DEVICES`` sets
    one GPU for each), two GPUs would become one: there it is nsys' own number.
    """

    def __init__(self, tables: NsysTables) -> None:
        rows = [
            (pid, cuda, gpu, count)
            for pid, cuda, gpu, count in tables.values(
                "TARGET_INFO_CUDA_DEVICE", "pid", "cudaId", "gpuId", "numMultiprocessors"
            )
            if {type(pid), type(cuda), type(gpu)} == {int}
        ]
        differ = len({(cuda, gpu) for _, cuda, gpu, _ in rows}) > len({cuda for _, cuda, _, _ in rows})
        self._gpu_of: dict[tuple[int, int], int] = {(p, cuda): gpu for p, cuda, gpu, _ in rows} if differ else {}
        number_of = {} if differ else {gpu: cuda for _, cuda, gpu, _ in rows}
        counts = {gpu: count for _, _, gpu, count in rows}
        self.properties: tuple[DeviceProperties, ...] = ()
        self.multiprocessors: dict[int, Multiprocessors] = {}
        for gpu, name, processors, memory, *maxima, major, minor, clock, bandwidth in tables.values(
            *("TARGET_INFO_GPU", "id", "name", "smCount", "totalMemory", "maxWarpsPerSm", "maxBlocksPerSm"),
            *("maxRegistersPerSm", "maxShmemPerSm", "computeMajor", "computeMinor", "clockRate", "memoryBandwidth"),
        ):
            if type(gpu) is not int:
                continue
            number = number_of.get(gpu, gpu)
            count = next((n for n in (processors, counts.get(gpu)) if type(n) is int and n > 0), None)
            capability = (major, minor) if type(major) is int and type(minor) is int else None
            self.properties += (
                DeviceProperties(
                    id=number,
                    name=name if isinstance(name, str) else "",
                    multiprocessors=count,
                    memory_bytes=memory if type(memory) is int else None,
                    capability=capability,
                    clock_mhz=clock / 1e6 if type(clock) is int and clock > 0 else None,
                    bytes_per_s=bandwidth if type(bandwidth) is int and bandwidth > 0 else None,
                ),
            )
            limits = None
            if capability is not None and all(type(one) is int and one > 0 for one in maxima):
                warps, blocks, registers, shared = maxima
                limits = MultiprocessorLimits(
                    warps=warps, blocks=blocks, registers=registers, shared_bytes=shared, capability=capability
                )
            self.multiprocessors[number] = count, limits

    def numbers(self, device: Ints, owner: Ints) -> Ints:
        """The GPU of each row, from CUDA's number in the process ``owner`` (a globalPid)."""
        if not self._gpu_of:
            return device
        return recode((owner >> 24 & 0xFFFFFF) << 32 | device + 1, self._number)

    def _number(self, packed: int) -> int:
        cuda = (packed & 0xFFFFFFFF) - 1
        return self._gpu_of.get((packed >> 32, cuda), cuda)


def start_time_ns(tables: NsysTables) -> int | None:
    """When the recording began, in unix time; None where the export does not have it."""
    for table in tables.names:
        if table.endswith("_START_TIME") and tables.has(table, "utcEpochNs"):
            for (ns,) in tables.values(table, "utcEpochNs"):
                if type(ns) is int and 0 <= ns < MAX_NS:
                    return ns
    return None


def host_name(tables: NsysTables) -> str | None:
    """The machine that was recorded; None where the export does not name it."""
    names = tables.values("TARGET_INFO_SYSTEM_ENV", "name", "value")
    return next((value for name, value in names if name == "Hostname" and isinstance(value, str)), None)


def messages(tables: NsysTables) -> list[str]:
    """Events that nsys reports missing, by kind, then its other warnings and errors."""
    incomplete, others = [], []
    for severity, text in tables.values("DIAGNOSTIC_EVENT", "severity", "text"):
        if not isinstance(text, str):
            continue
        # One line without control characters: it is printed to a terminal.
        printable = "".join(c if c.isprintable() else " " for c in text[: 4 * MAX_MESSAGE])
        message = " ".join(printable.split())[:MAX_MESSAGE]
        about = next((subject for subject, pattern in SUBJECTS if pattern.search(message)), None)
        if about is not None and INCOMPLETE.search(message):
            incomplete.append(f"{about} events are incomplete: nsys reported: {message}")
        elif severity in (WARNING, ERROR):
            others.append(f"nsys reported: {message}")
    found = list(dict.fromkeys((*incomplete, *others)))
    if len(found) > MAX_MESSAGES:
        return [*found[:MAX_MESSAGES], f"nsys reported {len(found) - MAX_MESSAGES} more problems"]
    return found
