"""What the peers report on the labelled suite: torch's report_all_anti_patterns, and TraceML.

    python benchmarks/bench_verdict_peers.py [--only NAME]

Every program of tests/pathologies and its corrected twin runs in its own process with one thread. torch's matcher reads
two optimizer steps, recorded with stacks and shapes. TraceML runs Lightning and Hugging Face programs unchanged. A
plain loop needs the two calls that TraceML's README asks for: they are inserted into the program's syntax tree, with
the body of the loop as the step. Neither peer reports a line, a cost or a saving.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

PATHOLOGIES = Path(__file__).resolve().parents[1] / "tests" / "pathologies"
sys.path.insert(0, str(PATHOLOGIES))

from judging import TIMEOUT_S, environment  # noqa: E402 - found through the line above
from suite import PROGRAMS, Program  # noqa: E402 - found through the line above

#: Runs a program of one process, and prints the names of the patterns that torch finds in two of its steps.
_ANTI_PATTERNS = """
import re, runpy, sys
import contextlib, io
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile, schedule
from torch.profiler._pattern_matcher import report_all_anti_patterns

def print_patterns(prof):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        report_all_anti_patterns(prof)
    print("patterns:", *re.findall(r"^(.+?): \\d+ events matched", text.getvalue(), re.M), sep="|")

sys.argv = sys.argv[1:]
recorded = profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=10, warmup=1, active=2, repeat=1),
                   on_trace_ready=print_patterns, record_shapes=True, with_stack=True)
register_optimizer_step_post_hook(lambda *_: recorded.step())
with recorded:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""

#: torch's pattern -> the rules for the same cause.
_TORCH_SAME_CAUSE: dict[str, set[str]] = {
    "For Loop Indexing Pattern": {"many-small-ops"},
    "Optimizer Single Tensor Pattern": {"unfused-optimizer"},
    "Synchronized DataLoader Pattern": {"input-bound"},
    "Gradient Set To Zero Instead of None Pattern": {"gradients-not-set-to-none"},
}

#: Runs a plain program with the calls that TraceML's README asks for: `trace_step` around the body of the innermost
#: loop that steps an optimizer. What a user would know is read from the loop: the modules that its body names.
#: Two things go beyond the README, because TraceML otherwise counts work as unexplained or reports nothing: if a body
#: uses several modules, the forward of each is timed; and any iterable is timed as a DataLoader would be.
_TRACEML_DRIVER = """
import sys

def _prepared(path):
    import ast
    import contextlib
    from types import SimpleNamespace
    import traceml_ai
    from torch import nn
    from torch.utils.data import DataLoader
    from traceml_ai.instrumentation.patches.forward_auto_timer_patch import forward_auto_timer

    def fed(batches):
        return batches if isinstance(batches, DataLoader) else traceml_ai.wrap_dataloader_fetch(batches)

    @contextlib.contextmanager
    def step(scope, names):
        modules = {id(scope[name]): scope[name] for name in names if isinstance(scope.get(name), nn.Module)}
        model = max(modules.values(), key=lambda one: sum(weight.numel() for weight in one.parameters()))
        with traceml_ai.trace_step(model), forward_auto_timer(model if len(modules) == 1 else None):
            yield

    def expression(text):
        return ast.parse(text, mode="eval").body

    class Traced(ast.NodeTransformer):
        loops = 0

        def visit_For(self, loop):
            inner = self.loops
            self.generic_visit(loop)
            calls = [node.func for node in ast.walk(loop) if isinstance(node, ast.Call)]
            if self.loops > inner or not any(isinstance(one, ast.Attribute) and one.attr == "step" for one in calls):
                return loop
            self.loops += 1
            names = tuple(node.id for part in loop.body for node in ast.walk(part) if isinstance(node, ast.Name))
            call = expression(f"_traceml.step({{**globals(), **locals()}}, {names!r})")
            loop.body = [ast.With(items=[ast.withitem(context_expr=call)], body=loop.body)]
            # The batches are the first argument: enumerate(batches), zip(batches, others).
            outer = loop.iter
            if isinstance(outer, ast.Call) and ast.unparse(outer.func) in ("enumerate", "zip"):
                outer.args[0] = ast.Call(func=expression("_traceml.fed"), args=[outer.args[0]], keywords=[])
            else:
                loop.iter = ast.Call(func=expression("_traceml.fed"), args=[outer], keywords=[])
            return loop

    traceml_ai.init(mode="auto")
    with open(path) as file:
        tree = Traced().visit(ast.parse(file.read()))
    return compile(ast.fix_missing_locations(tree), path, "exec"), SimpleNamespace(step=step, fed=fed)

sys.argv = sys.argv[1:]
__file__ = sys.argv[0]
_code, _traceml = _prepared(__file__)
# In this module, because it is __main__, where pickle looks for the program's classes.
exec(_code)
"""

