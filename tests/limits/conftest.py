"""Limits of a machine that does not exist, and a cache of the test's own."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfkit import _env
from perfkit.limits.limits_cache import METHOD, limits_file
from perfkit.run.records import MachineLimits, Rate


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache that can be written."""
    monkeypatch.setenv(_env.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def limits_with() -> Callable[..., MachineLimits]:
    """Limits of this machine: 1 GFLOP/s at 1 kFLOP, 100 GFLOP/s at 1 GFLOP; 100 GB/s up to 1 MB, 10 GB/s at 100 MB."""

    def make(**changes: Any) -> MachineLimits:
        products = (Rate(10**3, 1e9), Rate(10**9, 100e9))
        moves = (Rate(10**6, 100e9), Rate(10**8, 10e9))
        usual = MachineLimits(
            method=METHOD,
            host=socket.gethostname(),
            cpu=_env.cpu_name(),
            torch=_env.package_version("torch") or "",
            threads=1,
            measured_at_ns=1,
            disturbed=False,
            products={"float32": products, "float64": (Rate(10**9, 50e9),)},
            convolutions={"float32": (Rate(10**9, 80e9),)},
            depths={"float32": (Rate(10, 8e9), Rate(1_000, 80e9))},
            functions={"exp": (Rate(10**6, 10e9),)},
            layers={"max pool": (Rate(10**6, 2e9),), "attention": (Rate(10**6, 1e9),), "softmax": (Rate(10**6, 5e9),)},
            bandwidth={"read": moves, "copy": moves, "update": (Rate(10**6, 200e9), Rate(10**8, 20e9))},
            op_ns=1_000,
            node_ns=2_000,
        )
        return msgspec.structs.replace(usual, **changes)

    return make


@pytest.fixture
def keep(cache: Path) -> Callable[[MachineLimits], Path]:
    """Put limits into the cache."""

    def write(limits: MachineLimits) -> Path:
        file = limits_file(limits.torch, limits.threads)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.encode(limits))
        return file

    return write
