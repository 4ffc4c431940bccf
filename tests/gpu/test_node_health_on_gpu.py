"""The node's health beside a run on a GPU: the card that the process computes on, whatever CUDA calls it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

import perfkit
from perfkit.run.reading import read_run


@pytest.mark.semantics
def test_a_run_knows_its_card_where_nvml_is_installed_and_else_nothing(tmp_path: Path) -> None:
    weight = torch.randn(4096, 4096, device="cuda")
    with perfkit.profile(tmp_path / "x", recorders=(), quiet=True) as prof:
        for _ in prof.steps(range(200)):
            weight @ weight
            torch.cuda.synchronize()

    rank = read_run(tmp_path / "x").ranks[0].rank
    assert rank is not None
    if importlib.util.find_spec("pynvml") is None:
        assert rank.node is None
        return
    assert rank.node is not None
    assert rank.node.problem is None
    assert rank.node.name == torch.cuda.get_device_name(0)
    assert rank.node.samples[0].sm_mhz is not None
