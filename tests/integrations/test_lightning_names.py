"""The two names of Lightning, and the ways in which the callback gets into a Trainer of either."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfkit.integrations import _lightning_entry
from perfkit.integrations import lightning as adapter

NAMESPACES = ("lightning.pytorch", "pytorch_lightning")
GROUPS = ("lightning.pytorch.callbacks_factory", "pytorch_lightning.callbacks_factory")


def python(script: str, folder: Path | None = None, **env: str) -> str:
    """What a program of its own prints; it fails where that does."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def without(monkeypatch: pytest.MonkeyPatch, *namespaces: str) -> None:
    for name in namespaces:
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_the_callback_is_one_of_the_lightning_that_the_program_has_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    bases = [importlib.import_module(name).Callback for name in NAMESPACES]

    assert [issubclass(adapter.ProfilerCallback, base) for base in bases] == [True, True]
    with monkeypatch.context() as patch:
        without(patch, "pytorch_lightning")
        assert [issubclass(adapter.ProfilerCallback, base) for base in bases] == [True, False]
    without(monkeypatch, "lightning.pytorch")
    assert [issubclass(adapter.ProfilerCallback, base) for base in bases] == [False, True]


def test_a_pickled_callback_of_either_lightning_comes_back_ready_to_record(
    lightning: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for absent in ((), *((name,) for name in NAMESPACES)):
        with monkeypatch.context() as patch:
            without(patch, *absent)
            prof = lightning.callback(overwrite=True)
            back = pickle.loads(pickle.dumps(prof))

        assert type(back) is type(prof)

    lightning.trainer(back).fit(lightning.model(), lightning.batches(3))
    assert len(lightning.rows(back.profile.folder)) == 3


CLI = """
import torch
from {name} import LightningModule, Trainer
from {name}.cli import LightningCLI

class Tiny(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()
    def train_dataloader(self):
        return torch.utils.data.DataLoader([torch.ones(4)] * 6)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

LightningCLI(Tiny, save_config_callback=None, args=["fit", "--config", "config.yaml"])
"""

CONFIG = """
trainer:
  max_epochs: 1
  logger: false
  accelerator: cpu
  enable_checkpointing: false
  enable_progress_bar: false
  callbacks:
    - class_path: perfkit.integrations.lightning.ProfilerCallback
      init_args:
        run: run
        log: false
"""


@pytest.mark.parametrize("name", NAMESPACES)
def test_a_cli_takes_the_callback_from_its_configuration(name: str, tmp_path: Path) -> None:
    pytest.importorskip("jsonargparse", reason="LightningCLI needs jsonargparse, which is not installed")
    (tmp_path / "config.yaml").write_text(CONFIG)

    python(CLI.format(name=name), tmp_path)

    assert (tmp_path / "run" / "rank-0" / "steps.jsonl").read_text().count("\n") == 6


def test_without_lightning_the_error_names_the_pip_line() -> None:
    said = python(
        "import sys\n"
        "sys.modules['lightning'] = sys.modules['pytorch_lightning'] = None\n"
        "import perfkit\n"
        "try:\n"
        "    from perfkit.integrations.lightning import ProfilerCallback\n"
        "except perfkit.MissingDependency as error:\n"
        "    print(error)\n"
    )

    assert "pip install 'perfkit[lightning]'" in said


def test_a_lightning_that_is_too_old_is_told_with_its_version_and_the_pip_line() -> None:
    said = python(
        "import pytorch_lightning, perfkit\n"
        "pytorch_lightning.__version__ = '1.9.5'\n"
        "try:\n"
        "    from perfkit.integrations.lightning import ProfilerCallback\n"
        "except perfkit.MissingDependency as error:\n"
        "    print(error)\n"
    )

    assert "needs Lightning 2.2 or later, pytorch_lightning is 1.9.5: pip install -U 'perfkit[lightning]'" in said


def test_importing_the_adapter_imports_no_lightning() -> None:
    found = python(
        "import sys, perfkit.integrations.lightning, perfkit.integrations._lightning_entry\n"
        "print([name for name in sys.modules if name.startswith(('lightning', 'pytorch_lightning'))])"
    )

    assert found.strip() == "[]"


# -- without code: the entry points that every Trainer reads


def test_both_lightnings_find_the_factory_at_their_entry_point() -> None:
    for group in GROUPS:
        (ours,) = (point for point in importlib.metadata.entry_points(group=group) if point.name == "perfkit")

        assert ours.load() is _lightning_entry.callbacks


def test_a_trainer_gets_the_callback_only_where_it_is_asked_for(either: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    callbacks = []
    for wanted in ("", "0", str(either.folder / "run")):
        monkeypatch.setenv("PERFKIT_LIGHTNING", wanted)
        callbacks.append([kind for kind in either.trainer().callbacks if isinstance(kind, adapter.ProfilerCallback)])

    assert [len(found) for found in callbacks] == [0, 0, 1]


def test_a_trainer_that_nobody_edited_is_recorded_where_the_environment_says(
    either: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFKIT_LIGHTNING", str(either.folder / "run"))

    either.trainer().fit(either.model(), either.batches(4))

    assert len(either.rows(either.folder / "run")) == 4


def test_the_factory_imports_nothing_where_it_is_not_asked() -> None:
    found = python(
        "import sys, perfkit.integrations._lightning_entry as entry\n"
        "assert entry.callbacks() == []\n"
        "print([name for name in sys.modules if name.startswith(('msgspec', 'numpy', 'torch', 'lightning'))])",
        PERFKIT_LIGHTNING="",
    )

    assert found.strip() == "[]"
