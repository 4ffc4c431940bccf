"""`log_run`: a run's numbers as W&B (offline), MLflow (a folder) and TensorBoard read them back."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import perfkit
from perfkit import MissingDependency, RunError, UsageError
from perfkit.diagnosis import Diagnosis
from perfkit.integrations.trackers import log_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trackers") / "mnist"
    with perfkit.profile(folder, quiet=True) as prof:
        for _ in prof.steps(range(40)):
            time.sleep(0.001)
    return folder


def written_by(program: str, folder: Path, run: Path, **env: str) -> Any:
    """What a program of its own prints as JSON: a tracker leaves threads and processes behind until it ends."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(run)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", **env},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


WANDB = """
import json, sys, wandb
from perfkit.integrations.trackers import log_run
with wandb.init(mode="offline", project="p") as own:
    own.log({"loss": 1.0}, step=5_000)
    log_run(sys.argv[1], to="wandb")
    config, summary = dict(own.config), dict(own.summary)
log_run(sys.argv[1], to="wandb")
print(json.dumps([config, {k: v for k, v in summary.items() if isinstance(v, (str, float))}]))
"""


def test_wandb_has_each_point_on_an_axis_of_its_own_in_the_active_run_and_in_a_new_one(
    run: Path, tmp_path: Path
) -> None:
    if importlib.util.find_spec("wandb") is None:
        pytest.skip("W&B is not installed")
    config, summary = written_by(WANDB, tmp_path, run, WANDB_MODE="offline", WANDB_SILENT="true")

    diagnosis = Diagnosis.from_json((run / "diagnosis.json").read_bytes())
    assert diagnosis.step is not None
    assert summary["perfkit/step_ms"] == pytest.approx(diagnosis.step.wall_ns / 1e6)
    assert summary["perfkit/verdict"].startswith(diagnosis.verdict[:60])
    assert config["perfkit"]["folder"] == str(run)
    # Rows are stored as they are, each with the names of its values, once or twice.
    files = list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    rows = [file.read_bytes().count(b"perfkit/other_ms") for file in files]
    assert len(rows) == 2
    assert all(20 <= count <= 100 for count in rows), rows


MLFLOW = """
import json, sys, mlflow
from perfkit.integrations.trackers import log_run
log_run(sys.argv[1], to="mlflow")
with mlflow.start_run() as own:
    log_run(sys.argv[1], to="mlflow")
client = mlflow.MlflowClient()
found = []
for one in client.search_runs(["0"]):
    points = client.get_metric_history(one.info.run_id, "perfkit/step_ms")
    text = mlflow.artifacts.load_text(f"{one.info.artifact_uri}/perfkit/verdict.md")
    found.append([one.info.run_name, one.info.status, one.data.metrics, one.data.tags, len(points), text])
print(json.dumps(found))
"""


def test_mlflow_has_the_curves_the_means_the_tags_and_the_verdict(run: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("mlflow") is None:
        pytest.skip("MLflow is not installed")
    store = {"MLFLOW_TRACKING_URI": f"file://{tmp_path}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}
    found = written_by(MLFLOW, tmp_path, run, **store)

    diagnosis = Diagnosis.from_json((run / "diagnosis.json").read_bytes())
    assert diagnosis.step is not None
    assert len(found) == 2
    assert run.name in [name for name, *_ in found]
    for _, status, metrics, tags, points, text in found:
        assert status == "FINISHED"
        assert metrics["perfkit/mean/step_ms"] == pytest.approx(diagnosis.step.wall_ns / 1e6)
        assert tags["perfkit.verdict"].startswith(diagnosis.verdict[:60])
        assert tags["perfkit.folder"] == str(run)
        assert 20 <= points <= 40
        assert text.startswith("**")


def test_tensorboard_reads_the_curves_the_means_and_the_verdict_from_the_run_folder(run: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log_run(run, to="tensorboard", into=tmp_path / "logs")
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()

    tags = events.Tags()
    assert 20 <= len(events.Scalars("perfkit/step_ms")) <= 40
    assert "perfkit/mean/step_ms" in tags["scalars"]
    assert any("verdict" in tag for tag in tags["tensors"])


def test_a_profile_is_written_once_it_has_stopped(tmp_path: Path) -> None:
    prof = perfkit.profile(tmp_path / "run", quiet=True)
    with pytest.raises(UsageError, match="has recorded nothing"):
        log_run(prof, to="tensorboard")
    with prof:
        for _ in prof.steps(range(20)):
            time.sleep(0.001)
        with pytest.raises((UsageError, RunError)):
            log_run(prof, to="tensorboard")

    log_run(prof, to="tensorboard")
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))


def test_mistakes_are_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="to must be 'wandb', 'mlflow', 'tensorboard', got 'comet'"):
        log_run(run, to="comet")  # type: ignore[arg-type]
    with pytest.raises(RunError):
        log_run(tmp_path / "nothing", to="wandb")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingDependency, match="pip install wandb"):
        log_run(run, to="wandb")


def test_importing_the_adapter_imports_no_tracker() -> None:
    names = ("wandb", "mlflow", "tensorboard")
    code = f"import sys, perfkit.integrations.trackers; print([n for n in {names!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
