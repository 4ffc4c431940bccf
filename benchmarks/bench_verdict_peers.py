"""What the peers tell of the labelled suite: torch's report_all_anti_patterns, and TraceML.

    python benchmarks/bench_verdict_peers.py [--only NAME]

Every program of tests/pathologies and its corrected twin, each a process of its own with one thread. torch's matcher
looks at two optimizer steps, recorded with stacks and shapes. TraceML runs Lightning and Hugging Face programs as they
are; a plain loop gets the two calls of its own that its README asks for, set into the program's syntax tree: the file
stays as it is, and the span of a step is the loop's body. Neither tells a line, a cost, or a gain.
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

from judging import TIMEOUT, environment  # noqa: E402 - found through the line above
from suite import PROGRAMS, Program  # noqa: E402 - found through the line above

#: Runs a program of one process, and prints the names of the patterns that torch finds in two of its steps.
_ANTI_PATTERNS = """
import re, runpy, sys
import contextlib, io
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile, schedule
from torch.profiler._pattern_matcher import report_all_anti_patterns

def told(prof):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        report_all_anti_patterns(prof)
    print("patterns:", *re.findall(r"^(.+?): \\d+ events matched", text.getvalue(), re.M), sep="|")

sys.argv = sys.argv[1:]
recorded = profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=10, warmup=1, active=2, repeat=1),
                   on_trace_ready=told, record_shapes=True, with_stack=True)
register_optimizer_step_post_hook(lambda *_: recorded.step())
with recorded:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""

#: torch's pattern -> the rules that tell the same cause.
_TORCH_SAME_CAUSE: dict[str, set[str]] = {
    "For Loop Indexing Pattern": {"many-small-ops"},
    "Optimizer Single Tensor Pattern": {"unfused-optimizer"},
    "Synchronized DataLoader Pattern": {"input-bound"},
    "Gradient Set To Zero Instead of None Pattern": {"gradients-not-set-to-none"},
}

