"""Fourier transforms of slow lengths, as the step in which ops are listened to shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from perfkit.record.samplers.constant_ops import ConstantOpLog
from perfkit.record.samplers.fft_lengths import is_fast

SIGNAL = torch.randn(3, 100)


def lengths(step: Callable[[], Any]) -> list[int]:
    log = ConstantOpLog(lambda: "forward")
    for _ in range(2):
        log.start()
        step()
        log.stop()
    return [row.length for row in log.inputs.fft_lengths.rows() for _ in range(row.calls)]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    ("step", "found"),
    [
        (lambda: torch.fft.irfft(torch.fft.rfft(SIGNAL, n=199), n=199), [199, 199]),
        (lambda: torch.fft.fft(SIGNAL, n=199), [199]),
        (lambda: torch.fft.rfft(torch.randn(101, 64), dim=0), [101]),
        (lambda: torch.fft.rfft2(torch.randn(2, 67, 101)), [67, 101]),
        (lambda: torch.fft.irfft(torch.fft.rfft(SIGNAL, n=200), n=200), []),
        (lambda: torch.fft.irfft2(torch.fft.rfft2(torch.randn(2, 67, 101), s=(67, 103)), s=(67, 103)), 2 * [67, 103]),
        (lambda: torch.fft.fftn(torch.randn(2, 67, 101)), [67, 101]),
        (lambda: torch.fft.ifftn(torch.randn(101, 2), dim=(0,)), [101]),
        (lambda: torch.stft(SIGNAL, 79, window=torch.ones(79), return_complex=True)[0], [79]),
        (lambda: torch.fft.rfft(SIGNAL[:, :61]), []),
    ],
    ids=[
        "there and back",
        "complex",
        "along another dimension",
        "in two",
        "of small factors",
        "there and back in two",
        "in all",
        "in one of them",
        "in pieces",
        "a short one",
    ],
)
def test_a_length_with_a_large_prime_factor_is_counted(
    step: Callable[[], Any], found: list[int], *, inference: bool
) -> None:
    with torch.inference_mode(inference):
        assert sorted(lengths(step)) == sorted(found)


def test_a_length_of_small_factors_is_fast() -> None:
    assert [length for length in (1, 2000, 2002, 1998, 1999, 2048) if is_fast(length)] == [1, 2000, 2002, 2048]
