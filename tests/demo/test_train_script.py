"""The demo's training script: plain PyTorch, three marked mistakes, and corrections that keep the results."""

from __future__ import annotations

import ast
import os
import pty
import re
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

SCRIPT = Path(__file__).resolve().parents[2] / "perfkit" / "demo" / "train.py"
LINES = SCRIPT.read_text().splitlines()
#: Rule id -> number (from 1) of the line directly below its mark.
MARKED = {
    found[1]: number + 1
    for number, line in enumerate(LINES, start=1)
    if (found := re.match(r" *# mistake: (\S+) - \S.+", line))
}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of the script in ``folder``, with warnings as errors, as `perfkit demo` and a user would."""
    copy = folder / "train.py"
    copy.write_text(SCRIPT.read_text())
    return subprocess.run(
        [sys.executable, "-W", "error", copy.name, *arguments], cwd=folder, capture_output=True, text=True
    )


def loss_of(process: subprocess.CompletedProcess[str]) -> float:
    found = re.fullmatch(r"loss (\d+\.\d{6}) after \d+ steps", process.stdout.splitlines()[-1])
    assert found is not None, process
    return float(found[1])


@pytest.fixture(scope="module")
def loss_as_it_is(tmp_path_factory: pytest.TempPathFactory) -> float:
    return loss_of(run(tmp_path_factory.mktemp("as-it-is"), "--steps", "8"))


@pytest.fixture
def script() -> Iterator[dict[str, Any]]:
    """The names of the script, loaded here; `train` seeds torch and sets its threads, so both are put back."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    yield runpy.run_path(str(SCRIPT))
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


class Operations(TorchDispatchMode):
    """Counts the operations that reach a backend."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[str(func)] += 1
        return func(*args, **(kwargs or {}))


def test_without_a_terminal_it_prints_nothing_but_the_loss_even_with_warnings_as_errors(tmp_path: Path) -> None:
    process = run(tmp_path, "--steps", "1")

    assert process.returncode == 0
    assert process.stderr == ""
    assert re.fullmatch(r"loss \d+\.\d{6} after 1 steps\n", process.stdout)


def test_the_script_knows_nothing_of_perfkit() -> None:
    tree = ast.parse(SCRIPT.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}

    assert {name.split(".")[0] for name in imported} == {"argparse", "math", "sys", "pydoc_data", "torch", "rich"}


@pytest.mark.parametrize("fix", ["input", "sync"])
def test_correcting_the_input_or_the_sync_leaves_the_loss_exactly_as_it_was(
    fix: str, loss_as_it_is: float, tmp_path: Path
) -> None:
    assert loss_of(run(tmp_path, "--steps", "8", "--fix", fix)) == loss_as_it_is


@pytest.mark.parametrize("arguments", [["--fix", "loop"], ["--fix", "all"], ["--fix", "input", "--fix", "loop"]])
def test_correcting_the_loop_changes_the_loss_by_rounding_only(
    arguments: list[str], loss_as_it_is: float, tmp_path: Path
) -> None:
    assert loss_of(run(tmp_path, "--steps", "8", *arguments)) == pytest.approx(loss_as_it_is, abs=1e-4)


def test_the_loss_falls_while_it_trains(loss_as_it_is: float, tmp_path: Path) -> None:
    assert loss_of(run(tmp_path, "--steps", "40", "--fix", "all")) < loss_as_it_is - 0.3


def test_each_mistake_is_marked_once_and_nothing_else_is() -> None:
    marks = [line.split()[2] for line in LINES if "# mistake:" in line]

    assert sorted(marks) == ["input-bound", "many-small-ops", "sync-in-step"]
    assert sorted(MARKED) == sorted(marks)


@pytest.mark.parametrize(
    ("rule", "offence"),
    [
        ("input-bound", r"for c in self\.pages\[page\]\]"),
        ("many-small-ops", r"^ *for t in range\(length\):$"),
        ("sync-in-step", r"\+= loss\.item\(\)$"),
    ],
)
def test_the_line_below_a_mark_is_the_mistake(rule: str, offence: str) -> None:
    assert re.search(offence, LINES[MARKED[rule] - 1])


def test_correcting_the_input_gives_the_same_samples_without_encoding_again(script: dict[str, Any]) -> None:
    class CountedCodes(dict[str, int]):
        asked = 0

        def get(self, *arguments: Any) -> Any:
            CountedCodes.asked += 1
            return super().get(*arguments)

    slow, fast = script["HelpTexts"](encode_once=False), script["HelpTexts"](encode_once=True)
    slow.codes, fast.codes = CountedCodes(slow.codes), CountedCodes(fast.codes)
    chosen = [0, 1, len(slow) // 2, len(slow) - 1]

    expected = [fast[index] for index in chosen]
    assert CountedCodes.asked == 0
    assert all(torch.equal(slow[index], sample) for index, sample in zip(chosen, expected, strict=True))
    assert CountedCodes.asked == len(chosen) * script["PAGE"]
    assert {len(sample) for sample in expected} == {script["CONTEXT"] + 1}


def test_correcting_the_loop_gives_the_same_attention_and_gradient_in_far_fewer_operations(
    script: dict[str, Any],
) -> None:
    attention = script["Attention"](one_call=False)
    x = torch.randn(2, script["CONTEXT"], script["WIDTH"], requires_grad=True)
    results, counts = [], []
    for attention.one_call in (False, True):
        with Operations() as operations:
            out = attention(x)
            (gradient,) = torch.autograd.grad(out.square().sum(), x)
        results.append((out, gradient))
        counts.append(operations.count.total())

    torch.testing.assert_close(results[0], results[1])
    assert counts[0] > 10 * counts[1]


@pytest.mark.parametrize(("fixed", "per_step"), [(set(), 1), ({"sync"}, 0), ({"input", "loop"}, 1)])
def test_the_host_reads_the_loss_in_every_step_unless_the_sync_is_corrected(
    script: dict[str, Any], fixed: set[str], per_step: int
) -> None:
    reads = []
    for steps in (2, 5):
        with Operations() as operations:
            script["train"](steps, fixed)
        reads.append(operations.count["aten._local_scalar_dense.default"])

    # The difference leaves out what is read once: the DataLoader's seed, and the loss that the script prints.
    assert reads[1] - reads[0] == per_step * 3


def test_on_a_terminal_a_progress_bar_shows_the_steps(tmp_path: Path) -> None:
    screen, terminal = pty.openpty()
    command = [sys.executable, "-W", "error", str(SCRIPT), "--steps", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, env={**os.environ, "TERM": "xterm"})
    os.close(terminal)
    shown = b""
    try:
        while part := os.read(screen, 4096):
            shown += part
    except OSError:
        pass  # Linux ends a terminal that nobody writes to any more with EIO, not with an empty read.
    os.close(screen)
    printed, _ = process.communicate()

    assert b"2/2" in shown
    assert b"mean loss" in shown
    assert printed.startswith(b"loss ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--steps", "0"], "argument --steps: must be a whole number of at least 1, got '0'"),
        (["--steps", "many"], "argument --steps: must be a whole number of at least 1, got 'many'"),
        (["--fix", "weather"], "argument --fix: invalid choice: 'weather'"),
        (["--epochs", "3"], "unrecognized arguments: --epochs 3"),
    ],
)
def test_a_wrong_argument_gets_a_usage_line_and_exit_code_2(arguments: list[str], said: str, tmp_path: Path) -> None:
    process = run(tmp_path, *arguments)

    assert process.returncode == 2
    assert process.stderr.startswith("usage: train.py")
    assert said in process.stderr
    assert "Traceback" not in process.stderr
