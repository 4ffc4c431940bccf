"""Figure data: bounded, nothing hidden that is long, and no file read that a finding did not name."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from perfkit._format import rate
from perfkit._location import Location
from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.errors import RunError
from perfkit.findings import Finding
from perfkit.integrations.tensorboard.drawings import draw
from perfkit.reports.figures import SCHEMA, FigureData, figures_of, read_figures, write_figures
from perfkit.reports.figures.columns import packed, unpacked
from perfkit.reports.figures.data import Items, Lane
from perfkit.reports.page import read
from perfkit.reports.terminal import print_diagnosis
from perfkit.run import step_file
from perfkit.run.records import Phases, Rank, Run, Step, Window

MS = 1_000_000
TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"


def event(name: str, start_us: float, length_us: float, cat: str = "cpu_op", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": start_us, "dur": length_us, **more}


def write_trace(path: Path, events: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def write_run(folder: Path, rows: list[Step], world_size: int = 1, **about: Any) -> Path:
    (folder / "rank-0").mkdir(parents=True)
    run = Run(launch_id="x", command=("train.py",), folder=str(folder), world_size=world_size)
    (folder / "run.json").write_bytes(msgspec.json.encode(run))
    rank = Rank(rank=0, launch_id="x", host="here", pid=1, start_ns=0, steps=len(rows), **about)
    (folder / "rank-0" / "rank.json").write_bytes(msgspec.json.encode(rank))
    (folder / "rank-0" / "steps.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return folder


def rows(count: int, wall_ns: int = 10 * MS, **of_step: int) -> list[Step]:
    return [
        Step(
            step=i,
            start_ns=i * wall_ns,
            wall_ns=(ns := of_step.get(f"step_{i}", wall_ns)),
            phases_ns=Phases(data=ns // 4, forward=ns - ns // 4),
        )
        for i in range(count)
    ]


def lane(data: FigureData, role: str) -> Lane:
    assert data.timeline is not None
    return next(lane for lane in data.timeline.lanes if lane.role == role)


def starts(items: Items) -> list[int]:
    found: list[int] = np.cumsum(unpacked(items.start)).tolist()
    return found


def total(column: bytes) -> int:
    return int(unpacked(column).sum())


@given(st.lists(st.integers(0, 2**53)))
def test_a_column_holds_what_was_packed_into_it(numbers: list[int]) -> None:
    assert unpacked(packed(np.array(numbers, np.int64))).tolist() == numbers


@pytest.mark.parametrize(("column", "why"), [(b"\x80", "ends inside"), (b"\xff" * 9 + b"\1", "more than 63 bits")])
def test_a_column_that_cannot_be_is_refused(column: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        unpacked(column)


@pytest.fixture(scope="module")
def long_trace(tmp_path_factory: pytest.TempPathFactory) -> FigureData:
    """350,000 ops of 1 us, one of them of 9.5 us: more than a page holds one by one."""
    ops = ",".join(
        f'{{"ph":"X","cat":"cpu_op","name":"aten::op{i % 7}","pid":1,"tid":1,"ts":{10 * i},"dur":1}}'
        for i in range(350_000)
    )
    more = [event("ProfilerStep#3", 0, 3.5e6, "user_annotation"), event("aten::the_slow_one", 700_011, 8.5)]
    path = tmp_path_factory.mktemp("long") / "t.json"
    path.write_text(f'{{"schemaVersion": 1, "traceEvents": [{ops},{json.dumps(more)[1:-1]}]}}')
    return figures_of(diagnose(path))


def test_merged_events_are_counted_and_their_time_is_kept(long_trace: FigureData) -> None:
    host = lane(long_trace, "host")

    assert host.events == 350_001
    assert host.merged is not None
    assert len(starts(host.items)) + total(host.merged.count) == 350_001
    assert total(host.items.length) + total(host.merged.busy) == 350_000 * 1_000 + 8_500
    assert len(starts(host.items)) + len(starts(host.merged)) <= 300_000
    assert len(long_trace.to_json()) < 5_000_000


def test_the_longest_event_is_drawn_by_itself_however_many_there_are(long_trace: FigureData) -> None:
    timeline, host = long_trace.timeline, lane(long_trace, "host")
    assert timeline is not None

    lengths = unpacked(host.items.length)
    at = int(lengths.argmax())
    assert (lengths[at], starts(host.items)[at]) == (8_500, 700_011_000)
    assert timeline.names[unpacked(host.items.name)[at]] == "aten::the_slow_one"
    assert any("shorter neighbours together" in note for note in timeline.notes)


def test_items_come_in_order_and_inside_the_window(long_trace: FigureData) -> None:
    host = lane(long_trace, "host")
    assert long_trace.timeline is not None
    for items in filter(None, (host.items, host.merged)):
        begins = starts(items)
        assert begins == sorted(begins)
        assert begins[0] >= 0
        assert begins[-1] + unpacked(items.length)[-1] <= long_trace.timeline.span_ns


def test_many_names_do_not_make_the_figures_large(tmp_path: Path) -> None:
    path = write_trace(
        tmp_path / "t.json", [event(f"input {i} " + "x " * 500, 10 * i, 1 + i % 3) for i in range(4_000)]
    )

    data = figures_of(diagnose(path))

    assert len(data.to_json()) < 2_000_000
    assert data.timeline is not None
    assert "(one of many other names)" in data.timeline.names


def test_a_long_run_is_a_bounded_number_of_rows_and_its_slowest_step_is_kept(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", rows(20_000, step_13333=900 * MS))

    steps = figures_of(diagnose(folder)).steps

    assert steps is not None
    assert len(steps.wall_ns) <= 1_000
    assert sum(steps.steps) == 20_000
    slowest = max(range(len(steps.wall_ns)), key=lambda i: steps.longest_ns[i])
    assert (steps.longest_ns[slowest], steps.longest_step[slowest]) == (900 * MS, 13_333)


def test_a_run_of_any_length_is_drawn_evenly_and_every_report_says_which_steps_are_known_as_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_file, "READ_ROWS", 2_000)
    monkeypatch.setattr(step_file, "MERGED_ROWS", 500)
    folder = write_run(tmp_path / "x", rows(20_000))

    found = diagnose(folder)
    data = figures_of(found)

    said = "steps 10 to 18,999 are known as means of up to 64 steps: a slow step among them shows in a mean only"
    assert said in found.missing
    assert said in json.loads(found.to_json())["missing"]
    assert said in data.missing
    terminal = io.StringIO()
    print_diagnosis(found, Console(file=terminal, width=80), all=True)
    assert said in " ".join(terminal.getvalue().split())
    assert data.steps is not None
    # Most rows are of the newest steps; most points are not.
    assert sum(data.steps.steps) == 20_000
    assert max(data.steps.steps) <= 64 + 20


def test_recorded_steps_are_marked_and_kept_out_of_the_mean_of_their_row(tmp_path: Path) -> None:
    slow = Step(step=5, start_ns=50 * MS, wall_ns=500 * MS, phases_ns=Phases(forward=500 * MS), kind="window")
    plain = rows(4_000)
    window = Window(index=0, first_step=5, last_step=5, file="window-0.pt.trace.json.gz", complete=True)
    folder = write_run(tmp_path / "x", [*plain[:5], slow, *plain[6:]], windows=(window,))

    steps = figures_of(diagnose(folder)).steps

    assert steps is not None
    assert (steps.state[1], steps.wall_ns[1], steps.longest_ns[1]) == ("window", 10 * MS, 500 * MS)
    assert [(mark.first_step, mark.file) for mark in steps.windows] == [(5, "rank-0/window-0.pt.trace.json.gz")]


def test_missing_ranks_and_a_missing_window_are_reported(tmp_path: Path) -> None:
    data = figures_of(diagnose(write_run(tmp_path / "x", rows(40), world_size=3)))

    ranks = next(table for table in data.tables if table.id == "ranks")
    assert [(row[0], row[-1]) for row in ranks.rows] == [
        (0, "still running, or killed"),
        (1, "no files in the folder"),
        (2, "no files in the folder"),
    ]
    assert data.timeline is None
    assert any("no timeline" in sentence for sentence in data.missing)


def test_a_trace_that_was_deleted_since_is_reported_and_the_rest_is_drawn(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", [event("aten::mm", 0, 5)])
    answer = diagnose(path)
    path.unlink()

    data = figures_of(answer)

    assert data.verdict == answer.verdict
    assert data.timeline is None
    assert "does not exist" in data.missing[-1]


def found_at(file: str, line: int) -> Diagnosis:
    finding = Finding(
        rule="input-bound",
        severity="warning",
        message="m",
        advice="a",
        confidence="high",
        spent=Location(file=file, line=line),
    )
    return Diagnosis(source="runs/x", verdict="v", findings=(finding,))


def test_an_excerpt_shows_the_line_with_its_neighbours_and_says_how_sure_it_is(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("".join(f"line({number})\n" for number in range(1, 30)))

    excerpt = figures_of(found_at(str(source), 10)).findings[0].excerpt

    assert excerpt is not None
    assert excerpt.lines == tuple(f"line({number})" for number in range(7, 14))
    assert (excerpt.first_line, excerpt.note) == (7, "as it is now: when this was recorded is not known")


def test_a_source_that_changed_since_the_recording_is_not_shown(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("x = 1\n")
    recorded_s = 1_700_000_000
    frame = event(f"{source}(1): step", recorded_s * 1e6, 50, "python_function", args={"Python id": 1})
    path = write_trace(tmp_path / "t.json", [frame, event("aten::mm", recorded_s * 1e6 + 1, 5)])
    answer = msgspec.structs.replace(diagnose(path), findings=found_at(str(source), 1).findings)

    os.utime(source, (recorded_s - 10, recorded_s - 10))
    before = figures_of(answer).findings[0].excerpt
    os.utime(source, (recorded_s + 10, recorded_s + 10))
    after = figures_of(answer).findings[0].excerpt

    assert before is not None
    assert after is not None
    assert (before.lines, before.note) == (("x = 1", ""), "")
    assert (after.lines, after.note) == ((), "the file changed since the recording: its lines are not shown")


def test_no_source_is_opened_where_that_is_not_wanted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1\n")

    excerpt = figures_of(found_at(str(tmp_path / "train.py"), 1), read_sources=False).findings[0].excerpt

    assert excerpt is not None
    assert (excerpt.lines, excerpt.note) == ((), "source files are not read here")


@pytest.mark.parametrize(
    "name", ["secret.txt", "../../../../etc/passwd", "/etc/passwd", "folder.py", "link.py", "a\0.py", "binary.py"]
)
def test_nothing_but_python_source_is_read_for_an_excerpt(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.txt").write_text("the secret\n")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "link.py").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "binary.py").write_bytes(b"the secret\0\xff")
    file = name if name.startswith("/") else f"{tmp_path}/{name}"

    data = figures_of(found_at(file, 1))

    excerpt = data.findings[0].excerpt
    assert excerpt is not None
    assert excerpt.lines == ()
    assert excerpt.note
    assert b"the secret" not in data.to_json()


def test_figures_are_written_and_read_back(tmp_path: Path, diagnosis: Diagnosis) -> None:
    data = figures_of(diagnosis)

    write_figures(tmp_path, data)

    assert read_figures(tmp_path) == data


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is damaged"),
        (f'{{"schema": {SCHEMA}}}', "is damaged"),
        ('{"schema": 1}', f"reads {SCHEMA}"),
        (f'{{"schema": {SCHEMA + 1}}}', f"reads {SCHEMA}"),
    ],
)
def test_what_is_no_figure_data_or_of_another_version_is_refused_with_the_reason(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "figures.json").write_text(text)

    with pytest.raises(RunError, match=message):
        read_figures(tmp_path)


def test_a_run_folder_of_an_older_perfkit_is_diagnosed_and_drawn_again(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", rows(40))
    old = {"schema": 1, "source": "x", "verdict": "old", "findings": [{"rule": "input-bound", "lost_ns": 5}]}
    (folder / "diagnosis.json").write_text(json.dumps(old))
    (folder / "figures.json").write_text(json.dumps({**old, "schema": 2, "title": "x", "per": "step", "wall_ns": 1}))

    drawn = json.loads(draw(str(folder)))

    assert drawn["schema"] == SCHEMA
    assert drawn["verdict"].startswith("A step takes 10.0 ms")
    assert [finding["cost_ns"] > MS for finding in drawn["findings"]] == [True]
    assert "schema 2" in drawn["missing"][0]


def test_the_page_draws_the_schema_that_is_written() -> None:
    assert f"const SCHEMA = {SCHEMA};" in read("page.js")


def test_names_show_what_they_would_hide(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", [event("safe\u202egnp.exe\x1b[31m\u200b", 0, 5)])

    data = figures_of(diagnose(path))

    assert data.timeline is not None
    assert data.timeline.names == ("safe\\u202egnp.exe\\u001b[31m\\u200b",)


def test_the_flame_graph_sums_equal_call_paths_and_steps_are_one(tmp_path: Path) -> None:
    events = []
    for step in range(3):
        events.append(event(f"ProfilerStep#{step}", 100 * step, 100, "user_annotation"))
        events += [event("aten::linear", 100 * step + at, 20) for at in (10, 50)]
        events += [event("aten::addmm", 100 * step + at, 8) for at in (12, 52)]
    flame = figures_of(diagnose(write_trace(tmp_path / "t.json", events))).flame

    assert flame is not None
    paths = [(flame.names[flame.name[i]], flame.parent[i], flame.total[i], flame.count[i]) for i in range(3)]
    assert paths == [("step", -1, 300_000, 3), ("aten::linear", 0, 120_000, 6), ("aten::addmm", 1, 48_000, 6)]


@pytest.mark.skipif(not TRACES.is_dir(), reason="shared traces are not next to the checkout")
@pytest.mark.parametrize("name", ["a100-2ranks-nccl.json.gz", "h100-inference-image.json.gz", "mi250-rocm.json.gz"])
def test_the_lanes_of_a_gpu_trace_hold_the_idle_time_that_was_measured(name: str) -> None:
    answer = diagnose(TRACES / name)
    data = figures_of(answer)

    assert data.timeline is not None
    idle_ns = [
        total(lane.items.length) + (total(lane.merged.busy) if lane.merged is not None else 0)
        for lane in data.timeline.lanes
        if lane.role == "idle"
    ]
    assert idle_ns == [device.idle_ns for device in answer.figures.devices if device.idle_ns]
    assert not [sentence for sentence in data.missing if "could not be drawn" in sentence]
    assert len(data.to_json()) < 2_500_000


@pytest.mark.parametrize(
    ("count", "written"),
    [(0, "0"), (5.934, "5.93"), (94.84, "94.8"), (99.97, "100"), (1_419.6, "1,420"), (11_170, "11,170")],
)
def test_a_rate_is_written_without_an_exponent(count: float, written: str) -> None:
    assert rate(count) == written
