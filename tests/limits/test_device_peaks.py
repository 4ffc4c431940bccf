"""Peaks of devices: each is recomputed from its chip's units, clock and memory; unknown names by units."""

from __future__ import annotations

import re
import statistics
from typing import NamedTuple

import pytest

from perfkit.limits.chip_units import CHIPS
from perfkit.limits.device_peaks import PEAKS, peaks_of, peaks_of_device
from perfkit.limits.geforce_cards import CARDS
from perfkit.trace.columns import DeviceProperties

#: FLOP in a cycle of a compute unit, from AMD's CDNA 2 and CDNA 3 white papers (matrix units).
_CDNA2 = {"bfloat16": 1024, "float16": 1024, "float32": 256, "float64": 256}
_CDNA3 = {"bfloat16": 2048, "float16": 2048, "float8": 4096, "float32": 256, "float64": 256}


class Chip(NamedTuple):
    """Units (multiprocessors or compute units), boost clock in GHz, and memory as bits of its bus and Gbit/s per pin.

    ``plain_ghz`` is the clock without tensor cores where it is another one; ``rate`` what tensor cores are cut to.
    """

    flop: dict[str, int]
    units: int
    ghz: float
    bus_bits: int
    gbit_s: float
    plain_ghz: float | None = None
    rate: float = 1


#: From the documents that the table names, and the architectures' white papers.
CHIP = {
    "Tesla V100-SXM2-16GB": Chip(CHIPS[7, 0].flop, 80, 1.53, 4096, 1.75),
    "Tesla V100-PCIE-32GB": Chip(CHIPS[7, 0].flop, 80, 1.38, 4096, 1.75),
    "Tesla V100S-PCIE-32GB": Chip(CHIPS[7, 0].flop, 80, 1.597, 4096, 2.214),
    "Tesla T4": Chip(CHIPS[7, 5].flop, 40, 1.59, 256, 10),
    "NVIDIA A100-SXM4-40GB": Chip(CHIPS[8, 0].flop, 108, 1.41, 5120, 2.43),
    "NVIDIA A100-SXM4-80GB": Chip(CHIPS[8, 0].flop, 108, 1.41, 5120, 3.186),
    "NVIDIA A100 80GB PCIe": Chip(CHIPS[8, 0].flop, 108, 1.41, 5120, 3.024),
    "NVIDIA A30": Chip(CHIPS[8, 0].flop, 56, 1.44, 3072, 2.43),
    "NVIDIA A10": Chip(CHIPS[8, 6].flop, 72, 1.695, 384, 12.5),
    "NVIDIA A40": Chip(CHIPS[8, 6].flop, 84, 1.74, 384, 14.5),
    "NVIDIA RTX A6000": Chip(CHIPS[8, 6].flop, 84, 1.8, 384, 16),
    "NVIDIA H100 80GB HBM3": Chip(CHIPS[9, 0].flop, 132, 1.83, 5120, 5.23, plain_ghz=1.98),
    "NVIDIA H200": Chip(CHIPS[9, 0].flop, 132, 1.83, 6144, 6.25, plain_ghz=1.98),
    "NVIDIA H100 PCIe": Chip(CHIPS[9, 0].flop, 114, 1.62, 5120, 3.19, plain_ghz=1.755),
    "NVIDIA B200": Chip(CHIPS[10, 0].flop, 148, 1.85, 8192, 8),
    "NVIDIA L4": Chip(CHIPS[8, 9].flop, 58, 2.04, 192, 12.5),
    "NVIDIA L40": Chip(CHIPS[8, 9].flop, 142, 2.49, 384, 18, rate=0.5),
    "NVIDIA L40S": Chip(CHIPS[8, 9].flop, 142, 2.52, 384, 18),
    "AMD Instinct MI250X": Chip(_CDNA2, 110, 1.7, 4096, 3.2),
    "AMD Instinct MI210": Chip(_CDNA2, 104, 1.7, 4096, 3.2),
    "AMD Instinct MI300A": Chip(_CDNA3, 228, 2.1, 8192, 5.2),
    "AMD Instinct MI300X": Chip(_CDNA3, 304, 2.1, 8192, 5.2),
}
#: Figures that differ by more than 2% from their units: what the document prints is in the table.
DEVIATES = {
    ("Tesla T4", "bandwidth"): "the data sheet prints 300 GB/s; 256 bits at 10 Gbit/s are 320",
    ("NVIDIA H100 PCIe", "bandwidth"): "the data sheet prints 2 TB/s",
    ("NVIDIA B200", "bandwidth"): "the brief prints 8 TB/s",
}
#: Only Apple's own figures are known: it publishes no clock.
NO_CLOCK = "Apple "


