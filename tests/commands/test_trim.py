from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perfkit.commands import main
from perfkit.commands.trim import _default_output

if TYPE_CHECKING:
    from .conftest import Cli

EVENTS = [
    {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "pid": 1, "tid": 1, "ts": 100 * n, "dur": 100}
    for n in range(3, 6)
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.pt.trace.json"
    path.write_text(json.dumps({"traceEvents": EVENTS}))
    return path


def test_steps_are_cut_to_a_file_default_output_and_this_is_reported(cli: Cli, trace: Path) -> None:
    done = cli("trim", trace.name, "--steps", "4:6")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "t.trimmed.pt.trace.json: 2 of 3 events of steps 4 to 5, 0.0 of 0.0 MB\n"
    assert json.loads((trace.parent / "t.trimmed.pt.trace.json").read_text())["traceEvents"] == EVENTS[1:]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "select what to keep"),
        (["--steps", "6:4"], "--steps takes a step or first:stop"),
        (["--steps", "a"], "--steps takes a step or first:stop"),
        (["--time", "10:20"], "--time takes start:end with units"),
        (["--time", "20ms:10ms"], "--time takes start:end with units"),
        (["--steps", "9"], "has steps 3 to 5"),
        (["--steps", "3", "--out", "t.pt.trace.json"], "never overwritten"),
        (["--steps", "3", "--out", "there.json"], "there.json exists"),
        (["--steps", "3", "--out", "no/such/folder.json"], "cannot be written"),
    ],
)
def test_what_cannot_work_is_one_line_and_exit_code_2(
    trace: Path,
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(trace.parent)
    Path("there.json").write_text("{}")
    before = trace.read_bytes()

    code = main(["trim", trace.name, *arguments])

    said = capsys.readouterr().err
    assert code == 2
    assert words in said
    assert said.count("\n") == 1
    assert trace.read_bytes() == before


def test_an_nsys_export_is_refused_with_what_to_give(
    shared_nsys: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["trim", str(shared_nsys), "--steps", "1", "--out", str(tmp_path / "x.json")]) == 2
    assert "traces of torch.profiler" in capsys.readouterr().err


@pytest.fixture
def shared_nsys() -> Path:
    path = Path(__file__).resolve().parents[2].parent / "shared" / "traces" / "nsys-mock.sqlite"
    if not path.exists():
        pytest.skip("shared traces are not next to the checkout")
    return path


def test_units_and_open_ends_of_time(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = trace.parent / "out.json"

    for time, left in (("0.1ms:", 2), (":150us", 2), ("0s:1ns", 1), ("0.25ms:1s", 1)):
        assert main(["trim", str(trace), "--time", time, "--out", str(out), "--overwrite"]) == 0
        assert len(json.loads(out.read_text())["traceEvents"]) == left
    assert capsys.readouterr().err == ""


def test_a_kind_that_is_not_there_is_reported(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trim", str(trace), "--drop", "python_function, user_annotation", "--steps", "4"]) == 2
    assert "none of the requested events" in capsys.readouterr().err
    assert main(["trim", str(trace), "--drop", "python_function"]) == 0
    assert "has no events of kind python_function" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("x.pt.trace.json.gz", "x.trimmed.pt.trace.json.gz"),
        ("x.json", "x.trimmed.json"),
        ("a.b.json.gz", "a.b.trimmed.json.gz"),
        ("trace", "trace.trimmed"),
    ],
)
def test_the_new_name_keeps_the_ending_that_tools_know(name: str, output: str) -> None:
    assert _default_output(Path("d") / name) == Path("d") / output


def test_help_says_what_is_kept(cli: Cli) -> None:
    shown = cli("trim", "--help").stdout

    assert "4:6 keeps 4 and 5" in " ".join(shown.split())
    assert "all device work launched in them" in " ".join(shown.split())
