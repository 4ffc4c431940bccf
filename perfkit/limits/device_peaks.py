"""Peaks of devices: arithmetic by precision and memory bandwidth, each with its source.

By the device's name, else by what its chip does in a cycle (`perfkit.limits.chip_units`), which the source then says.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from perfkit.limits.chip_units import CHIPS, tflops_of
from perfkit.limits.geforce_cards import CARDS
from perfkit.trace.columns import DeviceProperties


class Peaks(NamedTuple):
    """Peaks of one device.

    ``tflops`` is in TFLOP/s by precision, dense: where a document prints the figure with structured sparsity, half of
    it. Tensor cores count with the FP32 accumulation that torch uses. A precision that is not in the document,
    or that the chip lacks, is not in it. ``bandwidth`` is in GB/s (10^9 bytes), of the device's own memory; None where
    it is not known. ``derived`` is whether the name was not known, and the peaks follow from the chip's units.
    """

    tflops: dict[str, float]
    bandwidth: float | None
    source: str
    derived: bool = False

    def ridge(self, precision: str) -> float | None:
        """FLOP per byte above which arithmetic, not memory, is the limit; None where one of the peaks is not known."""
        tflops = self.tflops.get(precision)
        return tflops * 1e3 / self.bandwidth if tflops is not None and self.bandwidth is not None else None

    @property
    def ridges(self) -> dict[str, float]:
        """The ridge point of each precision."""
        return {name: ridge for name in self.tflops if (ridge := self.ridge(name)) is not None}


#: A100 data sheet: the same arithmetic for all of them.
_A100 = {"bfloat16": 312, "float16": 312, "tf32": 156, "float32": 19.5, "float64": 19.5}
#: H100 and H200 data sheets, SXM: with sparsity BF16/FP16 1,979, TF32 989, FP8 3,958; FP32 67, FP64 Tensor 67.
_HOPPER_SXM = {"bfloat16": 989.5, "float16": 989.5, "tf32": 494.5, "float8": 1979, "float32": 67, "float64": 67}

#: Device name as torch reports it (a regular expression for all of it) -> its peaks; GeForce cards are in
#: `perfkit.limits.geforce_cards`. The same chip with fewer units (a MIG slice, a custom board) has another name, and
#: its peaks follow from its units. Of Apple's chips torch reports no name: that of the processor stands for it. All of
#: it was recomputed from units, clocks and buses (tests/limits/test_device_peaks.py).
PEAKS: dict[str, Peaks] = {
    # No bfloat16 and no TF32 units. Single precision and double precision without tensor cores.
    r"Tesla V100-SXM2-(16|32)GB": Peaks(
        {"float16": 125, "float32": 15.7, "float64": 7.8}, 900, "NVIDIA V100 data sheet (January 2020)"
    ),
    r"Tesla V100-PCIE-(16|32)GB": Peaks(
        {"float16": 112, "float32": 14, "float64": 7}, 900, "NVIDIA V100 data sheet (January 2020)"
    ),
    r"Tesla V100S-PCIE-32GB": Peaks(
        {"float16": 130, "float32": 16.4, "float64": 8.2}, 1134, "NVIDIA V100 data sheet (January 2020)"
    ),
    r"Tesla T4": Peaks({"float16": 65, "float32": 8.1}, 300, "NVIDIA T4 data sheet"),
    r"(NVIDIA )?A100-(SXM4|PCIE)-40GB": Peaks(_A100, 1555, "NVIDIA A100 data sheet"),
    r"(NVIDIA )?A100-SXM4-80GB": Peaks(_A100, 2039, "NVIDIA A100 data sheet"),
    r"NVIDIA A100 80GB PCIe": Peaks(_A100, 1935, "NVIDIA A100 data sheet"),
    # With sparsity: BF16/FP16 330, TF32 165; FP64 Tensor 10.3.
    r"NVIDIA A30": Peaks(
        {"bfloat16": 165, "float16": 165, "tf32": 82, "float32": 10.3, "float64": 10.3}, 933, "NVIDIA A30 data sheet"
    ),
    # Printed dense | sparse: BF16/FP16 125 | 250, TF32 62.5 | 125.
    r"NVIDIA A10": Peaks(
        {"bfloat16": 125, "float16": 125, "tf32": 62.5, "float32": 31.2}, 600, "NVIDIA A10 data sheet"
    ),
    # Printed dense | sparse: BF16/FP16 149.7 | 299.4, TF32 74.8 | 149.6.
    r"NVIDIA A40": Peaks(
        {"bfloat16": 149.7, "float16": 149.7, "tf32": 74.8, "float32": 37.4}, 696, "NVIDIA A40 data sheet"
    ),
    r"(NVIDIA )?RTX A6000": Peaks(
        {"bfloat16": 154.8, "float16": 154.8, "tf32": 77.4, "float32": 38.7},
        768,
        "NVIDIA GA102 white paper, appendix C",
    ),
    r"NVIDIA H100 80GB HBM3": Peaks(_HOPPER_SXM, 3350, "NVIDIA H100 data sheet, SXM"),
    r"NVIDIA H200": Peaks(_HOPPER_SXM, 4800, "NVIDIA H200 data sheet, SXM"),
    # Printed with sparsity: BF16/FP16 1,513, TF32 756, FP8 3,026; FP32 51, FP64 Tensor 51.
    r"NVIDIA H100 PCIe": Peaks(
        {"bfloat16": 756.5, "float16": 756.5, "tf32": 378, "float8": 1513, "float32": 51, "float64": 51},
        2000,
        "NVIDIA H100 PCIe data sheet (80 GB)",
    ),
    # With sparsity: FP16/BF16 4.5, FP8 9, TF32 2.2 PFLOP/s. The documents disagree on FP32 and FP64.
    r"NVIDIA B200": Peaks(
        {"bfloat16": 2250, "float16": 2250, "tf32": 1100, "float8": 4500},
        8000,
        "NVIDIA Blackwell architecture technical brief, HGX B200",
    ),
    # With sparsity: BF16/FP16 242, TF32 120, FP8 485; FP32 30.3.
    r"NVIDIA L4": Peaks(
        {"bfloat16": 121, "float16": 121, "tf32": 60, "float8": 242.5, "float32": 30.3}, 300, "NVIDIA L4 data sheet"
    ),
    r"NVIDIA L40": Peaks(
        {"bfloat16": 181.05, "float16": 181.05, "tf32": 90.5, "float8": 362, "float32": 90.5},
        864,
        "NVIDIA L40 data sheet",
    ),
    # Printed dense | sparse: BF16/FP16 362.05 | 733, TF32 183 | 366, FP8 733 | 1,466; FP32 91.6.
    r"NVIDIA L40S": Peaks(
        {"bfloat16": 362.05, "float16": 362.05, "tf32": 183, "float8": 733, "float32": 91.6},
        864,
        "NVIDIA L40S data sheet",
    ),
    # Matrix BF16/FP16 383, FP32 95.7, FP64 95.7, memory 3,276.8 GB/s for a board of two dies; torch sees each die as
    # a device, so half.
    r"AMD Instinct MI250X": Peaks(
        {"bfloat16": 191.5, "float16": 191.5, "float32": 47.85, "float64": 47.85},
        1638.4,
        "AMD Instinct MI250X data sheet, one of two dies",
    ),
    r"AMD Instinct MI210": Peaks(
        {"bfloat16": 181, "float16": 181, "float32": 45.3, "float64": 45.3}, 1638.4, "AMD Instinct MI210 data sheet"
    ),
    r"AMD Instinct MI300A": Peaks(
        {"bfloat16": 980.6, "float16": 980.6, "float8": 1961.2, "float32": 122.6, "float64": 122.6},
        5300,
        "AMD Instinct MI300A data sheet",
    ),
    r"AMD Instinct MI300X( OAM)?": Peaks(
        {"bfloat16": 1307.4, "float16": 1307.4, "float8": 2614.9, "float32": 163.4, "float64": 163.4},
        5300,
        "AMD Instinct MI300X data sheet",
    ),
    # Apple prints single precision of some (press releases of November 2020, October 2021 and June 2022), half
    # precision of none, and the memory's bandwidth of all.
    r"Apple M1": Peaks({"float32": 2.6}, 68.25, "Apple, M1 (2020): 8 GPU cores"),
    r"Apple M1 Pro": Peaks({"float32": 5.2}, 200, "Apple, M1 Pro (2021): 16 GPU cores"),
    r"Apple M1 Max": Peaks({"float32": 10.4}, 400, "Apple, M1 Max (2021): 32 GPU cores"),
    r"Apple M1 Ultra": Peaks({}, 800, "Apple, M1 Ultra (2022)"),
    r"Apple M2": Peaks({"float32": 3.6}, 100, "Apple, M2 (2022): 10 GPU cores"),
    r"Apple M2 Pro": Peaks({}, 200, "Apple, M2 Pro (2023)"),
    r"Apple M2 Max": Peaks({}, 400, "Apple, M2 Max (2023)"),
    r"Apple M2 Ultra": Peaks({}, 800, "Apple, M2 Ultra (2023)"),
    r"Apple M3": Peaks({}, 100, "Apple, M3 (2023)"),
    r"Apple M3 Pro": Peaks({}, 150, "Apple, M3 Pro (2023)"),
    # 300 GB/s with 30 GPU cores, 400 with 40; 410 and 546 of M4 Max.
    r"Apple M3 Max": Peaks({}, None, "Apple, M3 Max (2023)"),
    r"Apple M4": Peaks({}, 120, "Apple, M4 (2024)"),
    r"Apple M4 Pro": Peaks({}, 273, "Apple, M4 Pro (2024)"),
    r"Apple M4 Max": Peaks({}, None, "Apple, M4 Max (2024)"),
}

_GEFORCE = re.compile(r"(?:NVIDIA )?GeForce (.+)")
#: Names of NVIDIA's devices, older drivers' too: AMD's have "compute capabilities" with the same numbers (gfx90a: 9.0).
_NVIDIA = re.compile(r"(NVIDIA|Tesla|Quadro|TITAN|GeForce|RTX|GRID|A100)\b")


def peaks_of(device: str) -> Peaks | None:
    """Peaks of a device by its name; None for one that is not in the table, or whose name several cards share."""
    return peaks_of_device(DeviceProperties(id=0, name=device))


def peaks_of_device(device: DeviceProperties) -> Peaks | None:
    """Peaks of a device by its name, else by its units and clock; None where neither is known.

    A clock or a bandwidth that the recording has (nsys) is taken in place of the usual clock of its capability. Without
    one the peaks are as far off as the chip's clock is from that (`perfkit.limits.chip_units`).
    """
    if (match := _GEFORCE.fullmatch(device.name)) is not None:
        if (card := _geforce(match[1], device)) is not None:
            return card
    elif (known := next((peaks for name, peaks in PEAKS.items() if re.fullmatch(name, device.name)), None)) is not None:
        return known
    if device.capability not in CHIPS or not device.multiprocessors or device.capability is None:
        return None
    if not _NVIDIA.match(device.name):
        return None
    usual_ghz = CHIPS[device.capability].clock_ghz
    clock_ghz = device.clock_mhz / 1e3 if device.clock_mhz else usual_ghz
    of_clock = f"at its {clock_ghz:.3g} GHz" if device.clock_mhz else f"at {clock_ghz:g} GHz, usual for such chips"
    memory = "" if device.bytes_per_s else "; its memory bandwidth is not known"
    number = ".".join(map(str, device.capability))
    return Peaks(
        tflops_of(device.capability, device.multiprocessors, clock_ghz, geforce="GeForce" in device.name),
        device.bytes_per_s / 1e9 if device.bytes_per_s else None,
        f"{device.multiprocessors} multiprocessors of compute capability {number} {of_clock}{memory}",
        derived=True,
    )


def _geforce(name: str, device: DeviceProperties) -> Peaks | None:
    cards = CARDS.get(name, ())
    if len(cards) > 1:
        cards = tuple(card for card in cards if card.multiprocessors == device.multiprocessors)
    # The same name with other units is another chip.
    if not cards or device.multiprocessors not in (None, cards[0].multiprocessors):
        return None
    (card,) = cards
    tflops = tflops_of(card.capability, card.multiprocessors, card.boost_ghz, geforce=True)
    bandwidth = card.bandwidth or (device.bytes_per_s / 1e9 if device.bytes_per_s else None)
    limit = ", the highest that a laptop may have" if name.endswith("Laptop GPU") else ""
    return Peaks(
        tflops,
        bandwidth,
        f"NVIDIA GeForce {name}: {card.multiprocessors} multiprocessors at {card.boost_ghz:g} GHz{limit}",
    )