#: Runs a plain program with the calls that TraceML's README asks for: `trace_step` around the body of the innermost
#: loop that steps an optimizer. What the user would know is read from the loop: the modules that its body names.
#: Two things are kinder than the README, since without them TraceML counts work as unexplained, or says nothing:
#: of a body with several modules the forward of each is timed, and iterables that are no DataLoader are timed as one.
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
            # The batches lie within: enumerate(batches), zip(batches, others).
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
# In this module, which is __main__: there a pickled class of the program is looked for.
exec(_code)
"""

#: TraceML's diagnosis -> the rules that tell the same cause. Generous: a diagnosis names every rule whose work it sends
#: the user to by its README ("Residual-heavy: logging, checkpointing, validation, CPU stalls, or unobserved work"), so
#: one diagnosis may name causes that need different corrections. COMPUTE-BOUND and NO CLEAR PERFORMANCE BOTTLENECK
#: name none: they are its answer to a healthy program too.
_TRACEML_SAME_CAUSE: dict[str, set[str]] = {
    "INPUT-BOUND": {"input-bound", "cpu-preprocessing"},
    "RESIDUAL-HEAVY": {
        "cpu-preprocessing",
        "checkpoint-in-step",
        "exposed-communication",
        "gc-pauses",
        "logging-in-step",
        "python-bound",
        "sync-in-step",
        "validation-too-often",
    },
    "STRAGGLER": {"slow-rank", "imbalanced-data", "exposed-communication"},
    "COMPUTE STRAGGLER": {"slow-rank", "imbalanced-data"},
    "INPUT STRAGGLER": {"slow-rank", "imbalanced-data", "input-bound"},
}


def anti_patterns(program: Program, *, fixed: bool) -> list[str] | None:
    """What torch's own matcher tells of a program; None where it cannot be asked: several processes, no optimizer."""
    if program.ranks > 1 or program.use == "inference":
        return None
    arguments = [str(program.path), *(["--fixed"] if fixed else [])]
    done = subprocess.run(
        [sys.executable, "-c", _ANTI_PATTERNS, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
        env=environment(),
    )
    lines = [line.split("|")[1:] for line in done.stdout.splitlines() if line.startswith("patterns:")]
    return lines[0] if lines else None


#: What TraceML marks as information.
_NO_PROBLEM = {"COMPUTE-BOUND", "NO CLEAR PERFORMANCE BOTTLENECK", "LOW GPU UTILIZATION"}


def traceml(program: Program, *, fixed: bool, folder: Path) -> str | None:
    """TraceML's primary diagnosis of a run, as "INPUT-BOUND"; None where it cannot be asked, or saw no steps.

    It must be importable, its nvidia-ml-py too. ``folder`` is this run's own, and keeps what TraceML wrote.
    """
    # Its steps are those of a training: without a backward pass and an optimizer it tells of missing signals only.
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
        child.wait(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        _kill(child)
        return None
    summary = folder / "run" / "final_summary.json"
    if child.returncode or not summary.is_file():
        return None
    primary = json.loads(summary.read_text())["primary_diagnosis"]
    return None if primary["kind"] == "INSUFFICIENT_STEP_TIME_DATA" else str(primary["status"])


def _free_ports() -> tuple[int, int]:
    """Two ports that nobody listens on; both are held until both are known, so they differ."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End the launcher and all below it: its collector and the training have process groups of their own."""
    below = psutil.Process(child.pid).children(recursive=True)
    os.killpg(child.pid, signal.SIGKILL)
    for process in below:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    child.wait()


class Told(NamedTuple):
    """What a peer tells of a program and of its healthy twin; None where it could not be asked."""

    ill: list[str] | None
    healthy: list[str] | None

    def names(self, program: Program, same_cause: dict[str, set[str]]) -> bool | None:
        """Whether one of the causes that the label accepts is told; None where nothing was planted, or asked."""
        if program.rule is None or self.ill is None:
            return None
        return any(same_cause.get(one, set()) & program.accepted for one in self.ill)

    @property
    def alarms(self) -> bool | None:
        """Whether the healthy twin is told of a problem."""
        return None if self.healthy is None else any(one not in _NO_PROBLEM for one in self.healthy)


def ask_torch(program: Program) -> Told:
    """Ask torch about both forms of a program."""
    ill = anti_patterns(program, fixed=False) if program.rule else None
    return Told(ill, anti_patterns(program, fixed=program.rule is not None))


def ask_traceml(program: Program) -> Told:
    """Ask TraceML about both forms of a program."""
    with tempfile.TemporaryDirectory() as made:
        ill = traceml(program, fixed=False, folder=Path(made) / "ill") if program.rule else None
        healthy = traceml(program, fixed=program.rule is not None, folder=Path(made) / "healthy")
    return Told([ill] if ill else None, [healthy] if healthy else None)


HEAD = (
    "| program | expected | torch | names it | of the healthy twin | TraceML | names it | of the healthy twin |\n"
    "|---|---|---|---|---|---|---|---|"
)


def row(program: Program, torch_told: Told, traceml_told: Told) -> str:
    """The program's line of the table."""
    cells = [program.name, program.rule or "healthy"]
    for told, same_cause in ((torch_told, _TORCH_SAME_CAUSE), (traceml_told, _TRACEML_SAME_CAUSE)):
        names = {True: "yes", False: "no", None: ""}[told.names(program, same_cause)]
        cells += [_listed(told.ill) if program.rule else "", names, _listed(told.healthy)]
    return "| " + " | ".join(cells) + " |"


def totals(asked: Sequence[tuple[Program, Told]], same_cause: dict[str, set[str]]) -> str:
    """How often a peer named the cause, and how often it told a healthy program of one."""
    named = [yes for program, told in asked if (yes := told.names(program, same_cause)) is not None]
    alarms = [told.alarms for _, told in asked if told.alarms is not None]
    return f"{sum(named)} of {len(named)} causes named, {sum(alarms)} of {len(alarms)} healthy runs told of a problem"


def _listed(names: list[str] | None) -> str:
    return "cannot be asked" if names is None else ", ".join(names) or "nothing"


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask both peers about the suite, print the table."""
    parser = argparse.ArgumentParser(description="Ask torch and TraceML about the labelled suite.")
    parser.add_argument("--only", action="append", metavar="NAME", help="one program; may be repeated")
    options = parser.parse_args(arguments)
    if unknown := set(options.only or ()) - {program.name for program in PROGRAMS}:
        parser.error(f"no program is called {', '.join(sorted(unknown))}; they are listed in suite.py")
    if importlib.util.find_spec("traceml_ai") is None:
        parser.error("traceml-ai is not installed: pip install --group peers")
    asked = []
    print(HEAD, flush=True)
    for program in PROGRAMS:
        if not options.only or program.name in options.only:
            asked.append((program, ask_torch(program), ask_traceml(program)))
            print(row(*asked[-1]), flush=True)
    print("\n| peer | |\n|---|---|")
    print(f"| torch's matcher | {totals([(one, told) for one, told, _ in asked], _TORCH_SAME_CAUSE)} |")
    print(f"| TraceML | {totals([(one, told) for one, _, told in asked], _TRACEML_SAME_CAUSE)} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
