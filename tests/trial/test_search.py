"""What is measured next, and what is claimed: with a program whose times are made up, and a clock that is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from perfkit.run.records import AppliedChange
from perfkit.trial.advice import Candidate
from perfkit.trial.catalog import ChosenChange, parse_change
from perfkit.trial.comparing import Compared
from perfkit.trial.reruns import CannotTry, RerunResult
from perfkit.trial.search import Found, Search
from perfkit.trial.shift import Blocks
from perfkit.trial.trying import _verdict

STEP_NS = 40e6
LOSSES = tuple(2.0 / (1 + step) for step in range(40))


class MadeUpProgram:
    """Answers like `Comparer`: each change has its factor on the time of a step; a comparison takes ``seconds``."""

    def __init__(self, factors: dict[str, float], *, seconds: float = 10.0, noise: float = 0.01) -> None:
        self.factors = factors
        self.seconds = seconds
        self.noise = noise
        self.now_s = 0.0
        self.asked: list[tuple[str, str]] = []
        self.endings: dict[str, RerunResult] = {}
        self.losses: dict[str, tuple[float, ...]] = {}
        self.without_effect: set[str] = set()
        self._chance = np.random.default_rng(7)

    def clock(self) -> float:
        return self.now_s

    def compare(
        self, before: Sequence[ChosenChange], after: Sequence[ChosenChange], *, limit_s: float, in_turns: bool = False
    ) -> Compared:
        self.now_s += self.seconds
        self.asked.append((_names(before), _names(after)))
        blocks = Blocks(self._times(before), self._times(after))
        return Compared(
            blocks=blocks,
            before=self._result(before),
            after=self.endings.get(_names(after)) or self._result(after),
            switched=False,
            seconds=self.seconds,
        )

    def other_seeds(self, limit_s: float) -> list[tuple[float, ...]]:
        self.now_s += self.seconds
        self.asked.append(("", "other seeds"))
        return [tuple(loss + by for loss in LOSSES) for by in (0.1, -0.1)]

    def _times(self, changes: Sequence[ChosenChange]) -> list[float]:
        step_ns = STEP_NS
        for one in changes:
            step_ns *= self.factors.get(str(one), 1.0)
        return list(step_ns * self._chance.lognormal(0.0, self.noise, 12))

    def _result(self, changes: Sequence[ChosenChange]) -> RerunResult:
        return RerunResult(
            ending="stopped",
            message="stopped after 40 steps",
            folder=Path(),
            steps=40,
            losses=self.losses.get(_names(changes), LOSSES),
            applied=tuple(AppliedChange(change=str(one), count=str(one) not in self.without_effect) for one in changes),
            peak_bytes=None,
            peak_device_bytes=None,
        )


def _names(changes: Sequence[ChosenChange]) -> str:
    return "+".join(map(str, changes))


def search(program: MadeUpProgram, *names: str, budget_s: float = 1000.0) -> Found:
    candidates = [Candidate(parse_change(name)) for name in names]
    return Search(program, candidates, other_seeds=program.other_seeds, budget_s=budget_s, clock=program.clock).run()


def failed(ending: str, message: str) -> RerunResult:
    return RerunResult(
        ending=ending,  # type: ignore[arg-type]
        message=message,
        folder=Path(),
        steps=0,
        losses=(),
        applied=(),
        peak_bytes=None,
        peak_device_bytes=None,
    )


def test_a_change_that_saves_a_third_is_claimed_with_an_interval_around_it():
    found = search(MadeUpProgram({"workers=2": 2 / 3}), "workers=2")

    (workers,) = found.tried
    assert workers.outcome == "faster"
    assert workers.ci is not None
    assert workers.ci[0] < 1 / 3 < workers.ci[1]
    assert workers.saving == pytest.approx(1 / 3, abs=0.02)
    assert found.together is not None
    assert found.together.names == ("workers=2",)


def test_a_change_that_saves_less_than_two_unchanged_runs_differ_by_is_no_saving():
    found = search(MadeUpProgram({"gradients-to-none": 0.998}), "gradients-to-none")

    assert found.tried[0].outcome == "no-difference"
    assert found.together is None


def test_the_program_is_measured_against_itself_before_any_change():
    program = MadeUpProgram({})

    search(program, "workers=2")

    assert program.asked[0] == ("", "")


def test_no_change_is_looked_at_more_than_three_times():
    program = MadeUpProgram({"workers=2": 0.96}, noise=0.2)

    search(program, "workers=2", "workers=4")

    for name in ("workers=2", "workers=4"):
        assert program.asked.count(("", name)) <= 3


def test_a_saving_that_stays_uncertain_is_told_from_none():
    found = search(MadeUpProgram({"workers=2": 0.9}, noise=0.12), "workers=2")

    (workers,) = found.tried
    assert workers.outcome == "undecided"
    assert workers.sentence.startswith("not certain after 3 comparisons: ")
    assert workers.ci is not None
    assert workers.ci[0] < found.floor < workers.ci[1]


def test_of_several_values_of_a_change_only_the_best_is_combined():
    program = MadeUpProgram({"workers=2": 0.7, "workers=4": 0.5, "fused-optimizer": 0.8})

    found = search(program, "workers=2", "workers=4", "fused-optimizer")

    assert found.together is not None
    assert found.together.names == ("workers=4", "fused-optimizer")
    assert found.together.saving == pytest.approx(1 - 0.5 * 0.8, abs=0.02)


def test_a_change_that_saves_nothing_where_another_one_is_applied_is_not_combined():
    class Overlapping(MadeUpProgram):
        def _times(self, changes):
            return super()._times(changes[:1])

    found = search(Overlapping({"workers=2": 0.5, "tf32": 0.6}), "workers=2", "tf32")

    assert found.together is not None
    assert found.together.names == ("workers=2",)
    assert any("tf32 saves nothing where workers=2" in note for note in found.notes)


def test_a_saving_that_the_budget_leaves_no_time_to_confirm_is_no_claim():
    found = search(MadeUpProgram({"workers=2": 0.5}, seconds=10.0), "workers=2", budget_s=25.0)

    assert found.tried[0].outcome == "undecided"
    assert "no time to measure it again" in found.tried[0].sentence
    assert found.together is None
    # The verdict agrees with the row.
    assert _verdict(found).startswith(
        "No saving is certain yet. The largest that was measured is that of workers=2: 50%"
    )


def test_a_saving_within_one_process_that_the_budget_leaves_no_time_to_confirm_is_in_the_verdict():
    class Switched(MadeUpProgram):
        def compare(self, before, after, *, limit_s, in_turns=False):
            compared = super().compare(before, after, limit_s=limit_s, in_turns=in_turns)
            return msgspec.structs.replace(compared, switched=not in_turns)

    found = search(Switched({"workers=2": 0.5}), "workers=2", budget_s=35.0)

    assert found.tried[0].outcome == "faster"
    assert found.together is None or found.together.outcome != "faster"
    verdict = _verdict(found)
    assert verdict.startswith("workers=2 saves 50%")
    assert "within one process; in processes of its own that is not certain" in verdict
    assert "No change" not in verdict


def test_each_of_three_combined_changes_is_left_out_once():
    program = MadeUpProgram({"workers=2": 0.5, "fused-optimizer": 0.6, "gradients-to-none": 0.7})

    search(program, "workers=2", "fused-optimizer", "gradients-to-none")

    everything = "workers=2+fused-optimizer+gradients-to-none"
    assert ("workers=2+fused-optimizer", everything) in program.asked
    assert ("fused-optimizer+gradients-to-none", "fused-optimizer+gradients-to-none+workers=2") in program.asked
    assert ("workers=2+gradients-to-none", "workers=2+gradients-to-none+fused-optimizer") in program.asked
    assert program.asked[-1] == ("", everything)


def test_a_change_that_fails_is_reported_and_the_others_are_tried():
    program = MadeUpProgram({"workers=2": 0.5})
    program.endings = {
        "fused-optimizer": failed("failed", "RuntimeError: fused needs contiguous weights (train.py:12)"),
        "workers=8": failed("out-of-memory", "the machine's memory was full"),
    }

    found = search(program, "fused-optimizer", "workers=8", "workers=2")

    assert [one.outcome for one in found.tried] == ["failed", "out-of-memory", "faster"]
    assert "train.py:12" in found.tried[0].sentence


def test_a_change_that_the_program_has_no_use_for_had_no_effect():
    program = MadeUpProgram({})
    program.without_effect = {"workers=2"}

    assert search(program, "workers=2").tried[0].outcome == "no-effect"
    assert program.asked.count(("", "workers=2")) == 1


def test_an_exact_change_that_moves_the_loss_is_not_combined():
    program = MadeUpProgram({"gradients-to-none": 0.5, "fused-optimizer": 0.7})
    program.losses["gradients-to-none"] = tuple(loss * 1.5 for loss in LOSSES)

    found = search(program, "gradients-to-none", "fused-optimizer")

    assert found.tried[0].loss is not None
    assert found.tried[0].loss.outcome == "differs"
    assert found.together is not None
    assert found.together.names == ("fused-optimizer",)


def test_the_verdict_names_a_saving_whose_result_is_another_one():
    program = MadeUpProgram({"gradients-to-none": 0.5})
    program.losses["gradients-to-none"] = tuple(loss * 1.5 for loss in LOSSES)

    verdict = _verdict(search(program, "gradients-to-none"))

    assert verdict.startswith("gradients-to-none saves 50%")
    assert "but the result differs" in verdict


def test_workers_whose_random_numbers_move_the_loss_as_another_seed_does_keep_the_result():
    program = MadeUpProgram({"workers=2": 0.5})
    program.losses["workers=2"] = tuple(loss + 0.05 for loss in LOSSES)

    found = search(program, "workers=2")

    assert found.tried[0].loss is not None
    assert found.tried[0].loss.outcome == "within-seeds"
    assert found.tried[0].loss.sentence.endswith("the dataset draws its random numbers in other processes")
    assert found.together is not None


def test_other_seeds_are_run_once_and_only_for_a_change_that_may_move_the_loss_and_does():
    exact, numeric = (
        MadeUpProgram({"gradients-to-none": 0.5, "workers=2": 0.6}),
        MadeUpProgram({"fused-optimizer": 0.5, "foreach-optimizer": 0.6}),
    )
    exact.losses["gradients-to-none"] = tuple(loss + 0.05 for loss in LOSSES)
    for name in ("fused-optimizer", "foreach-optimizer", "fused-optimizer + foreach-optimizer"):
        numeric.losses[name] = tuple(loss + 0.05 for loss in LOSSES)

    search(exact, "gradients-to-none", "workers=2")
    found = search(numeric, "fused-optimizer", "foreach-optimizer")

    assert ("", "other seeds") not in exact.asked
    assert numeric.asked.count(("", "other seeds")) == 1
    assert found.tried[0].loss is not None
    assert found.tried[0].loss.outcome == "within-seeds"


def test_a_budget_without_time_for_a_change_is_refused_with_the_time_that_is_needed():
    with pytest.raises(CannotTry, match="--budget 30s"):
        search(MadeUpProgram({"workers=2": 0.5}, seconds=10.0), "workers=2", budget_s=15.0)


def test_a_small_budget_tries_what_costs_most_first_and_names_the_rest():
    found = search(MadeUpProgram({"workers=2": 0.5}, seconds=10.0), "workers=2", "tf32", "threads=1", budget_s=45.0)

    assert [one.outcome for one in found.tried] == ["faster", "no-difference", "not-tried"]
    assert "budget" in found.tried[2].sentence


@pytest.mark.parametrize(
    ("ending", "steps", "expected"),
    [("stopped", 0, "must take steps"), ("failed", 0, "must run before"), ("refused", 0, "must run before")],
)
def test_a_program_that_cannot_be_measured_is_refused(ending, steps, expected):
    program = MadeUpProgram({})
    program._result = lambda changes: failed(ending, "ValueError: no such file")  # type: ignore[method-assign]

    with pytest.raises(CannotTry, match=expected):
        search(program, "workers=2")


def test_a_program_that_is_not_deterministic_is_reported_with_its_own_spread():
    class Random(MadeUpProgram):
        def _result(self, changes):
            self.losses[_names(changes)] = tuple(loss * self._chance.uniform(0.9, 1.1) for loss in LOSSES)
            return super()._result(changes)

    found = search(Random({"workers=2": 0.5}), "workers=2")

    assert any("not deterministic" in note for note in found.notes)
    assert found.tried[0].outcome == "faster"


def test_a_change_that_builds_on_another_one_is_tried_where_the_best_of_that_is_applied():
    program = MadeUpProgram({"workers=2": 0.7, "workers=4": 0.5, "persistent-workers": 0.8})

    found = search(program, "persistent-workers", "workers=2", "workers=4")

    assert ("workers=4", "workers=4+persistent-workers") in program.asked
    assert found.tried[0].outcome == "faster"
    assert found.tried[0].sentence.endswith("where workers=4 is applied")
    assert found.together is not None
    assert found.together.names == ("workers=4", "persistent-workers")


def test_a_program_that_is_too_short_for_turns_is_reported_with_what_one_process_showed():
    class Short(MadeUpProgram):
        def compare(self, before, after, *, limit_s, in_turns=False):
            found = super().compare(before, after, limit_s=limit_s)
            blocks = Blocks([], []) if in_turns and after else found.blocks
            return msgspec.structs.replace(found, blocks=blocks, switched=not in_turns)

    found = search(Short({"tf32": 0.5}), "tf32")

    assert found.together is not None
    assert found.together.outcome == "faster"
    assert [str(one) for one in found.winners] == ["tf32"]
    assert any("tf32 could not be measured in processes of their own" in note for note in found.notes)


def test_a_change_whose_base_saves_nothing_is_tried_alone():
    program = MadeUpProgram({"persistent-workers": 0.8})

    found = search(program, "persistent-workers", "workers=2")

    assert ("", "persistent-workers") in program.asked
    assert found.together is not None
    assert found.together.names == ("persistent-workers",)


class SlowStart(MadeUpProgram):
    """Compiling takes ``compile_s``, the first time; a comparison whose time is over before it ends there."""

    def __init__(self, factors: dict[str, float], *, compile_s: float) -> None:
        super().__init__(factors)
        self.compile_s = compile_s
        self.limits: dict[str, float] = {}

    def compare(self, before, after, *, limit_s, in_turns=False):
        began_s, name = self.now_s, _names(after)
        self.limits.setdefault(name, limit_s)
        compared = super().compare(before, after, limit_s=limit_s, in_turns=in_turns)
        if "compile" not in name:
            return compared
        self.now_s, self.compile_s = began_s + min(self.seconds + self.compile_s, limit_s), 0.0
        if self.now_s < began_s + limit_s:
            return compared
        result = failed("timed-out", "the program had done 0 of 40 steps when its time was over")
        return msgspec.structs.replace(compared, blocks=Blocks([], []), after=result)


def test_compiling_comes_last_and_the_others_keep_their_order():
    program = SlowStart({}, compile_s=100.0)

    found = search(program, "compile", "persistent-workers", "tf32", "workers=2")

    asked = list(dict.fromkeys(after for _, after in program.asked if after))
    assert asked == ["tf32", "workers=2", "persistent-workers", "compile"]
    assert [one.name for one in found.tried] == ["compile", "persistent-workers", "tf32", "workers=2"]


def test_a_change_that_the_budget_cut_off_has_not_failed():
    program = MadeUpProgram({"workers=2": 0.5})
    program.endings["tf32"] = failed("timed-out", "the program had done 30 of 40 steps when its time was over")

    found = search(program, "tf32", "workers=2")

    assert [one.outcome for one in found.tried] == ["not-tried", "faster"]
    assert found.tried[0].sentence.endswith("when its time was over: give a larger --budget")


def test_where_compiling_takes_the_rest_of_a_budget_the_other_changes_are_measured_and_combined():
    program = SlowStart({"workers=2": 0.5, "fused-optimizer": 0.6}, compile_s=1000.0)

    found = search(program, "compile", "workers=2", "fused-optimizer", budget_s=120.0)

    assert [one.outcome for one in found.tried] == ["not-tried", "faster", "faster"]
    assert "0 of 40 steps" in found.tried[0].sentence
    assert "give a larger --budget" in found.tried[0].sentence
    assert found.together is not None
    assert "workers=2" in found.together.names
    assert program.now_s <= 120.0


def test_a_budget_for_compiling_alone_says_that_nothing_was_measured():
    found = search(SlowStart({}, compile_s=1000.0), "compile", budget_s=60.0)

    assert _verdict(found) == "No change was measured: give a larger --budget."


def test_compiling_that_took_long_leaves_time_to_confirm_it_once_it_is_cached():
    program = SlowStart({"compile": 0.5, "workers=2": 0.7}, compile_s=60.0)

    found = search(program, "compile", "workers=2", budget_s=250.0)

    assert [one.outcome for one in found.tried] == ["faster", "faster"]
    assert found.together is not None
    assert found.together.names == ("compile", "workers=2")
