"""`perfkit run`: a script that knows nothing of perfkit, unchanged in what it prints, computes and returns."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from perfkit.run.reading import read_run

#: Known sleeps: data 20, forward 10, backward 6, optimizer 8 ms.
SLEEPS = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self):
        return 30
    def __getitem__(self, index):
        time.sleep(0.020)
        return torch.randn(8)

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(0.010)
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        time.sleep(0.006)
        return grad

class SlowSGD(torch.optim.SGD):
    def step(self, closure=None):
        time.sleep(0.008)
        return super().step(closure)

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = SlowSGD(model.parameters(), lr=0.01)
for batch in DataLoader(Samples()):
    loss = Slow.apply(model(batch)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", repr(loss.item()))
if "raise" in sys.argv:
    raise ValueError("the script's own")
if "exit" in sys.argv:
    sys.exit(7)
"""

#: The same kind of script without sleeps, for what does not depend on time.
QUICK = SLEEPS.replace("time.sleep(0.020)", "pass").replace("time.sleep(0.0", "(0.0")


def script(folder: Path, text: str = QUICK, name: str = "train.py") -> str:
    (folder / name).write_text(text)
    return name


def plain(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=folder)


#: The same script, which times what it calls with its own clock and prints the times of each step.
TIMED = """
import json, time

took = {"data": [], "forward": [], "backward": [], "optimizer": []}

def timed(phase, call, *given):
    began = time.perf_counter_ns()
    result = call(*given)
    took[phase].append(time.perf_counter_ns() - began)
    return result
""" + (
    SLEEPS.replace("for batch in DataLoader(Samples()):", "batches = iter(DataLoader(Samples()))\nfor _ in range(30):")
    .replace("    loss = Slow", "    batch = timed('data', next, batches)\n    loss = timed('forward', lambda: Slow")
    .replace(".mean()\n", ".mean())\n")
    .replace("loss.backward()", "timed('backward', loss.backward)")
    .replace("    optimizer.step()", "    timed('optimizer', optimizer.step)")
    .replace('print("loss"', "print(json.dumps(took))\nprint('loss'")
)


def test_phases_of_a_plain_script_match_its_own_clock_within_a_tenth(cli: Any, tmp_path: Path) -> None:
    done = cli("run", "--out", "x", script(tmp_path, TIMED))

    assert done.returncode == 0, done.stderr
    own = json.loads(done.stdout.splitlines()[0])
    rows = [row for row in read_run(tmp_path / "x").ranks[0].steps if row.kind == "timed"]
    assert len(rows) > 10
    for phase, slept in (("data", 20e6), ("forward", 10e6), ("backward", 6e6), ("optimizer", 8e6)):
        took = [getattr(row.phases_ns, phase) for row in rows]
        assert min(took) >= slept
        # Of the typical step: what perfkit does in some of them is in the script's times and not in the phases.
        typical = statistics.median(ns / own[phase][row.step] for row, ns in zip(rows, took, strict=True))
        assert typical == pytest.approx(1, abs=0.1), phase


#: Whether the line itself or the loader is to be edited depends on the cores that workers would have.
SLOW_LINE = re.compile(r"input-bound  (?:spent at )?train\.py:10\b")


def test_the_verdict_names_the_slow_dataset_and_goes_to_stderr(cli: Any, tmp_path: Path) -> None:
    done = cli("run", "--out", "x", script(tmp_path, SLEEPS))

    assert SLOW_LINE.search(done.stderr)
    assert done.stdout == plain(tmp_path, "train.py").stdout


def test_the_first_verdict_appears_while_training_goes_on(cli: Any, tmp_path: Path) -> None:
    # The data take longer than all waits of the step together, which are 24 ms.
    text = SLEEPS.replace("return 30", "return 200").replace("time.sleep(0.020)", "time.sleep(0.060)")
    done = cli("run", "--out", "x", script(tmp_path, text))

    first = done.stderr.index("perfkit: first verdict, while training continues")
    final = done.stderr.index("x · steps.jsonl")
    assert "Fix input-bound at" in " ".join(done.stderr[first:final].split())
    # The findings stand once, at the end of the output.
    assert SLOW_LINE.search(done.stderr).start() > final
    assert len(SLOW_LINE.findall(done.stderr)) == 1


def test_stop_after_ends_the_program_early_and_diagnoses(cli: Any, tmp_path: Path) -> None:
    done = cli("run", "--out", "x", "--stop-after", "12", script(tmp_path, SLEEPS))

    assert done.returncode == 0
    assert "loss" not in done.stdout
    assert len(read_run(tmp_path / "x").ranks[0].steps) == 12
    assert "input-bound" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["raise"], ["exit"]])
def test_output_and_exit_code_are_the_scripts_own(cli: Any, tmp_path: Path, arguments: list[str]) -> None:
    name = script(tmp_path)
    with_perfkit = cli("run", "--syncs=auto", "--out", "x", name, *arguments)
    without = plain(tmp_path, name, *arguments)

    assert (with_perfkit.returncode, with_perfkit.stdout) == (without.returncode, without.stdout)


