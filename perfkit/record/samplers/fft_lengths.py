"""Lengths of Fourier transforms for which there is no fast algorithm: those with a large prime factor."""

from __future__ import annotations

from collections import Counter
from typing import Any

from perfkit._code_owner import USER, function_name
from perfkit.record.samplers.call_paths import Site
from perfkit.run.records import SlowFft

#: Libraries have fast transforms for these factors (MKL and cuFFT: up to 13 and 7).
_FAST = (2, 3, 5, 7, 11, 13)
#: Under inference_mode the ops that call others are what runs: (input, length, dimension), and of several.
_ALONG_ONE = frozenset({"fft_fft", "fft_ifft", "fft_rfft", "fft_irfft"})
_ALONG_TWO = frozenset({"fft_fft2", "fft_ifft2", "fft_rfft2", "fft_irfft2"})
_ALONG_SEVERAL = frozenset({"fft_fftn", "fft_ifftn", "fft_rfftn", "fft_irfftn"})
#: Shorter ones are fast enough, whatever their length (chosen).
_SHORT = 64


class FftLengths:
    """Counts transforms of slow lengths, by line."""

    def __init__(self) -> None:
        self._found: Counter[tuple[Site, int]] = Counter()

    def add(self, func: Any, arguments: Any, site: Site) -> None:
        """An op of a line of the user's got these positional arguments."""
        for length in _lengths(func.overloadpacket.__name__, arguments):
            if length >= _SHORT and not is_fast(length):
                self._found[site, length] += 1

    def rows(self) -> tuple[SlowFft, ...]:
        """The lines with such transforms, and their lengths."""
        return tuple(
            SlowFft(
                file=code.co_filename, line=line, function=function_name(code), owner=USER, length=length, calls=calls
            )
            for ((code, line), length), calls in self._found.items()
        )


def _lengths(name: str, arguments: Any) -> list[int]:
    """The lengths that an op transforms; none of one that is no transform."""
    if name.startswith("_fft_"):
        # (input, dimensions, normalization, length of the result) of complex to real, else without the last.
        lengths = [int(arguments[0].shape[dimension]) for dimension in arguments[1]]
        return [*lengths[:-1], int(arguments[3])] if name == "_fft_c2r" else lengths
    if name == "stft":
        return [int(arguments[1])]
    if name not in _ALONG_ONE | _ALONG_TWO | _ALONG_SEVERAL:
        return []
    source, sizes, along = (*arguments, None, None)[:3]
    if name in _ALONG_ONE:
        sizes, along = sizes if sizes is None else [sizes], [-1 if along is None else along]
    elif along is None:
        count = 2 if name in _ALONG_TWO else len(sizes) if sizes is not None else source.dim()
        along = range(-count, 0)
    lengths = list(map(int, sizes)) if sizes is not None else [int(source.shape[dimension]) for dimension in along]
    if sizes is None and name.startswith("fft_irfft"):
        lengths[-1] = 2 * (lengths[-1] - 1)
    return lengths


def is_fast(length: int) -> bool:
    """Whether all prime factors are small."""
    for factor in _FAST:
        while length % factor == 0:
            length //= factor
    return length == 1
