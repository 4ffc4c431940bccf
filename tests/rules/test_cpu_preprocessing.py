"""cpu-preprocessing: inputs made in the step, with line and library; at least what workers hide is saved."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit._location import Location
from perfkit.rules.data import cpu_preprocessing
from perfkit.run.records import ComparedSamples, Lines, ModuleCalls, NumpyDraw, TracedLine

MS = 1_000_000


def test_decoding_in_the_step_is_found_with_its_library(build: Any) -> None:
    work = build.work("preprocessing", 12, function="decode", within="PIL")

    [finding] = build.findings(cpu_preprocessing, build.step(20, forward=20), work, build.rank())

    assert (finding.spent.line, finding.spent.function) == (12, "decode")
    assert "decode (in PIL)" in finding.message
    assert "num_workers=4" in (finding.advice or "")


def test_the_minimum_saving_is_what_workers_hide_and_no_less_than_most_of_it(build: Any) -> None:
    step = build.step(20, forward=20)
    [hidden] = build.findings(cpu_preprocessing, step, build.work("preprocessing", 12), build.rank())
    [alone] = build.findings(cpu_preprocessing, step, build.work("preprocessing", 12), build.rank(cpus=1))

    # 8 CPUs: the step is its rest, 8 ms; handing over costs 1.3 ms, sharing the processor a quarter of the rest.
    assert hidden.saving_low_ns == round((12 - 1.3 - 2) * MS)
    assert alone.saving_low_ns == round(0.7 * 12 * MS)
    assert hidden.saving_low_ns <= hidden.cost_ns <= hidden.saving_high_ns <= 20 * MS


def test_a_draw_that_permutes_all_numbers_is_to_be_made_by_a_generator(build: Any) -> None:
    work = build.work("preprocessing", 12, function="sample")
    draw = NumpyDraw(file="train.py", line=12, function="sample", owner="user", permutes=True)
    lines = Lines(period_ns=MS, steps=40, numpy_draws=(draw,))

    [finding] = build.findings(cpu_preprocessing, build.step(20, forward=20), work, build.rank(), lines)

    assert finding.change is None
    assert finding.advice.startswith("numpy.random.choice(replace=False) permutes all of its numbers in each call:")
    # The time of a line that opens a picture is not that of the draw.
    work = build.work("preprocessing", 12, function="sample", within="PIL")
    [finding] = build.findings(cpu_preprocessing, build.step(20, forward=20), work, build.rank(), lines)
    assert finding.advice.startswith("Do the work of sample once")


def test_little_of_it_and_missing_measures_are_not_reported(build: Any) -> None:
    assert not build.findings(cpu_preprocessing, build.step(20), build.work("preprocessing", 0.9))
    assert not build.findings(cpu_preprocessing, build.step(20))
    assert not build.findings(cpu_preprocessing)


def test_an_environment_that_a_loop_without_gradients_steps_is_information(build: Any) -> None:
    def traced(line: int, function: str, loop: int | None, *callers: tuple[int, str], **more: Any) -> TracedLine:
        return TracedLine(
            file="train.py", line=line, function=function, owner="user", phase="other", runs=9, host_ns=MS,
            loop_line=loop, callers=tuple(Location(file="train.py", line=at, function=name) for at, name in callers),
            **more,
        )  # fmt: skip

    def severity(builds_graph: bool) -> str:
        agent = ModuleCalls(module="Agent", calls=9, host_ns=MS, builds_graph=builds_graph)
        rows = (
            traced(12, "advance", None, (5, "reset"), (30, "collect")),
            traced(5, "reset", None, (28, "collect")),
            traced(29, "collect", 28, modules=(agent,)),
            # A comprehension calls it, which is a loop of its own in the other one.
            traced(30, "collect", 30, (30, "collect")),
            traced(31, "collect", 28),
        )
        lines = Lines(period_ns=MS, steps=40, traced=rows)
        work = build.work("preprocessing", 8, function="advance")
        [finding] = build.findings(cpu_preprocessing, build.step(20, forward=20), work, build.rank(), lines)
        return finding.severity

    assert (severity(builds_graph=False), severity(builds_graph=True)) == ("info", "critical")


def test_a_tokenizer_in_python_is_told_from_a_compiled_one(build: Any) -> None:
    def advice(within: str) -> str:
        work = build.work("preprocessing", 12, function="encode", within=within)
        [finding] = build.findings(cpu_preprocessing, build.step(20, forward=20), work, build.rank())
        return finding.advice or ""

    slow = advice("transformers.tokenization > transformers.tokenization_python > re")
    assert "is written in Python" in slow
    assert "is_fast" in slow
    assert "is_fast" not in advice("transformers.tokenization > tokenizers")


def test_what_a_loader_gives_again_in_each_epoch_is_prepared_once_and_what_differs_is_not(build: Any) -> None:
    def advice(phase: str, equal: int) -> str:
        rank = build.rank()
        loader = msgspec.structs.replace(rank.loaders[0], compared_samples=ComparedSamples(compared=200, equal=equal))
        work = build.work("preprocessing", 8, function="decode", phase=phase)
        rank = msgspec.structs.replace(rank, loaders=(loader,))
        [finding] = build.findings(cpu_preprocessing, build.step(20, forward=20), work, rank)
        return finding.advice or ""

    assert advice("data", 200).startswith("Do the work of decode once, before training, and keep its results")
    assert "before training" not in advice("data", 0)
    assert "num_workers=4" in advice("data", 0)
    # What the loop makes of a batch may be random, whatever it is made of.
    assert advice("forward", 200) == advice("forward", 0)
