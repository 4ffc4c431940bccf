"""The spellings of the integrations that people try: each works, or says what to write."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import perfkit
from perfkit.errors import UsageError

CHECKOUT = Path(__file__).resolve().parents[2]


def python(code: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)


@pytest.mark.parametrize("before", ["", "perfkit.range;"], ids=["at the first use of perfkit", "after another name"])
def test_integrations_and_trace_handler_resolve_without_an_import_and_load_no_framework(before: str) -> None:
    done = python(
        f"import sys, perfkit; {before} perfkit.integrations; perfkit.trace_handler; perfkit.ProfilerCallback\n"
        "assert not {'torch', 'lightning', 'transformers', 'tensorboard'} & set(sys.modules)\n"
        "print(perfkit.integrations.tensorboard.__name__, perfkit.integrations.lightning.__name__)"
    )

    assert done.stdout == "perfkit.integrations.tensorboard perfkit.integrations.lightning\n", done.stderr


def test_the_trace_handler_of_perfkit_is_that_of_the_integration(tmp_path: Path) -> None:
    from perfkit.integrations.tensorboard.handler import TraceHandler  # loads the reports, which the others need not

    assert isinstance(perfkit.trace_handler(tmp_path / "tb"), TraceHandler)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="logdir must be a folder"):
        perfkit.trace_handler(tmp_path / "file")


def test_the_callback_that_two_frameworks_have_names_both_imports() -> None:
    callback: Any = perfkit.ProfilerCallback  # type: ignore[attr-defined]
    with pytest.raises(UsageError) as refused:
        callback("runs/x")

    for framework in ("lightning", "huggingface"):
        assert f"from perfkit.integrations.{framework} import ProfilerCallback" in str(refused.value)


def test_an_adapter_that_does_not_exist_is_an_attribute_error_with_those_that_do() -> None:
    import perfkit.integrations  # without it mypy does not know the attribute

    with pytest.raises(AttributeError, match="it has huggingface, lightning, tensorboard"):
        _ = perfkit.integrations.ignite  # type: ignore[attr-defined]


def test_the_folder_of_a_checkout_says_which_spelling_to_use() -> None:
    done = python("from integrations.lightning import ProfilerCallback")

    assert done.returncode == 1
    assert "ImportError: write perfkit.integrations, not integrations" in done.stderr


@pytest.mark.parametrize("namespace", ["lightning.pytorch", "pytorch_lightning"])
def test_a_callback_given_as_lightnings_profiler_says_what_to_write(namespace: str, lightning: Any) -> None:
    trainer = importlib.import_module(namespace).Trainer
    with pytest.raises(UsageError, match=r"write Trainer\(callbacks=\[ProfilerCallback\(\)\]\)"):
        trainer(profiler=lightning.callback(), logger=False, enable_checkpointing=False)

    assert bool(lightning.callback())


def test_a_class_without_a_forward_cannot_be_a_range_and_a_module_class_can() -> None:
    class Tokenizer:
        """Not a module."""

    with pytest.raises(UsageError, match=r"Tokenizer is a class without a forward\(\).*above the methods"):
        perfkit.range(Tokenizer)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    assert perfkit.range(Model) is Model
    assert Model()(torch.ones(1)).item() == 2
