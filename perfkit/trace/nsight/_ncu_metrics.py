"""Metrics as Nsight Compute writes them: names and labels of all versions, varying units, numbers of any locale."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

#: ncu's name of a metric in a cell: alone, or next to its label.
_METRIC = re.compile(r"\b(?:[a-z][a-z0-9]*__|memory_l[12]_)[a-zA-Z0-9_.]+")
#: The metrics that are read; there are thousands of others.
_WANTED = re.compile(
    r"gpu__time_duration\.(sum|avg)$"
    r"|(sm__|gpu__compute_memory_|gpu__dram_|dram__|l1tex__|lts__)throughput\.avg\.pct_of_peak_sustained_\w+$"
    r"|sm__warps_active\.avg\.pct_of_peak_sustained_active$|sm__maximum_warps_per_active_cycle_pct$"
    r"|launch__(registers_per_thread|occupancy_limit_\w+|waves_per_multiprocessor|grid_size|block_size|grid_dim_[xyz]"
    r"|block_dim_[xyz])$"
    r"|derived__(local|shared)_spilling_requests(_pct)?$|sass__inst_executed_register_spilling$"
    r"|smsp__(average_warps?|warp|pcsamp_warps?)(_latency)?_issue_stalled_\w+(\.ratio|\.pct)?$"
    r"|smsp__average_(warp_latency_per_inst_issued|warps_active_per_issue_active)\.ratio$"
    r"|(derived__)?(sm|smsp)__sass_thread_inst_executed_op_[dfh](add|mul|fma)_pred_on(_x[24]|\.sum[\w.]*)$"
    r"|sm__ops_path_tensor_\w+\.sum(\.per_cycle_elapsed|\.peak_sustained)?$"
    r"|sm__(inst_executed_)?pipe_\w+\.avg\.pct_of_peak_sustained_active$|sm__(inst_executed_)?pipe_tensor\w*\.[\w.]+$"
    r"|dram__bytes(_read|_write)?\.sum(\.per_second|\.peak_sustained)?$"
    r"|(sm|smsp|dram)__cycles_elapsed\.avg\.per_second$"
    r"|(l1tex|lts)__t_sector_hit_rate\.pct$"
    r"|smsp__thread_inst_executed(_pred_on)?_per_inst_executed\.ratio$"
    r"|smsp__inst_(executed|issued)\.sum$|sm__inst_executed\.avg\.per_cycle_active$"
    r"|sm__instruction_throughput\.avg\.pct_of_peak_sustained_active$"
    r"|smsp__issue_(inst0|active)\.avg\.pct_of_peak_sustained_active$|smsp__warps_eligible\.avg\.per_cycle_active$"
    r"|(memory|derived__memory)_l(2_theoretical_sectors_global|1_wavefronts_shared)(_ideal|_excessive)?$"
    r"|l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld\.ratio$"
    r"|smsp__sass_average_data_bytes_per_sector_mem_global_op_ld\.(ratio|pct)$"
)


class _Labels(msgspec.Struct, frozen=True):
    """What the details page shows in place of names, in any version.

    ``labels`` are those of each metric, in lower case. ``stall_reasons`` are the reasons by a text in the rule about
    stalls.
    """

    labels: dict[str, list[str]]
    stall_reasons: dict[str, str]


_LABELS = msgspec.json.decode(Path(__file__).with_name("ncu_labels.json").read_bytes(), type=_Labels)
_METRIC_OF_LABEL = {label: metric for metric, labels in _LABELS.labels.items() for label in labels}
_STALL_LABEL = re.compile(r"stall ([a-z0-9/ ]+)")

#: The rule about stalls on the details page, which has nothing else on stalls without ``--print-details all``.
_STALL_RULE = re.compile(r"represents about ([\d.,]+)% of the total average of")

_TIMES = {"": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_TIME = re.compile(r"([mun]?)(?:seconds?|s)")
_AMOUNT = re.compile(r"([KMGTP]?)(?:bytes?|B|cycles?|inst|hz)")
_DIMENSIONS = re.compile(r"\(\s*(\d{1,10})\s*,\s*(\d{1,10})\s*,\s*(\d{1,10})\s*\)")
_NUMBER = re.compile(r"[+-]?\d[\d., ' \u00a0\u202f]*(?:[eE][+-]?\d+)?")


def metric_of(cell: str, unit: str) -> str | None:
    """ncu's name of the metric in a cell, given by name or label; None for a metric that is not read."""
    if match := _METRIC.search(cell):
        return match[0] if _WANTED.match(match[0]) else None
    label = cell.strip().lower()
    if label == "memory throughput" and unit not in ("", "%"):
        return "dram__bytes.sum.per_second"  # the same label, in the section about memory
    if match := _STALL_LABEL.fullmatch(label):
        reason = re.sub("[ /]", "_", match[1]).replace("no_instructions", "no_instruction")
        return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
    return _METRIC_OF_LABEL.get(label)


