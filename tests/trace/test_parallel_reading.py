"""Reading with several processes gives what reading with one does, or is given up for it."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from perfkit.trace import Trace
from perfkit.trace.kineto import _parallel_reading as workers
from perfkit.trace.kineto import read_kineto

COLUMNS = ("start_ns", "end_ns", "name", "track", "kind", "correlation", "device", "stream", "bytes", "sequence")


@pytest.fixture(autouse=True)
def _short_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    # Many tasks in a small file.
    monkeypatch.setattr(workers, "TASK", 60_000)
    monkeypatch.setattr(workers, "GZIP_TASK", 60_000)
    monkeypatch.setattr(workers, "SEARCH", 8_000)


def text_of(count: int = 2_000, step: str = "0.125", before: str = "", after: str = "") -> str:
    events = []
    for i in range(count):
        thread = f'"pid": {i % 3}, "tid": "{i % 5}"'
        args = f'"correlation": {i + 1}, "Sequence number": {i}, "Input Dims": [[{i % 9}, 2], [{{"a": "}}, {{"}}]]'
        events.append(
            f'  {{\n    "ph": "X", "cat": "{("cpu_op", "kernel")[i % 2]}", "name": "n{i % 11}", {thread},\n'
            f'    "ts": {4305290206062 + i}{step[1:]}, "dur": 0.5,\n    "args": {{\n      {args}\n    }}\n  }}'
        )
    events.append('  {\n    "ph": "M", "name": "thread_name", "pid": 1, "tid": "2", "args": {"name": "worker"}\n  }')
    return f'{{\n{before}  "traceEvents": [\n' + ",\n".join(events) + f"\n  ]{after}\n}}"


def assert_equal(one: Trace, other: Trace) -> None:
    for column in COLUMNS:
        np.testing.assert_array_equal(getattr(one, column), getattr(other, column), column)
    assert (one.names, one.tracks, one.lost, one.metadata) == (other.names, other.tracks, other.lost, other.metadata)


@pytest.mark.parametrize("packed", [False, True], ids=["json", "gzip"])
def test_two_processes_read_the_same_rows_arguments_and_metadata_as_one(tmp_path: Path, packed: bool) -> None:
    text = text_of(before='  "baseTimeNanoseconds": 1000,\n', after=', "distributedInfo": {"rank": 3}')
    file = tmp_path / "t.json"
    file.write_bytes(gzip.compress(text.encode()) if packed else text.encode())

    many, one = read_kineto(file, processes=2), read_kineto(file, processes=1)

    assert len(many) == 2_000
    assert_equal(many, one)
    rows = [1_999, 0, 1_234]
    assert many.args(rows) == one.args(rows)
    assert many.args(rows)[0]["Input Dims"] == [[1, 2], [{"a": "}, {"}]]
    assert many.metadata.rank == 3


def test_several_processes_are_really_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "t.json"
    file.write_text(text_of())
    monkeypatch.setattr("perfkit.trace.kineto._read_here", None)

    assert len(read_kineto(file, processes=2)) == 2_000


@pytest.mark.parametrize("step", ["0.125", "0.0001"])
def test_absolute_times_with_decimals_are_exact_in_processes_too(tmp_path: Path, step: str) -> None:
    file = tmp_path / "t.json"
    file.write_text(text_of(step=step).replace("4305", "1711305"))

    assert_equal(read_kineto(file, processes=2), read_kineto(file, processes=1))


def cut(text: str) -> str:
    return text[: len(text) * 6 // 10]


def bare_list(text: str) -> str:
    return json.dumps(json.loads(text)["traceEvents"])


def minified(text: str) -> str:
    return json.dumps(json.loads(text), separators=(",", ":"))


def long_tail(text: str) -> str:
    notes = [{"id": i, "name": "x" * 200} for i in range(2_000)]
    return text[:-2] + ', "deviceProperties": ' + json.dumps(notes) + "}"


def bad_escape(text: str) -> str:
    return text.replace('"n3"', '"C:\\x"', 400)


def not_a_number(text: str) -> str:
    return text.replace('"dur": 0.5', '"dur": NaN', 3)


def nested_events(text: str) -> str:
    inner = ", ".join(['{"ph": "X", "name": "inner", "ts": 1, "dur": 1}'] * 4_000)
    return text.replace('"Sequence number": 700,', f'"Sequence number": 700, "list": [{inner}],')


@pytest.mark.parametrize("damage", [cut, bare_list, minified, long_tail, bad_escape, not_a_number, nested_events])
def test_a_damaged_or_odd_file_reads_the_same_with_any_number_of_processes(tmp_path: Path, damage: object) -> None:
    file = tmp_path / "t.json"
    file.write_text(damage(text_of()))  # type: ignore[operator]  # one of the functions above

    assert_equal(read_kineto(file, processes=3), read_kineto(file, processes=1))


def test_without_an_interpreter_to_start_one_process_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "t.json"
    file.write_text(text_of())
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))

    assert len(read_kineto(file, processes=2)) == 2_000


def test_a_worker_that_is_killed_costs_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "t.json"
    file.write_text(text_of())
    start = workers._WorkerProcess.__init__

    def start_and_kill(self: workers._WorkerProcess) -> None:
        start(self)
        self.process.kill()

    monkeypatch.setattr(workers._WorkerProcess, "__init__", start_and_kill)

    assert len(read_kineto(file, processes=2)) == 2_000


def test_an_interrupt_leaves_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "t.json"
    file.write_text(text_of())
    started: list[workers._WorkerProcess] = []
    start = workers._WorkerProcess.__init__

    def note(self: workers._WorkerProcess) -> None:
        start(self)
        started.append(self)

    monkeypatch.setattr(workers._WorkerProcess, "__init__", note)

    def interrupted(done: int, total: int) -> None:
        if started:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_kineto(file, interrupted, processes=2)

    assert len(started) == 2
    assert all(worker.process.poll() is not None for worker in started)


def test_progress_of_several_processes_grows_up_to_the_size_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text(text_of())
    reports: list[tuple[int, int]] = []

    read_kineto(file, lambda done, total: reports.append((done, total)), processes=2)

    size = file.stat().st_size
    assert reports[-1] == (size, size)
    assert len(reports) > 4
    later = [done for done, _ in reports[1:]]
    assert later == sorted(later)


def test_a_script_without_a_main_guard_may_read_with_processes(tmp_path: Path) -> None:
    file, script = tmp_path / "t.json", tmp_path / "script.py"
    file.write_text(text_of())
    script.write_text(
        "from pathlib import Path\nfrom perfkit.trace.kineto import _parallel_reading as reading, read_kineto\n"
        f"reading.TASK, reading.SEARCH = 60_000, 8_000\nprint(len(read_kineto(Path({str(file)!r}), processes=2)))\n"
    )

    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)

    assert (done.stdout, done.stderr) == ("2000\n", "")


def test_workers_are_started_for_long_files_only(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text("[")
    text = workers.FileText(file)
    text.size = 100 << 20

    assert workers.count_workers(text, None) == 1
    assert workers.count_workers(text, 3) == 3
    text.size = 64 << 30
    # A child of multiprocessing is one of a pool that has shared out the cores.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(workers.count_workers, (text, None)) == 1
        pool.close()
        pool.join()
    assert 1 <= workers.count_workers(text, None) <= workers.MAX_WORKERS