#: TraceML's diagnosis -> the rules for the same cause. Generous: it counts for every cause that its README sends the
#: user to ("Residual-heavy: logging, checkpointing, validation, CPU stalls, or unobserved work"), even if these need
#: different corrections. COMPUTE-BOUND and NO CLEAR PERFORMANCE BOTTLENECK count for none: healthy programs also get
#: them.
_TRACEML_SAME_CAUSE: dict[str, set[str]] = {
    "INPUT-BOUND": {"input-bound", "cpu-preprocessing"},
    "RESIDUAL-HEAVY": {
        "cpu-preprocessing",
        "checkpoint-in-step",
        "exposed-communication",
        "gc-pauses",
        "logging-in-step",
        "python-bound",
        "rare-steps",
        "sync-in-step",
        "validation-too-often",
        "waiting-in-step",
    },
    "STRAGGLER": {"slow-rank", "imbalanced-data", "exposed-communication"},
    "COMPUTE STRAGGLER": {"slow-rank", "imbalanced-data"},
    "INPUT STRAGGLER": {"slow-rank", "imbalanced-data", "input-bound"},
}


def anti_patterns(program: Program, *, fixed: bool) -> list[str] | None:
    """What torch's own matcher reports; None for what it cannot handle: several processes, or no optimizer."""
    if program.ranks > 1 or program.use == "inference":
        return None
    arguments = [str(program.path), *(["--fixed"] if fixed else [])]
    done = subprocess.run(
        [sys.executable, "-c", _ANTI_PATTERNS, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        env=environment(),
    )
    lines = [line.split("|")[1:] for line in done.stdout.splitlines() if line.startswith("patterns:")]
    return lines[0] if lines else None


#: What TraceML marks as information.
_NO_PROBLEM = {"COMPUTE-BOUND", "NO CLEAR PERFORMANCE BOTTLENECK", "LOW GPU UTILIZATION"}


def traceml(program: Program, *, fixed: bool, folder: Path) -> str | None:
    """TraceML's primary diagnosis of a run, such as "INPUT-BOUND"; None if it gives none, or saw no steps.

    TraceML and nvidia-ml-py must be importable. ``folder`` is used by this run alone, and receives what TraceML writes.
    """
    # Its steps are training steps: without a backward pass and an optimizer it reports missing signals only.
    if program.use == "inference" or importlib.util.find_spec("traceml_ai") is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    script, arguments = program.path, ["--fixed"] if fixed else []
    if program.framework == "plain":
        script, arguments = folder / "driver.py", [str(program.path), *arguments]
        script.write_text(_TRACEML_DRIVER)
    collector, rendezvous = _free_ports()
    options = {
        "--mode": "summary",
        "--logs-dir": str(folder.resolve()),
        "--run-name": "run",
        "--aggregator-port": str(collector),
        "--master-port": str(rendezvous),
        "--nproc-per-node": str(program.ranks),
    }
    words = [word for option in options.items() for word in option]
    child = subprocess.Popen(
        [sys.executable, "-m", "traceml_ai.launcher.cli", "run", str(script.resolve()), *words, "--args", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
        cwd=folder,
        start_new_session=True,
    )
    try:
        child.wait(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _kill(child)
        return None
    summary = folder / "run" / "final_summary.json"
    if child.returncode or not summary.is_file():
        return None
    primary = json.loads(summary.read_text())["primary_diagnosis"]
    return None if primary["kind"] == "INSUFFICIENT_STEP_TIME_DATA" else str(primary["status"])


def _free_ports() -> tuple[int, int]:
    """Two ports that nothing listens on; both are bound at the same time, so they differ."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill the launcher and its descendants: its collector and the training have process groups of their own."""
    descendants = psutil.Process(child.pid).children(recursive=True)
    os.killpg(child.pid, signal.SIGKILL)
    for process in descendants:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    child.wait()


class PeerAnswer(NamedTuple):
    """What a peer reports for a program and for its healthy twin; None: no answer."""

    broken: list[str] | None
    healthy: list[str] | None

    def names(self, program: Program, same_cause: dict[str, set[str]]) -> bool | None:
        """Whether a cause that the label accepts is reported; None if none was planted, or there is no answer."""
        if program.rule is None or self.broken is None:
            return None
        return any(not same_cause.get(name, set()).isdisjoint(program.accepted) for name in self.broken)

    @property
    def alarms(self) -> bool | None:
        """Whether a problem is reported for the healthy twin."""
        return None if self.healthy is None else any(name not in _NO_PROBLEM for name in self.healthy)


def run_torch(program: Program) -> PeerAnswer:
    """Run torch's matcher on both forms of a program."""
    broken = anti_patterns(program, fixed=False) if program.rule else None
    return PeerAnswer(broken, anti_patterns(program, fixed=program.rule is not None))


def run_traceml(program: Program) -> PeerAnswer:
    """Run both forms of a program under TraceML."""
    with tempfile.TemporaryDirectory() as folder:
        broken = traceml(program, fixed=False, folder=Path(folder) / "broken") if program.rule else None
        healthy = traceml(program, fixed=program.rule is not None, folder=Path(folder) / "healthy")
    return PeerAnswer([broken] if broken else None, [healthy] if healthy else None)


HEAD = (
    "| program | expected | torch | names the cause | healthy twin | TraceML | names the cause | healthy twin |\n"
    "|---|---|---|---|---|---|---|---|"
)


def row(program: Program, torch_answer: PeerAnswer, traceml_answer: PeerAnswer) -> str:
    """The program's line of the table."""
    cells = [program.name, program.rule or "healthy"]
    for got, same_cause in ((torch_answer, _TORCH_SAME_CAUSE), (traceml_answer, _TRACEML_SAME_CAUSE)):
        names = {True: "yes", False: "no", None: ""}[got.names(program, same_cause)]
        cells += [_listed(got.broken) if program.rule else "", names, _listed(got.healthy)]
    return "| " + " | ".join(cells) + " |"


def totals(answers: Sequence[tuple[Program, PeerAnswer]], same_cause: dict[str, set[str]]) -> str:
    """How often a peer named the cause, and how often it reported a problem for a healthy program."""
    named = [names for program, got in answers if (names := got.names(program, same_cause)) is not None]
    alarms = [got.alarms for _, got in answers if got.alarms is not None]
    return (
        f"{sum(named)} of {len(named)} causes named, a problem reported in {sum(alarms)} of {len(alarms)} healthy runs"
    )


def _listed(names: list[str] | None) -> str:
    return "no answer" if names is None else ", ".join(names) or "nothing"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both peers on the suite and print the table."""
    parser = argparse.ArgumentParser(description="Run torch's matcher and TraceML on the labelled suite.")
    parser.add_argument("--only", action="append", metavar="NAME", help="run one program; may be repeated")
    options = parser.parse_args(arguments)
    if unknown := set(options.only or ()) - {program.name for program in PROGRAMS}:
        parser.error(f"no program is called {', '.join(sorted(unknown))}; see tests/pathologies/*/labels.toml")
    if importlib.util.find_spec("traceml_ai") is None:
        parser.error("traceml-ai is not installed: pip install --group peers")
    answers = []
    print(HEAD, flush=True)
    for program in PROGRAMS:
        if not options.only or program.name in options.only:
            answers.append((program, run_torch(program), run_traceml(program)))
            print(row(*answers[-1]), flush=True)
    print("\n| peer | |\n|---|---|")
    print(f"| torch's matcher | {totals([(program, got) for program, got, _ in answers], _TORCH_SAME_CAUSE)} |")
    print(f"| TraceML | {totals([(program, got) for program, _, got in answers], _TRACEML_SAME_CAUSE)} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