def test_a_script_that_raises_keeps_its_own_traceback_and_the_verdict_follows(cli: Any, tmp_path: Path) -> None:
    name = script(tmp_path)
    done = cli("run", "--out", "x", name, "raise")

    assert done.stderr.startswith(plain(tmp_path, name, "raise").stderr)
    assert "x · steps.jsonl" in done.stderr
    assert "perfkit" not in done.stderr.split("ValueError")[0]


def test_ctrl_c_ends_the_program_by_the_signal_and_the_verdict_follows(tmp_path: Path) -> None:
    endless = SLEEPS.replace("return 30", "return 10_000")
    name = script(tmp_path, endless)
    process = subprocess.Popen(
        [sys.executable, "-m", "perfkit", "run", "--out", "x", name],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        # Where the tests run in a shell's background, a child would inherit that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    rows = tmp_path / "x" / "rank-0" / "steps.jsonl"
    deadline = time.monotonic() + 120
    while not (rows.exists() and rows.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    try:
        _, stderr = process.communicate(timeout=120)
    finally:
        process.kill()

    assert process.returncode == -signal.SIGINT
    assert stderr.index("KeyboardInterrupt") < stderr.rindex("A step takes")


def with_nobody_reading_stderr(folder: Path, *arguments: str) -> tuple[int, str]:
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stderr.close()
    out = process.stdout.read()
    process.stdout.close()
    return process.wait(timeout=240), out


def test_nobody_reading_stderr_changes_neither_output_nor_exit_code(tmp_path: Path) -> None:
    name = script(tmp_path)
    (tmp_path / "api.py").write_text(
        "import perfkit, runpy\nwith perfkit.profile('y'): runpy.run_path('train.py')\nprint('after', flush=True)\n"
    )
    plain_out = plain(tmp_path, name).stdout

    assert with_nobody_reading_stderr(tmp_path, "-m", "perfkit", "run", "--out", "x", name) == (0, plain_out)
    assert with_nobody_reading_stderr(tmp_path, "api.py") == (0, f"{plain_out}after\n")


def test_a_module_runs_with_minus_m(cli: Any, tmp_path: Path) -> None:
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    script(package, QUICK, "__main__.py")
    done = cli("run", "--out", "x", "-m", "trainer")

    assert done.returncode == 0, done.stderr
    assert len(read_run(tmp_path / "x").ranks[0].steps) == 30


def test_options_after_the_script_are_the_scripts(cli: Any, tmp_path: Path) -> None:
    name = script(tmp_path, "import sys, torch; print(sys.argv, __name__, __file__ == sys.argv[0])")
    done = cli("run", name, "--out", "mine", "-m")

    assert done.stdout == "['train.py', '--out', 'mine', '-m'] __main__ False\n"


def test_workers_that_spawn_find_the_scripts_classes(cli: Any, tmp_path: Path) -> None:
    text = """
import torch
from torch.utils.data import DataLoader, Dataset
class Samples(Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.ones(2)
if __name__ == "__main__":
    loader = DataLoader(Samples(), num_workers=1, multiprocessing_context="spawn")
    print(len(list(loader)))
"""
    assert cli("run", script(tmp_path, text)).stdout == "8\n"


def test_neither_torch_nor_numpy_is_loaded_before_the_script_asks_for_it(cli: Any, tmp_path: Path) -> None:
    """What a script sets for them in the environment before its import must still have its effect."""
    name = script(tmp_path, "import sys; print('torch' in sys.modules, 'numpy' in sys.modules)")

    assert cli("run", name).stdout == "False False\n"


def test_a_script_without_torch_runs_and_is_told_that_nothing_was_recorded(cli: Any, tmp_path: Path) -> None:
    done = cli("run", "--out", "x", script(tmp_path, "print('hello')"))

    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert "never imported torch; nothing was recorded" in done.stderr


@pytest.mark.parametrize(
    "lookup",
    [
        "importlib.util.find_spec('torch'); importlib.metadata.version('torch')",
        "importlib.util.find_spec('torch'); import transformers",
        "import threading; first = threading.Thread(target=__import__, args=('torch',)); first.start(); first.join()",
    ],
)
def test_a_script_that_looks_torch_up_before_it_imports_it_is_recorded(cli: Any, tmp_path: Path, lookup: str) -> None:
    name = script(tmp_path, f"import importlib.metadata, importlib.util\n{lookup}\n{QUICK}")

    done = cli("run", "--out", "x", name)

    assert done.returncode == 0, done.stderr
    assert "nothing was recorded" not in done.stderr
    assert len(read_run(tmp_path / "x").ranks[0].steps) == 30


def test_a_program_without_a_loop_is_told_why_nothing_was_found(cli: Any, tmp_path: Path) -> None:
    done = cli("run", "--out", "x", script(tmp_path, "import torch; torch.ones(3)"))

    assert done.returncode == 0
    assert "no step was seen: the loop was not reached" in done.stderr


def test_a_program_without_a_model_has_the_rounds_of_its_loop_as_steps(cli: Any, tmp_path: Path) -> None:
    # Rounds of several milliseconds: on a fast machine for as many seconds as steps are found in, on a busy one enough.
    text = """
        import itertools, time, torch

        def refit(factors, counts):
            for row in range(64):
                weights = counts[row]
                left = (factors * weights[:, None]).T @ factors + torch.eye(16)
                factors[row] = torch.linalg.solve(left, factors.T @ weights)

        def main():
            factors, counts, start = torch.rand(64, 16), torch.rand(64, 64), time.monotonic()
            for day in itertools.count():
                refit(factors, counts)
                if day > 600 and time.monotonic() > start + 4:
                    break

        if __name__ == "__main__":
            main()
    """
    done = cli("run", "--out", "x", script(tmp_path, textwrap.dedent(text).lstrip()))

    assert done.returncode == 0, done.stderr
    rank = read_run(tmp_path / "x").ranks[0]
    boundary = rank.rank.step_boundary
    assert (boundary.by, boundary.called_at.line, boundary.called_at.function) == ("round", 11, "main")
    assert len(rank.steps) > 100
    verdict = " ".join(done.stderr.split())
    assert "A round of the loop at line 11 takes" in verdict
    assert re.search(r"Fix many-small-ops at \S+:4 first", verdict)


def test_a_script_that_cannot_be_compiled_fails_as_python_says_it(cli: Any, tmp_path: Path) -> None:
    done = cli("run", "--out", "x", script(tmp_path, "import torch\nfor i in range(3):\n    return i\n"))

    assert done.returncode == 1
    assert "SyntaxError: 'return' outside function" in done.stderr
    assert "During handling" not in done.stderr


def test_a_kill_at_any_moment_leaves_a_run_that_can_be_diagnosed(cli: Any, tmp_path: Path) -> None:
    text = SLEEPS.replace("optimizer.step()\n", "optimizer.step()\n    if time.monotonic() > start + 6: os._exit(9)\n")
    text = "import os, time\nstart = time.monotonic() + 3600\n" + text.replace(
        "torch.manual_seed(0)", "torch.manual_seed(0); start = time.monotonic()"
    ).replace("return 30", "return 300")
    assert cli("run", "--out", "x", script(tmp_path, text)).returncode == 9

    done = cli("diagnose", "x")
    assert done.returncode == 0, done.stderr
    assert "input-bound" in done.stdout


def test_a_script_that_uses_perfkit_itself_is_recorded_once(cli: Any, tmp_path: Path) -> None:
    text = QUICK.replace(
        "for batch in DataLoader(Samples()):", "import perfkit\nfor batch in perfkit.steps(DataLoader(Samples())):"
    )
    done = cli("run", "--out", "x", script(tmp_path, text))

    assert done.returncode == 0, done.stderr
    assert len(read_run(tmp_path / "x").ranks[0].steps) == 30


def test_two_ranks_write_their_own_folders_into_one_run(tmp_path: Path) -> None:
    name = script(tmp_path)
    env = {"TORCHELASTIC_RUN_ID": "job", "MASTER_PORT": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "0"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "perfkit", "run", "--quiet", "--out", "x", name],
            cwd=tmp_path,
            env={**os.environ, **env, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=240) for process in processes] == [0, 0]

    run = read_run(tmp_path / "x")
    assert sorted(run.ranks) == [0, 1]
    assert run.missing_ranks == []
    assert [len(rank.windows) for rank in run.ranks.values()] == [1, 0]


def test_ranges_that_a_script_has_through_nvtx_are_recorded_when_asked(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        SLEEPS.replace("import torch\n", "import torch\nimport nvtx\nfrom nvtx import push_range, pop_range\n", 1)
        .replace("0.0", "0.00")
        .replace("    loss = ", "    push_range('mine', domain='app')\n    pop_range(domain='app')\n    loss = ")
    )
    for folder, option in (("with", ["--nvtx"]), ("without", [])):
        done = cli("run", "--out", folder, *option, "train.py")
        assert done.returncode == 0, done.stderr

    rows = {folder: read_run(tmp_path / folder).ranks[0].ranges for folder in ("with", "without")}
    assert [(row.domain, row.count) for row in rows["with"] if row.name == "mine"] == [("app", 30)]
    assert "mine" not in {row.name for row in rows["without"]}


def test_a_script_is_compiled_without_the_future_imports_of_perfkit(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def train(steps: int): pass\nprint(train.__annotations__)\n")
    assert "{'steps': <class 'int'>}" in cli("run", "train.py").stdout


def test_a_script_that_uses_click_finds_no_context_of_perfkit(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import click\nprint(click.get_current_context(silent=True))\n")
    assert cli("run", "train.py").stdout == "None\n"


def test_an_option_that_does_not_exist_is_not_taken_for_the_script(cli: Any) -> None:
    result = cli("run", "--stopafter", "3", "train.py")

    assert result.returncode == 2
    assert "has no option --stopafter" in result.stderr
