"""slow-rank on real trainings under DistributedDataParallel over gloo: the late rank is named, and what delays it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.findings import Finding

pytestmark = pytest.mark.alone

PROGRAM = (Path(__file__).parent / "programs" / "late_rank.py").read_text()

#: What makes the last rank late -> what is said of it.
CAUSES = {
    "data": "more waiting for its data than the others",
    "lengths": "with 5.0 times their amount of data",
    # The latter where the other rank has no core either: another program may run beside this test.
    "core": "longer for a core than the others'|it has no core for",
    "collection": "garbage collections take",
    "backward": "its backward takes",
    "python": "more outside the known phases than the others",
}


@pytest.fixture
def diagnosed(run_ranks: Callable[..., list[str]], tmp_path: Path) -> Callable[..., Diagnosis]:
    """Trains with one rank late for a cause, and diagnoses the run."""

    def run(cause: str, wrapper: str = "ddp", *, steps: int = 30, ranks: int = 2) -> Diagnosis:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)  # an earlier run's
        run_ranks(tmp_path, PROGRAM, cause, str(steps), wrapper, ranks=ranks)
        return diagnose(tmp_path / "run")

    return run


def named(found: Diagnosis) -> list[Finding]:
    return [finding for finding in found.findings if finding.rule in ("slow-rank", "imbalanced-data")]


def test_a_rank_that_is_late_in_its_backward_is_named_from_rows_alone(diagnosed: Callable[..., Diagnosis]) -> None:
    found = diagnosed("backward", steps=24)

    [finding] = named(found)
    assert finding.message.startswith("Rank 1 comes last and the other rank waits for it")
    assert re.search(CAUSES["backward"], finding.message)
    # It sleeps 20 ms in each.
    assert finding.cost_ns is not None
    assert finding.cost_ns > 10e6
    assert "2 ranks train over gloo, with " in found.verdict


@pytest.mark.slow  # two processes for each cause
@pytest.mark.parametrize("cause", CAUSES)
def test_the_late_one_of_two_ranks_is_named_with_its_cause(cause: str, diagnosed: Callable[..., Diagnosis]) -> None:
    [finding] = named(diagnosed(cause))

    assert finding.message.startswith("Rank 1 comes last")
    assert re.search(CAUSES[cause], finding.message), finding.message


@pytest.mark.slow
@pytest.mark.since_torch((2, 6), "fully_shard")
def test_under_fsdp_the_late_rank_is_named_too(diagnosed: Callable[..., Diagnosis]) -> None:
    [finding] = named(diagnosed("data", "fsdp"))

    assert finding.message.startswith("Rank 1 comes last")
    assert CAUSES["data"] in finding.message


@pytest.mark.slow
def test_the_late_one_of_four_ranks_is_named(diagnosed: Callable[..., Diagnosis]) -> None:
    found = diagnosed("data", steps=30, ranks=4)

    [finding] = named(found)
    assert finding.message.startswith("Rank 3 comes last and the other ranks wait for it")
    assert CAUSES["data"] in finding.message
    assert "4 ranks train over gloo" in found.verdict


@pytest.mark.slow
def test_of_ranks_of_equal_work_none_is_named(diagnosed: Callable[..., Diagnosis]) -> None:
    # Another program on one of two cores makes a rank late indeed, by a little: one of three runs is to be undisturbed.
    for _ in range(3):
        found = diagnosed("none")
        assert "2 ranks train over gloo" in found.verdict
        assert not [one for one in named(found) if one.severity != "info"]
        if not named(found):
            break

    assert named(found) == []
