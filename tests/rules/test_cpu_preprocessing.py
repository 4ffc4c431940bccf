"""cpu-preprocessing: inputs made in the step, with line and library; at least what workers hide is saved."""

from __future__ import annotations

from typing import Any

from perfkit.rules.data import cpu_preprocessing

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


def test_little_of_it_and_missing_measures_are_not_reported(build: Any) -> None:
    assert not build.findings(cpu_preprocessing, build.step(20), build.work("preprocessing", 0.9))
    assert not build.findings(cpu_preprocessing, build.step(20))
    assert not build.findings(cpu_preprocessing)


def test_a_tokenizer_in_python_is_told_from_a_compiled_one(build: Any) -> None:
    def advice(within: str) -> str:
        work = build.work("preprocessing", 12, function="encode", within=within)
        [finding] = build.findings(cpu_preprocessing, build.step(20, forward=20), work, build.rank())
        return finding.advice or ""

    slow = advice("transformers.tokenization > transformers.tokenization_python > re")
    assert "is written in Python" in slow
    assert "is_fast" in slow
    assert "is_fast" not in advice("transformers.tokenization > tokenizers")
