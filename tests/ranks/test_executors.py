"""Names of executors: what they open, and what is said where nothing listens or an engine is not installed."""

from __future__ import annotations

import socket
import sys
import time
from types import ModuleType

import pytest

from perfkit.errors import MissingDependency, RunError, UsageError
from perfkit.ranks.executors import Processes, open_executor


def test_processes_have_the_asked_number() -> None:
    with open_executor("processes:3") as executor:
        assert isinstance(executor, Processes)
        assert executor.count == 3


@pytest.mark.parametrize("name", ["processes:0", "processes:x", "process:2", "dask", "ray:", "", "dask:"])
def test_another_name_is_refused_with_those_that_exist(name: str) -> None:
    with pytest.raises(UsageError, match=r"--on takes processes, processes:N, dask:HOST"), open_executor(name):
        pass


@pytest.mark.parametrize(("name", "module"), [("dask:tcp://10.0.0.1:8786", "distributed"), ("ray:auto", "ray")])
def test_an_engine_that_is_not_installed_names_its_extra(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    extra = name.partition(":")[0]
    with pytest.raises(MissingDependency, match=rf"pip install 'perfkit\[{extra}\]'"), open_executor(name):
        pass


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if both were installed; no connection gets as far as to use them."""
    distributed, ray = ModuleType("distributed"), ModuleType("ray")
    distributed.Client = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "distributed", distributed)
    monkeypatch.setitem(sys.modules, "ray", ray)


@pytest.mark.usefixtures("engines")
@pytest.mark.parametrize("kind", ["dask:tcp://", "dask:", "ray:ray://"])
def test_an_address_where_nothing_listens_is_said_within_ten_seconds(kind: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.monotonic()
    with (
        pytest.raises(RunError, match=rf"nothing answers at .*:{port} \("),
        open_executor(f"{kind}127.0.0.1:{port}"),
    ):
        pass
    assert time.monotonic() - began < 10


@pytest.mark.usefixtures("engines")
@pytest.mark.parametrize("address", ["here", "tcp://host", "tcp://host:port", ":80"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="is not an address"), open_executor(f"dask:{address}"):
        pass
