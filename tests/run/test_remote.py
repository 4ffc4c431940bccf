"""Runs and traces behind URLs, on fsspec's own file system in memory."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

import perfkit
from perfkit.errors import RunError
from perfkit.measures.gathering import measure
from perfkit.measures.results.measurements import TraceFacts
from perfkit.measures.results.steps import TypicalStep
from perfkit.run import remote
from perfkit.run.rank_writer import RankWriter
from perfkit.run.records import Phases, Step
from perfkit.run.remote import copy_out, is_url, list_files, local_copy


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty file system in memory, and a cache folder of the test's own."""
    monkeypatch.setenv("PERFKIT_CACHE_DIR", str(tmp_path / "cache"))
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


def make_run(folder: Path) -> Path:
    writer = RankWriter(folder, 0)
    writer.append_steps([Step(step=n, start_ns=n, wall_ns=10, phases_ns=Phases(forward=10)) for n in range(9)])
    writer.close()
    return folder


@pytest.mark.parametrize(
    ("path", "answer"), [("s3://b/x", True), ("memory://x", True), ("runs/x", False), ("C:/x", False), ("a:b", False)]
)
def test_a_url_is_distinguished_from_a_path(path: str, answer: bool) -> None:
    assert is_url(path) is answer


@pytest.mark.parametrize("read", [local_copy, lambda url: list_files(url, 1)], ids=["copied", "listed"])
@pytest.mark.parametrize("name", ["x", "x/*.json"])
def test_an_address_where_nothing_listens_is_said_not_to_answer(
    read: Callable[[str], Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFKIT_CACHE_DIR", str(tmp_path / "cache"))
    with socket.socket() as one:  # bound, so that nothing else listens there
        one.bind(("127.0.0.1", 0))
        with pytest.raises(RunError, match=r"does not answer \(.*Connect call failed.*\): check the address"):
            read(f"http://127.0.0.1:{one.getsockname()[1]}/{name}")


def test_an_address_that_never_answers_is_waited_for_no_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_ANSWERS_S", 0.2)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        with pytest.raises(RunError, match="does not answer in 0 s: check the address"):
            list_files(f"http://127.0.0.1:{one.getsockname()[1]}/x", 1)


def test_what_a_file_system_refuses_in_words_of_its_own_is_no_traceback(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoCredentialsError(Exception):
        pass

    def info(path: str, **more: Any) -> Any:
        raise NoCredentialsError("Unable to locate credentials")

    monkeypatch.setattr(memory, "info", info)

    with pytest.raises(RunError, match="memory://x cannot be read: Unable to locate credentials"):
        list_files("memory://x", 1)


def test_a_run_behind_a_url_is_measured(tmp_path: Path, memory: Any) -> None:
    copy_out(make_run(tmp_path / "x"), "memory://bucket/x")
    measured = measure("memory://bucket/x")

    assert measured.source == "memory://bucket/x"
    step = measured.get(TypicalStep)
    assert step is not None
    assert step.wall_ns == 10


def test_a_trace_behind_a_url_is_read(memory: Any) -> None:
    memory.pipe_file(
        "/t.json",
        b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}',
    )
    facts = measure("memory://t.json").get(TraceFacts)

    assert facts is not None
    assert facts.events == 1


def test_only_the_files_of_a_run_are_fetched(tmp_path: Path, memory: Any) -> None:
    copy_out(make_run(tmp_path / "x"), "memory://x")
    memory.pipe_file("/x/secret.txt", b"not ours")
    memory.pipe_file("/x/rank-0/../../evil.json", b"{}")
    copied = local_copy("memory://x")

    assert [str(file.relative_to(copied)) for file in copied.rglob("*") if file.is_file()] == ["rank-0/steps.jsonl"]


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("memory://nothing", perfkit.TraceError, "does not exist"),
        ("memory://empty", perfkit.RunError, "holds no run"),
        ("nosuchsystem://x", perfkit.UsageError, "is not a URL that fsspec supports"),
    ],
)
def test_a_url_that_cannot_be_read_is_one_clear_error(
    memory: Any, url: str, error: type[Exception], words: str
) -> None:
    memory.pipe_file("/empty/notes.txt", b"")

    with pytest.raises(error, match=words):
        measure(url)


def train(prof: perfkit.profile) -> None:
    with prof:
        for _ in range(8):
            torch.ones(3).sum()
            prof.step()


def test_a_run_recorded_to_a_url_arrives_there_with_its_window(
    tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train(
        perfkit.profile(
            "memory://bucket/mine", schedule=perfkit.schedule(wait=1, warmup=1, active=1, repeat=1), quiet=True
        )
    )

    names = {file.removeprefix("/bucket/mine/") for file in memory.find("/bucket/mine")}
    assert {"run.json", "rank-0/rank.json", "rank-0/steps.jsonl", "rank-0/window-0.pt.trace.json.gz"} <= names
    assert (tmp_path / "runs" / "mine" / "run.json").is_file()


def test_a_failed_copy_is_reported_once_and_training_goes_on(
    tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*anything: Any, **more: Any) -> None:
        raise PermissionError("read-only bucket")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(type(memory), "put_file", refused)
    train(
        perfkit.profile(
            "memory://bucket/mine", schedule=perfkit.schedule(wait=1, warmup=1, active=1, repeat=2), quiet=True
        )
    )

    assert capsys.readouterr().err.count("PermissionError: read-only bucket (training goes on)") == 1
