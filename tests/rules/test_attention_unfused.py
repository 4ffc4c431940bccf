"""attention-unfused: written-out attention is reported at its line; small scores are not reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perfkit
from perfkit._location import Location
from perfkit.measures.results.patterns import UnfusedAttention
from perfkit.rules.ops import attention_unfused
from perfkit.run.records import LineRow, Lines

MS = 1_000_000


def attention(**fields: Any) -> UnfusedAttention:
    """4 ms in two products and 16 ms between them, forward and backward alike; scores of 4 MiB from 1 MiB."""
    defaults: dict[str, Any] = {
        "ops": ("aten::matmul", "aten::div", "aten::masked_fill", "aten::softmax", "aten::matmul"),
        "count": 2.0,
        "ns": 10 * MS,
        "backward_ns": 10 * MS,
        "matmuls_ns": 2 * MS,
        "matmuls_backward_ns": 2 * MS,
        "lines_ns": 30 * MS,
        "masked": True,
        "at": Location(file="model.py", line=30, function="Attention.forward"),
        "scores_bytes": 4 * 2**20,
        "inputs_bytes": 2**20,
        "shape": "4x4x512x512",
    }
    return UnfusedAttention(**defaults | fields)


def test_it_is_reported_at_the_line_of_its_softmax(build: Any) -> None:
    patterns = build.patterns(step_ms=100, attention=(attention(),))

    [finding] = build.findings(attention_unfused, build.step(100, forward=50, backward=50), patterns)

    assert (finding.spent.file, finding.spent.line, finding.spent.function) == ("model.py", 30, "Attention.forward")
    # 20 ms without 70 to 110% of the products' 4 ms, and 15% more at the high end.
    assert (finding.saving_low_ns, finding.cost_ns, finding.saving_high_ns) == (15_600_000, 17_200_000, 19_780_000)


def test_times_count_by_their_share_of_the_recorded_step(build: Any) -> None:
    patterns = build.patterns(step_ms=200, attention=(attention(),))

    [finding] = build.findings(attention_unfused, build.step(100, forward=50, backward=50), patterns)

    assert finding.saving_low_ns == 7_800_000


def test_inference_saves_more_and_never_all_of_it(build: Any) -> None:
    inference = attention(backward_ns=0, matmuls_backward_ns=0)
    patterns = build.patterns(step_ms=100, attention=(inference,))

    [finding] = build.findings(attention_unfused, build.step(100), patterns)

    assert (finding.saving_low_ns, finding.cost_ns) == (8_400_000, 9 * MS)


def test_on_a_device_products_whose_scores_stay_on_the_chip_are_faster_too(build: Any) -> None:
    patterns = build.patterns(attention=(attention(),))
    device = build.device(1000, compute=1000)

    [finding] = build.findings(attention_unfused, build.traced_step(100), patterns, device)

    assert (finding.saving_low_ns, finding.saving_high_ns) == (8 * MS, 18 * MS)


def test_scores_that_fit_a_cache_and_small_shares_are_not_reported(build: Any) -> None:
    small = build.patterns(step_ms=100, attention=(attention(scores_bytes=100_000),))
    rare = build.patterns(step_ms=1000, attention=(attention(),))

    assert build.findings(attention_unfused, build.step(100), small) == []
    assert build.findings(attention_unfused, build.step(1000), rare) == []
    assert build.findings(attention_unfused, build.step(100)) == []


def test_a_loop_over_heads_is_reported_at_the_loop(build: Any) -> None:
    patterns = build.patterns(step_ms=100, attention=(attention(count=64.0, scores_bytes=36_864),))
    lines = build.loop("model.py", line=30, loop_line=28, runs=64)

    [finding] = build.findings(attention_unfused, build.step(100), patterns, lines)

    assert finding.spent.line == 28
    assert finding.saving_high_ns == round(0.85 * 30 * MS)


def test_a_loop_over_the_places_of_a_text_cannot_be_one_call(build: Any) -> None:
    one_query = (attention(count=64.0, scores_bytes=36_864, shape="16x16x1"),)
    lines = build.loop("model.py", line=30, loop_line=28, runs=64)

    assert (
        build.findings(attention_unfused, build.step(100), build.patterns(step_ms=100, attention=one_query), lines)
        == []
    )


def test_a_loop_whose_iterations_need_each_other_cannot_be_one_call(build: Any) -> None:
    lines = build.loop("model.py", line=30, loop_line=28, runs=64)
    carried = msgspec.structs.replace(lines, traced=(msgspec.structs.replace(lines.traced[0], loop_carries=True),))
    patterns = build.patterns(step_ms=100, attention=(attention(count=64.0, scores_bytes=36_864),))

    assert build.findings(attention_unfused, build.step(100), patterns, carried) == []


def in_model(library: str) -> Lines:
    within = {f"torch.nn > {library} > torch.nn": 90, "": 10}
    row = LineRow(
        file="model.py", line=30, function="main", owner="user", phase="forward", samples=100, host_ns=MS, within=within
    )
    return Lines(period_ns=MS, steps=40, rows=(row,))


def test_a_model_of_transformers_is_given_its_argument_at_the_line_that_makes_it(build: Any) -> None:
    patterns, step = build.patterns(step_ms=100, attention=(attention(),)), build.step(100, forward=100)
    made = Location(file="train.py", line=9, function="from_pretrained(...)")
    rank = build.rank(calls={"from_pretrained": (made,)})

    [finding] = build.findings(attention_unfused, step, patterns, in_model("transformers"), rank)
    [other] = build.findings(attention_unfused, step, patterns, in_model("timm"), rank)

    assert 'from_pretrained(..., attn_implementation="sdpa")' in (finding.advice or "")
    assert finding.change == made
    assert "attn_implementation" not in (other.advice or "")


def test_with_dropout_in_training_nothing_is_certain_on_a_cpu(build: Any) -> None:
    ops = ("aten::matmul", "aten::softmax", "aten::dropout", "aten::matmul")
    step = build.step(100, forward=100)

    def found(**fields: Any) -> Any:
        [finding] = build.findings(
            attention_unfused, step, build.patterns(step_ms=100, attention=(attention(ops=ops, **fields),))
        )
        return finding

    assert found().saving_low_ns == 0
    assert "dropout of the attention is 0" in (found().advice or "")
    assert found(backward_ns=0, matmuls_backward_ns=0).saving_low_ns > 0


def test_the_attention_of_transformers_is_named_in_a_run(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "train.py").write_text(TRANSFORMERS)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "perfkit", "run", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode in (0, 1), done.stderr

    [run] = (tmp_path / "runs").iterdir()
    [finding] = [one for one in perfkit.diagnose(run).findings if one.rule == "attention-unfused"]

    assert 'attn_implementation="sdpa"' in (finding.advice or "")
    assert finding.change is not None
    assert (finding.change.function, finding.change.line) == ("attn_implementation=", 6)


TRANSFORMERS = """
import torch
from transformers import BertConfig, BertModel

config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50,
    attn_implementation="eager")
model = BertModel(config)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    loss = model(torch.randint(0, 50, (2, 384))).last_hidden_state.mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