def test_each_card_of_the_table_is_recomputed() -> None:
    left = [
        name for name in PEAKS if not name.startswith(NO_CLOCK) and not any(re.fullmatch(name, one) for one in CHIP)
    ]
    assert left == []


@pytest.mark.parametrize("device", CHIP)
def test_printed_figures_are_those_of_the_units_the_clock_and_the_memory(device: str) -> None:
    chip, peaks = CHIP[device], peaks_of(device)
    assert peaks is not None
    tensor = device.startswith(("NVIDIA", "Tesla"))
    far = {}
    for name, printed in peaks.tflops.items():
        plain = tensor and name in ("float32", "float64")
        ghz = chip.plain_ghz if plain and chip.plain_ghz is not None else chip.ghz
        computed = chip.flop[name] * chip.units * ghz / 1e3 * (1 if plain else chip.rate)
        far[device, name] = abs(printed / computed - 1)
    assert peaks.bandwidth is not None
    far[device, "bandwidth"] = abs(peaks.bandwidth / (chip.bus_bits * chip.gbit_s / 8) - 1)
    assert {figure for figure, share in far.items() if share > 0.02} == {one for one in DEVIATES if one[0] == device}


#: What NVIDIA's white papers (the first ten; the last three figures by Turing's appendices, GA102's, Ada's and RTX
#: Blackwell's) and its pages print: TFLOP/s in FP32, in FP16 with FP32 accumulation, and GB/s; None where not printed.
PRINTED = {
    "RTX 2070": (7.5, 29.9, 448),
    "RTX 2080": (10.1, 40.3, 448),
    "RTX 2080 Ti": (13.4, 53.8, 616),
    "RTX 3070": (20.3, 40.6, 448),
    "RTX 3090": (35.6, 71, 936),
    "RTX 3090 Ti": (40, 80, 1008),
    "RTX 4080": (48.7, 97.5, 716.8),
    "RTX 4090": (82.6, 165.2, 1008),
    "RTX 5080": (56.3, 112.6, 960),
    "RTX 5090": (104.8, 209.5, 1792),
    "RTX 2060 SUPER": (7.2, None, 448),
    "RTX 2070 SUPER": (9.1, None, 448),
    "RTX 2080 SUPER": (11.2, None, 496),
    "RTX 3060": (12.7, None, None),
    "RTX 3060 Ti": (16.2, None, None),
    "RTX 3070 Ti": (21.7, None, 608),
    "RTX 3080 Ti": (34.1, None, 912),
    "RTX 4060": (15.1, None, 272),
    "RTX 4060 Ti": (22.1, None, 288),
    "RTX 4070": (29.1, None, 504),
    "RTX 4070 SUPER": (35.5, None, 504),
    "RTX 4070 Ti": (40.1, None, 504),
    "RTX 4070 Ti SUPER": (44.1, None, 672),
    "RTX 4080 SUPER": (52.2, None, 736),
    "RTX 5060": (19.2, None, 448),
    "RTX 5060 Ti": (23.7, None, 448),
    "RTX 5070": (30.9, None, 672),
    "RTX 5070 Ti": (43.9, None, 896),
    "RTX 3060 Laptop GPU": (13.07, 26.14, 336),
    "RTX 4060 Laptop GPU": (14.56, 29.12, 256),
    "RTX 4070 Laptop GPU": (20.04, None, 256),
}


@pytest.mark.parametrize("card", PRINTED)
def test_a_geforce_cards_units_give_the_figures_that_are_printed(card: str) -> None:
    float32, float16, bandwidth = PRINTED[card]
    peaks = peaks_of(f"NVIDIA GeForce {card}")
    assert peaks is not None
    assert peaks.tflops["float32"] == pytest.approx(float32, rel=0.02)
    assert float16 is None or peaks.tflops["float16"] == pytest.approx(float16, rel=0.02)
    assert peaks.bandwidth == (pytest.approx(bandwidth, rel=0.02) if bandwidth is not None else None)
    assert ("bfloat16" in peaks.tflops) == ("RTX 20" not in card)
    assert ("float8" in peaks.tflops) == (card[4] in "45")


