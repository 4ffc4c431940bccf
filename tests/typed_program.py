"""A program that uses every public name of perfkit as a user would: `mypy --strict` reads it, nothing runs it.

`test_wheel.py` fails where a public name is missing here.
"""

from collections.abc import Callable, Iterable

import perfkit


@perfkit.range
def embed(values: list[float]) -> float:
    """A decorated function keeps its types."""
    return sum(values)


@perfkit.range("loss", color="red", category="forward", payload=3)
def loss_of(values: list[float]) -> float:
    """A decorator with arguments keeps them too."""
    with perfkit.range("inner"):
        perfkit.mark("once")
    return embed(values)


@perfkit.allow_sync("epoch metrics")
def report(value: float) -> str:
    """An allowed sync."""
    return f"{value:.3f}"


def train(batches: Iterable[list[float]], model: Callable[[list[float]], float]) -> perfkit.Diagnosis | None:
    """Record a loop."""
    with perfkit.profile(
        "runs/typed",
        schedule=perfkit.schedule(wait=5, warmup=1, active=2, repeat=2),
        triggers=perfkit.triggers("slow-step=2", "recompile", limit=3),
        detect_syncs="auto",
        quiet=True,
    ) as prof:
        for batch in prof.steps(batches):
            prof.log(samples=len(batch), loss=loss_of(batch))
        for batch in perfkit.steps(batches):
            model(batch)
            perfkit.step()
        prof.begin("validation")
        prof.end("validation")
    phase: perfkit.Phase = "data"
    diagnosis = prof.diagnosis
    if diagnosis is not None:
        print(diagnosis.phase_times.get(phase), prof.folder, perfkit.__version__)
    return diagnosis


def advice(diagnosis: perfkit.Diagnosis) -> list[str]:
    """Read findings."""
    findings: tuple[perfkit.Finding, ...] = tuple(diagnosis.findings)
    evidence: list[perfkit.Evidence] = [one for finding in findings for one in finding.evidence]
    numbers = [one.value for one in evidence if one.value is not None]
    print(max(numbers, default=0.0))
    return [f"{finding.rule}: {finding.advice}" for finding in findings]


def gate(before: str, after: str) -> int:
    """Compare two runs, and the ranks of one."""
    try:
        comparison: perfkit.Comparison = perfkit.compare(before, after, max_slowdown=0.03, max_more={"syncs": 0})
        print(perfkit.diagnose(after).verdict, perfkit.diagnose_ranks(after).verdict)
    except (perfkit.TraceError, perfkit.RunError) as error:
        print(error)
        return 2
    except (perfkit.UsageError, perfkit.MissingDependency) as error:
        raise SystemExit(str(error)) from error
    except perfkit.PerfkitError:
        return 2
    return 1 if comparison.broken else 0


def syncs(step: Callable[[], float]) -> int:
    """Find syncs."""
    try:
        with perfkit.detect_syncs(mode="dry", on_sync="raise", max_syncs=2) as found:
            step()
        found.assert_max(0)
        return len(found.events)
    except perfkit.SyncBudgetExceeded as error:
        print(error)
    except perfkit.SyncError as error:
        print(error)
    return -1


def faster(program: list[str]) -> str:
    """Try changes."""
    with perfkit.changes("fused-optimizer", "workers=2") as applied:
        print(applied.report())
    trial: perfkit.Trial = perfkit.try_changes(program, changes=["tf32"], budget_s=60)
    return trial.patch


def latency(model: Callable[..., object]) -> float:
    """Measure inference, and annotate a model."""
    handle = perfkit.annotate_modules(model, "layers.*")
    handle.remove()
    result = perfkit.measure_latency(model, [1.0], batch_sizes=(1, 8))
    times = [batch.p50_ns for batch in result.batches if batch.p50_ns is not None]
    return max(times, default=0) / 1e6


def predicted(run: str) -> str:
    """Replay a run with changes, and a handler for torch's own profiler."""
    answer: perfkit.WhatIf = perfkit.what_if(run, hide_loader=True, without=["sync"])
    handler = perfkit.trace_handler("tb")
    return f"{answer} {handler}"


def strict() -> None:
    """perfkit's warnings can be errors."""
    import warnings

    warnings.simplefilter("error", perfkit.PerfkitWarning)
