"""The energy that the processors and their memory took during the steps, by RAPL's counters where they can be read.

Linux shows the counters as files in ``/sys/class/powercap`` (its power capping framework; Intel's and AMD's processors
have them). Since Linux 5.10 only root may read them, because their course tells secrets of other programs
(CVE-2020-8694); in most containers and virtual machines there are none. They count what the whole machine does.

Read once a second between two steps: each file takes 5 to 50 µs.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from perfkit import _clock
from perfkit.run.records import EnergyUse

#: Where the counters are.
RAPL = Path("/sys/class/powercap")
#: A counter wraps after some minutes at the earliest: 262 kJ at 300 W.
_PERIOD_NS = 1_000_000_000
#: A folder has one for each package and each part of it, with 8 packages at most.
_MAX_COUNTERS = 64
#: "package-0" contains its cores and its graphics, but not "dram"; "psys" is the platform, which contains all of them.
_COUNTED = ("package", "dram")


class EnergyCounter(NamedTuple):
    """One counter of energy in µJ; it begins again at 0 above ``wraps_uj``."""

    name: str
    file: Path
    wraps_uj: int

    def read_uj(self) -> int:
        """Its value.

        Raises:
            OSError, ValueError: it cannot be read.
        """
        with open(self.file, "rb") as file:
            return int(file.read(32))


def find_counters(folder: Path = RAPL) -> tuple[list[EnergyCounter], str | None]:
    """The counters that can be read, and why there are none, or not all."""
    counters: list[EnergyCounter] = []
    refused = None
    try:
        places = sorted(folder.glob("intel-rapl:*"))[:_MAX_COUNTERS]
    except OSError:
        places = []
    for place in places:
        try:
            name = (place / "name").read_text()[:64].strip()
            if not name.startswith(_COUNTED):
                continue
            wraps_uj = int((place / "max_energy_range_uj").read_text()[:32])
            counter = EnergyCounter(name, place / "energy_uj", wraps_uj)
            counter.read_uj()
        except PermissionError:
            refused = (
                f"{place / 'energy_uj'} can be read by root only (sudo chmod a+r makes it readable until a restart)"
            )
            continue
        except (OSError, ValueError) as error:
            refused = f"{place} cannot be read: {error}"
            continue
        counters.append(counter)
    if not counters and refused is None:
        refused = f"the system shows no energy counters ({folder}/intel-rapl:*), as in most virtual machines"
    return counters, refused


class ProcessorEnergy:
    """Sums the counters between readings, from the first one after a step has begun."""

    def __init__(self, folder: Path = RAPL) -> None:
        self._folder = folder
        self._counters: list[EnergyCounter] | None = None
        self._due_ns = 0
        #: Values, step and time of the last reading; None: the next one begins a sum.
        self._last: tuple[list[int], int, int] | None = None
        self._names = ""
        self._uj = self._steps = self._wall_ns = 0

    def read_if_due(self, step: int) -> None:
        """Read before step number ``step``, once a second."""
        if _clock.now_ns() >= self._due_ns:
            self._read(step)

    def pause(self, step: int) -> None:
        """Read a last time before the recording ends; one that goes on does not count what came between."""
        self._read(step)
        self._last, self._due_ns = None, 0

    def _read(self, step: int) -> None:
        now = _clock.now_ns()
        self._due_ns = now + _PERIOD_NS
        if self._counters is None:
            self._counters = find_counters(self._folder)[0]
            self._names = ", ".join(counter.name for counter in self._counters)
        if not self._counters or not step:  # what comes before the first step is no step's
            return
        try:
            values = [counter.read_uj() for counter in self._counters]
        except (OSError, ValueError):
            self._counters = []  # what was counted until now stays
            return
        if self._last is not None:
            before, last_step, last_ns = self._last
            for counter, old, new in zip(self._counters, before, values, strict=True):
                self._uj += new - old if new >= old else max(0, new - old + counter.wraps_uj)
            self._steps += step - last_step
            self._wall_ns += now - last_ns
        self._last = values, step, now

    @property
    def energy(self) -> EnergyUse | None:
        """Energy between the readings; None: not counted, or no step lies between them."""
        if self._steps < 1:
            return None
        return EnergyUse(
            source="rapl", part=self._names, joules=self._uj / 1e6, steps=self._steps, wall_ns=self._wall_ns
        )