def stall_of_rule(description: str) -> tuple[str, str] | None:
    """The metric and its value (percent, as text) in the description of ncu's rule about stalls; None without one."""
    match = _STALL_RULE.search(description)
    name = next((stall for words, stall in _LABELS.stall_reasons.items() if words in description), None)
    if match is None or name is None:
        return None
    return f"smsp__warp_issue_stalled_{name}_per_warp_active.pct", match[1].rstrip(".,")


def is_decimal_comma(texts: Iterable[str]) -> bool:
    """Whether the comma is the decimal separator, by the numbers that can be read in one way only."""
    votes: Counter[str] = Counter()
    for text in texts:
        match = _NUMBER.match(text.strip())
        marks = re.findall(r"[.,]", match[0]) if match is not None else []
        if match is None or not marks:
            continue
        if len(set(marks)) == 2:
            votes[marks[-1]] += 1
        elif len(marks) > 1:
            votes["," if marks[0] == "." else "."] += 1
        else:
            before, _, after = re.sub("[eE].*", "", match[0].strip().lstrip("+-")).partition(marks[0])
            if len(after) != 3 or len(before) > 3 or before == "0":
                votes[marks[0]] += 1
    return votes[","] > votes["."]


def number(text: str, comma: bool) -> float | None:
    """A number as ncu writes it (``1,234.5``); the first one of a value with instances (``12 (3; 9)``)."""
    match = _NUMBER.match(text.strip())
    if match is None:
        return None
    decimal, thousands = (",", ".") if comma else (".", ",")
    digits = re.sub(r"[ '\u00a0\u202f]", "", match[0]).replace(thousands, "").replace(decimal, ".")
    try:
        value = float(digits)
    except ValueError:
        return None
    return value if abs(value) < 1e30 else None


def unit_factor(unit: str) -> float:
    """The factor that converts a value in this unit to bytes, seconds, cycles, or these per second."""
    over, _, under = unit.strip().partition("/")
    product = 1.0
    for part, power in ((over, 1), (under, -1)):
        if match := _TIME.fullmatch(part):
            product *= _TIMES[match[1]] ** power
        elif match := _AMOUNT.fullmatch(part):
            product *= _PREFIXES[match[1]] ** power
    return product


def integer(text: str) -> int | None:
    """A non-negative integer; None for anything else."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def dimensions(text: str) -> tuple[int, int, int] | None:
    """The size of a grid or a block: ``(256, 1, 1)``."""
    match = _DIMENSIONS.fullmatch(text.strip())
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def dimensions_from_metrics(what: str, metrics: dict[str, float]) -> tuple[int, int, int] | None:
    """The size of a ``grid`` or a ``block`` from its metrics; one-dimensional where only the product is known."""
    x, y, z = (metrics.get(f"launch__{what}_dim_{axis}") for axis in "xyz")
    if x is not None and y is not None and z is not None:
        return int(x), int(y), int(z)
    size = metrics.get(f"launch__{what}_size")
    return (int(size), 1, 1) if size is not None else None
