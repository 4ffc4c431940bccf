"""GeForce cards by their units: multiprocessors, boost clock and memory, from which their peaks follow.

Sources: NVIDIA's white papers where they print a card (tests/limits compare the peaks with what they print), else the
"full specs" of its page on nvidia.com. Clocks are those of the reference card; a card with a faster one has the same
name. A laptop's clock depends on the power that its maker allows: here is the highest that NVIDIA names, so that a
laptop's own peak is this or lower.
"""

from __future__ import annotations

from typing import NamedTuple


class GeforceCard(NamedTuple):
    """A card: ``bus_bits`` wide memory at ``gbit_s`` per pin; None where cards of one name differ in it."""

    capability: tuple[int, int]
    multiprocessors: int
    boost_ghz: float
    bus_bits: int | None
    gbit_s: float | None

    @property
    def bandwidth(self) -> float | None:
        """GB/s of its memory."""
        return self.bus_bits * self.gbit_s / 8 if self.bus_bits is not None and self.gbit_s is not None else None


_TURING, _GA10X, _ADA, _BLACKWELL = (7, 5), (8, 6), (8, 9), (12, 0)

#: Name without "NVIDIA GeForce" -> the cards of it; of several, their multiprocessors show which one it is.
CARDS: dict[str, tuple[GeforceCard, ...]] = {
    "RTX 2060": (GeforceCard(_TURING, 30, 1.68, 192, 14), GeforceCard(_TURING, 34, 1.65, 192, 14)),
    "RTX 2060 SUPER": (GeforceCard(_TURING, 34, 1.65, 256, 14),),
    "RTX 2070": (GeforceCard(_TURING, 36, 1.62, 256, 14),),
    "RTX 2070 SUPER": (GeforceCard(_TURING, 40, 1.77, 256, 14),),
    "RTX 2080": (GeforceCard(_TURING, 46, 1.71, 256, 14),),
    "RTX 2080 SUPER": (GeforceCard(_TURING, 48, 1.815, 256, 15.5),),
    "RTX 2080 Ti": (GeforceCard(_TURING, 68, 1.545, 352, 14),),
    "RTX 3050": (GeforceCard(_GA10X, 20, 1.777, 128, 14), GeforceCard(_GA10X, 18, 1.47, 96, 14)),
    # Of 12 and of 8 GB, with 192 and 128 bits.
    "RTX 3060": (GeforceCard(_GA10X, 28, 1.777, None, None),),
    # With GDDR6 and with GDDR6X.
    "RTX 3060 Ti": (GeforceCard(_GA10X, 38, 1.665, None, None),),
    "RTX 3070": (GeforceCard(_GA10X, 46, 1.725, 256, 14),),
    "RTX 3070 Ti": (GeforceCard(_GA10X, 48, 1.77, 256, 19),),
    "RTX 3080": (GeforceCard(_GA10X, 68, 1.71, 320, 19), GeforceCard(_GA10X, 70, 1.71, 384, 19)),
    "RTX 3080 Ti": (GeforceCard(_GA10X, 80, 1.665, 384, 19),),
    "RTX 3090": (GeforceCard(_GA10X, 82, 1.695, 384, 19.5),),
    "RTX 3090 Ti": (GeforceCard(_GA10X, 84, 1.86, 384, 21),),
    "RTX 4060": (GeforceCard(_ADA, 24, 2.46, 128, 17),),
    "RTX 4060 Ti": (GeforceCard(_ADA, 34, 2.535, 128, 18),),
    # Later ones have GDDR6 with 20 Gbit/s.
    "RTX 4070": (GeforceCard(_ADA, 46, 2.475, 192, 21),),
    "RTX 4070 SUPER": (GeforceCard(_ADA, 56, 2.475, 192, 21),),
    "RTX 4070 Ti": (GeforceCard(_ADA, 60, 2.61, 192, 21),),
    "RTX 4070 Ti SUPER": (GeforceCard(_ADA, 66, 2.61, 256, 21),),
    "RTX 4080": (GeforceCard(_ADA, 76, 2.505, 256, 22.4),),
    "RTX 4080 SUPER": (GeforceCard(_ADA, 80, 2.55, 256, 23),),
    "RTX 4090": (GeforceCard(_ADA, 128, 2.52, 384, 21),),
    "RTX 5060": (GeforceCard(_BLACKWELL, 30, 2.497, 128, 28),),
    "RTX 5060 Ti": (GeforceCard(_BLACKWELL, 36, 2.572, 128, 28),),
    "RTX 5070": (GeforceCard(_BLACKWELL, 48, 2.512, 192, 28),),
    "RTX 5070 Ti": (GeforceCard(_BLACKWELL, 70, 2.452, 256, 28),),
    "RTX 5080": (GeforceCard(_BLACKWELL, 84, 2.617, 256, 30),),
    "RTX 5090": (GeforceCard(_BLACKWELL, 170, 2.407, 512, 28),),
    "RTX 3060 Laptop GPU": (GeforceCard(_GA10X, 30, 1.702, 192, 14),),
    "RTX 3070 Laptop GPU": (GeforceCard(_GA10X, 40, 1.62, 256, 14),),
    "RTX 3070 Ti Laptop GPU": (GeforceCard(_GA10X, 46, 1.485, 256, 14),),
    "RTX 3080 Laptop GPU": (GeforceCard(_GA10X, 48, 1.71, 256, 14),),
    "RTX 3080 Ti Laptop GPU": (GeforceCard(_GA10X, 58, 1.59, 256, 16),),
    "RTX 4050 Laptop GPU": (GeforceCard(_ADA, 20, 2.37, 96, 16),),
    "RTX 4060 Laptop GPU": (GeforceCard(_ADA, 24, 2.37, 128, 16),),
    "RTX 4070 Laptop GPU": (GeforceCard(_ADA, 36, 2.175, 128, 16),),
    "RTX 4080 Laptop GPU": (GeforceCard(_ADA, 58, 2.28, 192, 18),),
    "RTX 4090 Laptop GPU": (GeforceCard(_ADA, 76, 2.04, 256, 18),),
    "RTX 5060 Laptop GPU": (GeforceCard(_BLACKWELL, 26, 2.497, 128, 24),),
    "RTX 5070 Laptop GPU": (GeforceCard(_BLACKWELL, 36, 2.347, 128, 24),),
    "RTX 5070 Ti Laptop GPU": (GeforceCard(_BLACKWELL, 46, 2.22, 192, 28),),
    "RTX 5080 Laptop GPU": (GeforceCard(_BLACKWELL, 60, 2.287, 256, 28),),
    "RTX 5090 Laptop GPU": (GeforceCard(_BLACKWELL, 82, 2.16, 256, 28),),
}
