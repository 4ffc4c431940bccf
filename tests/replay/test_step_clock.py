"""The factor of the host's times is found in a few replays, whatever the step is made of."""

from __future__ import annotations

import pytest

from perfkit.replay._step_clock import _find_zero


@pytest.mark.parametrize(
    ("host", "device", "wanted", "most"),
    [
        (100.0, 0.0, 70.0, 4),
        (100.0, 60.0, 70.0, 8),
        (100.0, 69.0, 70.0, 11),
        (1000.0, 1.0, 2.0, 4),
        (100.0, 90.0, 70.0, 1),
    ],
    ids=["the host alone", "a bend", "a bend just below", "nearly nothing is left", "the device takes longer"],
)
def test_the_step_is_met_in_some_tries_or_as_short_as_it_can_be(
    host: float, device: float, wanted: float, most: int
) -> None:
    tried: list[tuple[float, float]] = []

    def beyond(factor: float) -> float:
        # A device hides a part of the host, and waits for its syncs.
        step = max(host * factor, device, 0.4 * host * factor + 0.5 * device)
        tried.append((factor, step - wanted))
        return step - wanted

    _find_zero(beyond, max(host, device) - wanted, 0.001 * wanted)

    factor, excess = tried[-1]
    assert len(tried) <= most
    assert abs(excess) <= 0.001 * wanted or (factor == 0.0 and device > wanted)