def test_the_cards_that_are_asked_for_are_there_with_laptops() -> None:
    for card in ("RTX 2060", "RTX 3060", "RTX 3080", "RTX 4060", "RTX 4070", "RTX 5070"):
        units = CARDS[card][0].multiprocessors
        device = DeviceProperties(id=0, name=f"NVIDIA GeForce {card}", multiprocessors=units)
        assert peaks_of_device(device) is not None
        assert card == "RTX 2060" or f"{card} Laptop GPU" in CARDS
    laptop = peaks_of("NVIDIA GeForce RTX 5070 Laptop GPU")
    assert laptop is not None
    assert "the highest that a laptop may have" in laptop.source


def test_cards_of_one_name_are_told_apart_by_their_multiprocessors_and_not_guessed_without() -> None:
    name = "NVIDIA GeForce RTX 3080"
    assert peaks_of(name) is None
    bandwidths = [
        found.bandwidth
        for units in (68, 70)
        if (found := peaks_of_device(DeviceProperties(id=0, name=name, multiprocessors=units)))
    ]
    assert bandwidths == [760, 912]
    assert peaks_of_device(DeviceProperties(id=0, name=name, multiprocessors=50)) is None


def test_an_unknown_name_has_the_peaks_of_its_units_and_the_source_says_so() -> None:
    part = DeviceProperties(id=0, name="NVIDIA A100-SXM4-40GB MIG 1g.5gb", multiprocessors=14, capability=(8, 0))
    found = peaks_of_device(part)
    assert found is not None
    assert found.derived
    assert found.tflops["bfloat16"] == pytest.approx(312 * 14 / 108, rel=0.01)
    assert found.bandwidth is None
    assert found.ridges == {}
    assert found.source == (
        "14 multiprocessors of compute capability 8.0 at 1.41 GHz, usual for such chips; "
        "its memory bandwidth is not known"
    )


def test_a_recorded_clock_and_bandwidth_take_the_place_of_what_is_usual() -> None:
    device = DeviceProperties(
        id=0, name="NVIDIA X", multiprocessors=60, capability=(9, 0), clock_mhz=1980.0, bytes_per_s=2_400_000_000_000
    )
    found = peaks_of_device(device)
    assert found is not None
    assert found.tflops["bfloat16"] == pytest.approx(60 * 4096 * 1.98 / 1e3)
    assert found.bandwidth == 2400
    assert found.source == "60 multiprocessors of compute capability 9.0 at its 1.98 GHz"


def test_a_device_of_amds_with_the_number_of_an_nvidia_chip_is_not_taken_for_it() -> None:
    # As torch names a die of an MI250 in some containers, with the capability of gfx90a.
    device = DeviceProperties(id=0, name="AMD Radeon Graphics", multiprocessors=104, capability=(9, 0))
    assert peaks_of_device(device) is None


def test_a_geforce_card_that_is_not_known_has_half_of_the_tensor_rate() -> None:
    found = peaks_of_device(
        DeviceProperties(id=0, name="NVIDIA GeForce RTX 6090", multiprocessors=100, capability=(12, 0))
    )
    assert found is not None
    assert found.tflops["float16"] == 2 * found.tflops["float32"]


@pytest.mark.parametrize("known", [{"capability": (5, 2)}, {"multiprocessors": 10}, {"capability": (9, 0)}, {}])
def test_without_units_or_with_an_older_chip_there_are_no_peaks(known: dict[str, object]) -> None:
    given = {"multiprocessors": 10} | known if known == {"capability": (5, 2)} else known
    assert peaks_of_device(DeviceProperties(id=0, name="NVIDIA X", **given)) is None  # type: ignore[arg-type]


def test_usual_clocks_are_near_those_of_the_known_cards() -> None:
    far = [abs(CHIPS[card.capability].clock_ghz / card.boost_ghz - 1) for cards in CARDS.values() for card in cards]
    assert statistics.median(far) < 0.06
    assert max(far) < 0.25
