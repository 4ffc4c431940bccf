"""``log_run``: a recorded run's numbers in Weights & Biases, MLflow or TensorBoard, through their own interfaces.

    with perfkit.profile("runs/mnist") as prof:
        for batch in prof.steps(loader): ...
    log_run(prof, to="wandb")

or later, of any run folder: ``log_run("runs/mnist", to="mlflow")``. Nothing is written unless this is called. During
a training, `perfkit.integrations.tensorboard.log_scalars` writes each step to a SummaryWriter or a Lightning logger.

Written are, for at most a thousand points over the run, what `log_scalars` names (``perfkit/step_ms``,
``perfkit/<phase>_ms``, ``perfkit/samples_per_s``, memory, syncs, mfu); once, the means of the diagnosis and the energy
per step; the verdict with its findings as text; and the command, host, devices and git commit.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import perfkit
from perfkit import Diagnosis, MissingDependency, UsageError
from perfkit._text import clean
from perfkit.integrations.tensorboard.scalars import points_of
from perfkit.integrations.tensorboard.writers import named, scalars_of, to_markdown
from perfkit.run.reading import RankFolder, RunFolder, read_run

#: Where a run can be written to.
Tracker = Literal["wandb", "mlflow", "tensorboard"]
#: Points of each curve: about the width of a chart in pixels.
_MAX_POINTS = 1_000
#: Metrics that MLflow takes in one request, and characters of its tags and of a summary's text (MLflow's own limits are
#: 1,000 and 5,000).
_BATCH, _MAX_TEXT = 1_000, 4_000


class RunNumbers(NamedTuple):
    """What is written of a run; ``points`` are (step, unix time in ms, values)."""

    name: str
    facts: dict[str, str]
    points: list[tuple[int, int, dict[str, float]]]
    means: dict[str, float]
    verdict: str
    markdown: str


def log_run(run: perfkit.profile | str | os.PathLike[str], to: Tracker, *, into: Any = None) -> None:
    """Write the numbers of a run that is over.

    Args:
        run: A `perfkit.profile` that has stopped, or a run folder.
        to: ``"wandb"``, ``"mlflow"`` or ``"tensorboard"``.
        into: Where exactly. Of W&B: a run of it. Of MLflow: the id of a run. Default: the active run of the process,
            and where there is none a new one, named after the folder, which is ended again. Of TensorBoard: a log
            directory or a SummaryWriter. Default: the folder ``tensorboard`` in the run folder.

    Raises:
        UsageError: ``to`` is something else, or the profile has recorded nothing or still records.
        RunError: the folder holds no run.
        MissingDependency: the tracker is not installed.
    """
    if to not in _WRITERS:
        raise UsageError(f"to must be {', '.join(map(repr, get_args(Tracker)))}, got {to!r}")
    numbers, folder = _numbers(run)
    _WRITERS[to](numbers, folder, into)


def _numbers(run: perfkit.profile | str | os.PathLike[str]) -> tuple[RunNumbers, Path]:
    known: Diagnosis | None = None
    if isinstance(run, perfkit.profile):
        if run.folder is None:
            raise UsageError("the profile has recorded nothing: call log_run after its with block")
        known, path = run.diagnosis, run.folder
    else:
        path = Path(run)
    opened = read_run(path)
    rank = next((rank for rank in opened.ranks.values() if rank.steps), next(iter(opened.ranks.values())))
    if isinstance(run, perfkit.profile) and rank.rank is not None and rank.rank.ending is None:
        raise UsageError("the profile still records: call log_run after its with block, or after stop()")
    diagnosis = known or perfkit.diagnose(path)
    energy = diagnosis.figures.energy
    joules = sum(one.joules / one.steps for one in energy) if energy else None
    return (
        RunNumbers(
            name=path.resolve().name,
            facts=dict(_facts(opened, rank)),
            points=list(_points(rank)),
            means=scalars_of(diagnosis) | named({"energy_j_per_step": joules}),
            verdict=clean(diagnosis.verdict, _MAX_TEXT),
            markdown=to_markdown(diagnosis),
        ),
        path,
    )


def _points(rank: RankFolder) -> Iterator[tuple[int, int, dict[str, float]]]:
    pairs = rank.rank.clock_pairs if rank.rank is not None else ()
    offset_ns = pairs[0].unix_ns - pairs[0].perf_ns if pairs else 0
    for step, start_ns, values in points_of(rank, _MAX_POINTS):
        yield step, (start_ns + offset_ns) // 1_000_000, values


def _facts(run: RunFolder, rank: RankFolder) -> Iterator[tuple[str, str]]:
    """What a run is found by; texts may come from anyone."""
    about = rank.rank
    facts = {
        "command": " ".join(run.run.command) if run.run is not None else "",
        "host": about.host if about is not None else "",
        "devices": (", ".join(about.devices) or "CPU") if about is not None else "",
        "git_commit": (about.git_commit or "") if about is not None else "",
        "ended": (about.ending or "") if about is not None else "",
        "folder": str(run.path.resolve()),
    }
    return ((name, clean(text, _MAX_TEXT)) for name, text in facts.items() if text)


def _load(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependency(f"log_run(to={package!r}) needs {package}: pip install {package}") from error


def _to_wandb(numbers: RunNumbers, folder: Path, into: Any) -> None:
    wandb = _load("wandb", "wandb")
    run = into if into is not None else wandb.run
    own = run is None
    if own:
        run = wandb.init(project=os.environ.get("WANDB_PROJECT", "perfkit"), name=numbers.name)
    try:
        # The program's own steps of W&B have passed: these have an axis of their own.
        run.define_metric("perfkit/step")
        run.define_metric("perfkit/*", step_metric="perfkit/step")
        for step, _, values in numbers.points:
            run.log({"perfkit/step": step, **values})
        run.config.update({"perfkit": numbers.facts}, allow_val_change=True)
        run.summary.update({**numbers.means, "perfkit/verdict": numbers.verdict})
    finally:
        if own:
            run.finish()


def _to_mlflow(numbers: RunNumbers, folder: Path, into: Any) -> None:
    mlflow = _load("mlflow", "mlflow")
    entities = _load("mlflow.entities", "mlflow")
    client = mlflow.MlflowClient()
    active = mlflow.active_run()
    run_id = into if into is not None else active.info.run_id if active is not None else None
    own = run_id is None
    if own:
        run_id = mlflow.start_run(run_name=numbers.name).info.run_id
    try:
        metrics = [
            entities.Metric(name, value, unix_ms, step)
            for step, unix_ms, values in numbers.points
            for name, value in values.items()
        ]
        ended_ms = numbers.points[-1][1] if numbers.points else 0
        # A curve's last value is what MLflow lists for a run: the means have names of their own.
        metrics += [
            entities.Metric(name.replace("perfkit/", "perfkit/mean/", 1), value, ended_ms, 0)
            for name, value in numbers.means.items()
        ]
        for begin in range(0, len(metrics), _BATCH):
            client.log_batch(run_id, metrics=metrics[begin : begin + _BATCH])
        tags = {**numbers.facts, "verdict": numbers.verdict}
        client.log_batch(run_id, tags=[entities.RunTag(f"perfkit.{name}", text) for name, text in tags.items()])
        client.log_text(run_id, numbers.markdown, "perfkit/verdict.md")
    finally:
        if own:
            mlflow.end_run()


def _to_tensorboard(numbers: RunNumbers, folder: Path, into: Any) -> None:
    own = into is None or isinstance(into, str | os.PathLike)
    writer = into
    if own:
        try:
            made = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        except ImportError as error:
            raise MissingDependency(
                "log_run(to='tensorboard') needs tensorboard and torch: pip install 'perfkit[torch,tensorboard]'"
            ) from error
        writer = made(str(into if into is not None else folder / "tensorboard"))
    try:
        for step, unix_ms, values in numbers.points:
            for name, value in values.items():
                writer.add_scalar(name, value, step, walltime=unix_ms / 1e3)
        last = numbers.points[-1][0] if numbers.points else 0
        for name, value in numbers.means.items():
            writer.add_scalar(name.replace("perfkit/", "perfkit/mean/", 1), value, last)
        facts = "\n".join(f"- {name}: {text}" for name, text in numbers.facts.items())
        writer.add_text("perfkit/verdict", f"{numbers.markdown}\n\n{facts}", last)
        writer.flush()
    finally:
        if own:
            writer.close()


_WRITERS: dict[str, Callable[[RunNumbers, Path, Any], None]] = {
    "wandb": _to_wandb,
    "mlflow": _to_mlflow,
    "tensorboard": _to_tensorboard,
}
