"""The two homes against hostile input: opening a file, and cleaning a text; and their edges."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sqlite3
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from perfkit._html import html_table, html_text
from perfkit._regular_file import open_regular, read_regular
from perfkit._stderr import print_message
from perfkit._text import LONGEST_SENTENCE, clean, cleaned, escaped_json, printable
from perfkit._versioned_json import decode_json, decode_versioned
from perfkit.commands._progress import reading_bar
from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.errors import RunError
from perfkit.integrations.tensorboard.writers import to_markdown
from perfkit.reports.console import print_line, print_text
from perfkit.reports.markdown import write_markdown
from perfkit.reports.terminal import print_diagnosis
from perfkit.rules._engine import RuleNotAsked
from perfkit.run.ending import process_runs
from perfkit.run.folder_claim import claim_folder
from perfkit.run.reading import RankFolder, read_run
from perfkit.run.records import Rank, Step
from perfkit.run.remote import local_copy
from perfkit.trace import read_trace
from tests.hostile.cases import EVENT, sound_run

UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
HOSTILE = "[red]x[/red] [link=file:///x]\u202eabc\u2066\x1b[31m\x9b31m\r\n| a | <b> `c` " + "n" * 5_000


# -- files


@pytest.mark.skipif(sys.platform == "win32", reason="needs named pipes and /proc")
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link out", "linked folder", "too large"])
def test_only_regular_files_of_the_folder_up_to_a_size_are_opened(tmp_path: Path, kind: str) -> None:
    folder, outside = tmp_path / "run", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "x").write_bytes(b"secret")
    path = folder / "x"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "link out":
        path.symlink_to(outside / "x")
    elif kind == "linked folder":
        (folder / "sub").symlink_to(outside)
        path = folder / "sub" / "x"
    else:
        path.write_bytes(b"x" * 2_000)
    signal.alarm(20)
    try:
        with pytest.raises(OSError, match=r"not a file|leads out of the folder|larger than 0 MiB"):
            read_regular(path, 1_000, inside=folder)
    finally:
        signal.alarm(0)


def test_a_file_that_is_replaced_by_a_pipe_after_the_check_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"")
    sound = os.stat(tmp_path / "file")
    monkeypatch.setattr(os, "stat", lambda path, **more: sound)

    with pytest.raises(OSError, match="it is a pipe, not a file"):
        open_regular(tmp_path / "pipe")


def test_a_link_that_stays_in_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").symlink_to("a")

    assert read_regular(tmp_path / "b", 9, inside=tmp_path) == b"1"


def test_a_file_of_proc_is_read_no_further_than_its_limit() -> None:
    with pytest.raises(OSError, match="larger than 0 MiB"):
        read_regular("/proc/self/maps", 10)


def test_a_file_without_a_size_is_read_whole() -> None:
    assert read_regular("/proc/self/cmdline", 10**6) == Path("/proc/self/cmdline").read_bytes()


def test_a_small_file_takes_the_memory_of_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1" * 1000)
    tracemalloc.start()
    try:
        read_regular(tmp_path / "x", 2**24)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 2**20


def test_a_small_trace_takes_the_memory_of_what_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [{**EVENT, "ts": n} for n in range(9)]}))
    read_trace(file)  # what is imported at first use
    tracemalloc.start()
    try:
        assert len(read_trace(file)) == 9
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 1.5 * 2**20  # a file is read in blocks of a MiB


def test_a_run_next_to_a_pipe_is_claimed_without_waiting_for_it(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    os.mkfifo(tmp_path / "x" / "run.json")

    assert claim_folder(tmp_path / "x", "new", overwrite=False).name == "x-2"


def test_a_pipe_in_place_of_the_claim_of_a_folder_blocks_nobody(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    os.mkfifo(tmp_path / "x" / ".launch")

    assert claim_folder(tmp_path / "x", "new", overwrite=False).name == "x-2"


def test_a_copy_of_a_run_behind_a_url_leaves_links_and_large_files_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFKIT_CACHE_DIR", str(tmp_path / "cache"))
    run = sound_run(tmp_path)
    (run / "rank-0" / "lines.json").unlink()
    (run / "rank-0" / "lines.json").symlink_to("/dev/zero")

    with pytest.raises(RunError, match="a pipe, a device or a link, not a file"):
        local_copy(run.as_uri())

    system = fsspec.filesystem("memory")
    system.pipe_file("/huge", b"{}")
    monkeypatch.setattr(type(system), "info", lambda self, path: {"type": "file", "size": 10**12})
    with pytest.raises(RunError, match="larger than 16384 MiB"):
        local_copy("memory://huge")


def test_a_trace_that_a_diagnosis_names_is_opened_only_if_it_is_a_window(tmp_path: Path) -> None:
    run = sound_run(tmp_path)
    (run / "rank-0" / "window-0.pt.trace.json").symlink_to("/etc/passwd")
    rank = RankFolder(run / "rank-0", 0)

    assert rank.windows == ()
    assert rank.lost == ["window-0.pt.trace.json: it is a link, a pipe or a device, not read"]


# -- JSON


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 500_000,
        b'{"x":' * 500_000,
        b'{"rank": ' + b"9" * 400 + b"}",
        b"\xff",
        b"",
        b'{"versions": {"\\ud800": 1}}',
    ],
)
def test_json_from_outside_has_one_error(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_json(text, Rank)


@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 400, str(2**62 + 1)])
def test_a_number_that_no_array_holds_is_refused_wherever_it_is(number: str) -> None:
    text = f'{{"schema": 1, "x": [{{"y": {number}}}]}}'

    with pytest.raises(msgspec.DecodeError, match="out of range"):
        decode_json(text, dict[str, Any])
    with pytest.raises(RunError, match="is damaged"):
        decode_versioned(text, dict[str, Any], 1, "it", "make it again")  # type: ignore[type-var]


def test_a_long_number_inside_a_text_is_only_text() -> None:
    assert decode_json(json.dumps({"x": "9" * 400, "y": 1_711_964_646_000_000_000}), dict[str, Any])["x"] == "9" * 400


@pytest.mark.parametrize(
    "change", [{"wall_ns": -1}, {"steps": 0}, {"phases_ns": {"data": -1}}, {"step": -1}, {"samples": -8}]
)
def test_a_row_with_a_negative_amount_is_damaged(change: dict[str, Any]) -> None:
    row = {"step": 1, "start_ns": 1, "wall_ns": 1, "phases_ns": {}, **change}

    with pytest.raises(msgspec.ValidationError, match="Expected `int` >="):
        decode_json(json.dumps(row), Step)


# -- SQLite


def test_blobs_in_an_export_are_never_values(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "r.sqlite") as database:
        database.execute("create table StringIds (id, value)")
        database.execute("insert into StringIds values (1, zeroblob(1000)), (2, 'gemm')")
        database.execute("create table CUPTI_ACTIVITY_KIND_KERNEL (start, end, demangledName, deviceId)")
        database.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values (1, 2, 2, 0), (3, zeroblob(99), 1, 0)")
    database.close()

    trace = read_trace(tmp_path / "r.sqlite")

    assert trace.names == ("", "gemm")
    assert (len(trace), trace.skipped) == (1, 1)


# -- text


@given(st.text(max_size=200))
@example(HOSTILE)
@example("\ud800\u202e")
def test_nothing_unsafe_is_left_in_a_text_that_is_shown(text: str) -> None:
    for shown in (printable(text), clean(text), html_text(text), html_table([text], [[text]])):
        assert not UNSAFE.search(shown)
        shown.encode()
    assert not UNSAFE.search(json.dumps(cleaned([{text: [text]}]), ensure_ascii=False))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
@example(HOSTILE)
def test_json_that_is_shown_has_the_same_values_and_nothing_unsafe(text: str) -> None:
    shown = escaped_json(msgspec.json.encode({"x": text}).decode())

    assert msgspec.json.decode(shown) == {"x": text}
    assert not UNSAFE.search(shown)


def test_a_name_of_megabytes_is_cut_and_the_sentence_around_it_stays() -> None:
    shown = printable(f"before {'x' * 10**7} after")

    assert shown.startswith("before xxx")
    assert shown.endswith("… after")
    assert len(shown) < 500
    assert len(printable("word " * 10**6)) == LONGEST_SENTENCE


def console_of(out: io.StringIO) -> Console:
    return Console(file=out, width=100, force_terminal=True, color_system="truecolor")


def shown_by(diagnosis: Diagnosis, way: str, capsys: pytest.CaptureFixture[str]) -> str:
    """A diagnosis as each way shows it."""
    out = io.StringIO()
    if way == "terminal":
        # Without colours: every escape sequence is then from the outside.
        print_diagnosis(diagnosis, Console(file=out, width=100), all=True)
    elif way == "markdown":
        write_markdown(diagnosis, out)
    elif way == "json":
        out.write(diagnosis.to_json())
    elif way == "notebook":
        out.write(diagnosis._repr_html_())
    elif way == "repr":
        out.write(repr(diagnosis))
    elif way == "tensorboard":
        out.write(to_markdown(diagnosis))
    elif way == "stderr":
        print_message(diagnosis.verdict)
        out.write(capsys.readouterr().err)
    return out.getvalue()


@pytest.mark.parametrize("way", ["terminal", "markdown", "json", "notebook", "repr", "tensorboard", "stderr"])
def test_text_from_outside_is_shown_without_acting_in_every_way(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    not_asked = RuleNotAsked(rule=HOSTILE, needs=(HOSTILE,))
    shown = shown_by(
        Diagnosis(source=HOSTILE, verdict=HOSTILE, missing=(HOSTILE,), not_asked=(not_asked,)), way, capsys
    )

    assert not UNSAFE.search(shown.replace("\n", ""))
    assert "red" in shown
    assert "x[/red]" in shown.replace("\\", "")  # brackets are no markup, or escaped
    assert way == "json" or "n" * LONGEST_SENTENCE not in shown


@given(st.text(alphabet="[]/\\ab=#@:red\u202e\x1b\n", max_size=30))
@example("[/]")
@example("[link=file:///etc]x[/link]")
def test_brackets_are_printed_as_they_are(text: str) -> None:
    for print_one in (print_line, print_text):
        out = io.StringIO()
        print_one(Text(text), console_of(out))
        plain = re.sub(r"\x1b\[[0-9;]*m|\s", "", out.getvalue())
        assert re.sub(r"\s", "", printable(text.replace("\n", " "))).replace("?", "") == plain.replace("?", "")


def test_the_progress_bar_shows_the_name_of_a_file_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr("perfkit.commands._progress.stderr_console", lambda: console_of(out))
    monkeypatch.setattr("perfkit.commands._progress._PATIENCE_S", 0)

    with reading_bar("reading [/red]\u202e") as report:
        report(1, 2)

    assert "[/red]?" in out.getvalue()


def test_a_run_whose_name_is_not_text_has_a_diagnosis(tmp_path: Path) -> None:
    run = sound_run(tmp_path)
    odd = run.rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"))

    assert "steps" in diagnose(odd).to_json()
    assert read_run(odd).ranks


def test_a_process_id_that_no_system_has_is_that_of_no_process() -> None:
    assert not process_runs(2**62)


@pytest.mark.parametrize(
    "args",
    [
        {"Input Dims": [[2, 3], [3, 2]], "Input type": [["float"], {}]},
        {"Input Dims": [[2**47] * 60, [2**59]], "Input type": ["double", "double"]},
        {"Input Dims": [[2, 3]], "Input type": ["float"], "Input Strides": [[10**30, 1]], "Concrete Inputs": [7] * 12},
    ],
)
def test_arguments_of_ops_that_no_profiler_writes_are_no_arguments(tmp_path: Path, args: dict[str, Any]) -> None:
    ops = ("aten::mm", "aten::convolution_backward", "aten::to", "aten::copy_")
    events = [{**EVENT, "name": ops[n % 4], "ts": 1000 * n, "dur": 900, "args": args} for n in range(40)]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, "record_shapes": 1, "traceEvents": events}))

    assert diagnose(file).outcome in ("unexplained", "cannot-tell", "findings")
