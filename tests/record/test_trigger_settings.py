"""What ``profile(triggers=...)`` and ``triggers`` accept and refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import perfkit


@pytest.mark.parametrize(
    ("kinds", "options", "message"),
    [
        (("slow_step",), {}, "triggers may hold 'slow-step', 'recompile', 'signal', 'file', .* got 'slow_step'"),
        (("slow-step=1",), {}, "slow-step=X takes how many times the median .* above 1, got '1'"),
        (("slow-step=much",), {}, "above 1, got 'much'"),
        (("file=now",), {}, "the trigger 'file' takes no value"),
        (("file", "file"), {}, "the trigger 'file' is given twice"),
        (("signal=SIGKILL",), {}, "signal=NAME takes one of SIGUSR1, SIGUSR2, .* got 'SIGKILL'"),
        ((), {}, "triggers\\(\\) needs at least one"),
        ((3,), {}, "triggers may hold .* got 3"),
        (("file",), {"limit": 0}, "limit must be a whole number of at least 1, got 0"),
        (("file",), {"active": 0}, "active must be a whole number of at least 1, got 0"),
        (("file",), {"cooldown_s": -1}, "cooldown_s must be a number of seconds, 0 or more, got -1"),
    ],
)
def test_wrong_triggers_are_refused_at_once_with_what_is_allowed(kinds: Any, options: Any, message: str) -> None:
    with pytest.raises(perfkit.UsageError, match=message):
        perfkit.triggers(*kinds, **options)


def test_a_profile_accepts_names_and_refuses_windows_without_recorders(tmp_path: Path) -> None:
    with pytest.raises(perfkit.UsageError, match="triggers may hold"):
        perfkit.profile(tmp_path / "x", triggers=("slow",))
    with pytest.raises(perfkit.UsageError, match=r"'signal' opens windows, and recorders=\(\) records none"):
        perfkit.profile(tmp_path / "x", triggers="signal", recorders=())
    with pytest.raises(perfkit.UsageError, match=r"must be names or perfkit\.triggers"):
        perfkit.profile(tmp_path / "x", triggers=3)  # type: ignore[arg-type]  # the mistake under test
    perfkit.profile(tmp_path / "x", triggers="exception", recorders=())
