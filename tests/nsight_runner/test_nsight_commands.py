"""`perfkit nsys` and `perfkit ncu` from end to end, with programs that stand for the tools."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perfkit.commands import main
from perfkit.measures.gathering import measure
from perfkit.measures.results.host import RangeTime

Export = Callable[..., Path]
FakeTool = Callable[..., Path]

#: A minute: what a busy machine may take to start Python.
PATIENCE_S = 60


def words_of(tools: Path, name: str = "nsys") -> list[str]:
    return (tools / f"{name}.argv").read_text().splitlines()


@pytest.fixture
def ready(fake_tool: FakeTool, export: Export) -> Callable[[str], Path]:
    """An nsys that does something, leaves a report, and exports it with a window in it."""

    def put(does: str = "") -> Path:
        tools = fake_tool("nsys", f'{does}\n: >"$out.nsys-rep"')
        rows = [
            ("before", 0, 50),
            ("perfkit.window", 100, 2_000_100),
            ("loss", 200, 1_000_200),
            ("after", 3_000_000, 4_000_000),
        ]
        export(tools / "ready", rows)
        return tools

    return put


def test_the_command_runs_as_it_is_printed_and_the_window_is_diagnosed(
    ready: Callable[[str], Path], script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = ready("")
    code = main(["nsys", "--out", "runs/x", "train.py", "--epochs", "3"])
    captured = capsys.readouterr()
    (printed,) = [line for line in captured.err.splitlines() if line.startswith("perfkit: running: ")]

    assert code == 0
    assert shlex.split(printed.removeprefix("perfkit: running: "))[2:] == words_of(tools)
    assert words_of(tools)[-7:] == ["run", "--quiet", "--out", "runs/x", "train.py", "--epochs", "3"]
    assert "exporting runs/x/nsys.nsys-rep to SQLite" in captured.err
    assert "runs/x/nsys.window.sqlite is the window, 2.0 ms" in captured.err
    assert captured.out.startswith("runs/x/nsys.window.sqlite")
    assert {row.name: row.count for row in measure(tmp_path / "runs/x/nsys.window.sqlite").all(RangeTime)} == {
        "perfkit.window": 1,
        "loss": 1,
    }


def test_a_program_without_cuda_recorded_whole_is_warned_of_unless_bounded(
    ready: Callable[[str], Path], script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ready("")
    main(["nsys", "train.py"])
    assert "records the whole program" in capsys.readouterr().err

    for bound in (["--stop-after", "20"], ["--duration", "5"], ["--capture-range", "nvtx"]):
        main(["nsys", *bound, "--out", bound[0], "train.py"])
        assert "records the whole program" not in capsys.readouterr().err


def test_print_prints_one_command_that_runs_and_starts_nothing(
    ready: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = ready("")
    assert main(["nsys", "--print", "--plain", "--out", "a b", "--", "sh", "-c", "echo $HOME"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert not (tools / "nsys.argv").exists()
    assert not (tmp_path / "a b").exists()

    (tmp_path / "a b").mkdir()
    subprocess.run(line, shell=True, check=True)
    assert words_of(tools)[-4:] == ["--output=a b/nsys", "sh", "-c", "echo $HOME"]


@pytest.mark.parametrize("name", ["nsys", "ncu"])
def test_print_needs_no_tool_and_without_print_it_is_reported_what_to_install(
    name: str, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("PERFKIT_NSYS", "")
    assert main([name, "--print", "train.py"]) == 0
    assert capsys.readouterr().out.startswith(f"{name} ")

    assert main([name, "train.py"]) == 2
    assert f"{name} is not on the PATH, nor in PERFKIT_{name.upper()}: install Nsight" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_the_exit_code_is_the_programs_also_where_nothing_was_recorded(
    ready: Callable[[str], Path], fake_tool: FakeTool, capsys: pytest.CaptureFixture[str]
) -> None:
    ready('"$@"; : >"$out.nsys-rep"; exit 7')
    assert main(["nsys", "--plain", "--out", "a", "sh", "-c", "exit 7"]) == 7

    fake_tool("nsys", '"$@"; exit $?')
    assert main(["nsys", "--plain", "--out", "b", "sh", "-c", "exit 7"]) == 7
    assert "left no report in b" in capsys.readouterr().err


def test_no_report_after_a_good_end_is_an_error_with_its_cause(
    fake_tool: FakeTool, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_tool("nsys", '"$@"')
    assert main(["nsys", "--plain", "--capture-range", "nvtx", "true"]) == 2
    assert "perfkit was not inside the program, and nothing else opened the capture range" in capsys.readouterr().err

    assert main(["nsys", "--capture-range", "nvtx", "--out", "b", "train.py"]) == 2
    assert "the program never imported torch" in capsys.readouterr().err


def test_an_empty_report_is_an_error_with_its_cause(
    fake_tool: FakeTool, export: Export, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(fake_tool("nsys", ': >"$out.nsys-rep"') / "ready", [])

    assert main(["nsys", "train.py"]) == 2
    assert "nsys.nsys-rep is empty: the program never imported torch" in capsys.readouterr().err


def test_what_nsys_has_not_imported_is_imported_with_what_lies_next_to_it(
    fake_tool: FakeTool, export: Export, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = fake_tool("nsys", 'echo recording >"$out.qdstrm"')
    export(tools / "ready", [("perfkit.window", 100, 200)])
    assert main(["nsys", "--out", "a", "train.py"]) == 2
    assert "QdstrmImporter is not installed with" in capsys.readouterr().err

    (tools / "host-linux-x64").mkdir()
    importer = tools / "host-linux-x64" / "QdstrmImporter"
    importer.write_text('#!/bin/sh\n: >"${2%.qdstrm}.nsys-rep"\n')
    importer.chmod(0o755)
    assert main(["nsys", "--out", "b", "train.py"]) == 0
    assert "importing b/nsys.qdstrm" in capsys.readouterr().err
    assert sorted(file.name for file in (tmp_path / "b").iterdir()) == ["nsys.nsys-rep", "nsys.window.sqlite"]


def test_a_report_is_replaced_only_on_request(
    ready: Callable[[str], Path], script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ready("")
    assert main(["nsys", "--out", "a", "train.py"]) == 0
    assert main(["nsys", "--out", "a", "train.py"]) == 2
    assert "a/nsys.nsys-rep exists: name another --out, or add --force-overwrite" in capsys.readouterr().err
    assert main(["nsys", "--out", "a", "--force-overwrite", "train.py"]) == 0


def test_each_rank_has_its_own_report_and_only_rank_0_reads(
    ready: Callable[[str], Path], script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = ready("")
    for rank, reads in (("1", False), ("10", False), ("0", True)):
        monkeypatch.setenv("RANK", rank)
        assert main(["nsys", "--out", "a", "train.py"]) == 0
        assert "--output=a/nsys-rank-%q{RANK}" in words_of(tools)
        assert bool(capsys.readouterr().out) is reads
    assert sorted(file.name for file in Path("a").glob("*.nsys-rep")) == [
        f"nsys-rank-{rank}.nsys-rep" for rank in ("0", "1", "10")
    ]


def test_behind_torchrun_the_lowest_ranks_report_is_read(
    ready: Callable[[str], Path], fake_tool: FakeTool, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ready("")
    launcher = fake_tool("torchrun") / "torchrun"
    launcher.write_text('#!/bin/sh\nshift 2\nfor RANK in 0 1; do export RANK; "$@"; done\n')

    assert main(["nsys", "--out", "a", "torchrun", "--standalone", "train.py"]) == 0
    captured = capsys.readouterr()
    assert "reports of 2 ranks are in a; that of rank 0 is diagnosed" in captured.err
    assert captured.out.startswith("a/nsys-rank-0.window.sqlite")


def test_ncu_is_bounded_and_its_table_is_diagnosed(
    fake_tool: FakeTool, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = fake_tool("ncu", ': >"$out.ncu-rep"')
    (tools / "ready").write_text(
        '"ID","Process ID","Process Name","Kernel Name","Device","CC","gpu__time_duration.sum"\n'
        '"","","","","","","nsecond"\n"0","7","python","gemm","0","9.0","2000"\n'
    )
    code = main(["ncu", "-k", "gemm", "--out", "a", "train.py"])
    captured = capsys.readouterr()

    assert code == 0, captured.err
    assert words_of(tools, "ncu")[:2] == ["--target-processes", "all"]
    assert "there is no CUDA device here" in captured.err
    assert "gemm" in (tmp_path / "a/ncu.csv").read_text()
    assert "gemm" in captured.out


def test_own_sections_are_searched_beside_those_of_ncu_and_ncu_is_asked_about_their_names(
    fake_tool: FakeTool, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = fake_tool("ncu")
    file = tools / "ncu"
    listing = 'case "$*" in *--list-sections*) echo "Mine  My Section  no  mine.section"; exit;; esac'
    file.write_text(file.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{listing}\n"))
    (tools / "sections").mkdir()
    (tmp_path / "mine").mkdir()
    words = ["ncu", "--section-folder", "mine", "--section"]

    main([*words, "Mine", "train.py"])  # the program that stands for ncu leaves no report
    searched = ["--section-folder", str(tools / "sections"), "--section-folder", "mine"]
    assert words_of(tools, "ncu")[2:10] == [*searched, "--set", "basic", "--section", "Mine"]
    assert "ncu's own folder" not in capsys.readouterr().err
    assert main([*words, "Mines", "train.py"]) == 2
    assert "got 'Mines': did you mean Mine?" in capsys.readouterr().err
    (tools / "sections").rmdir()
    main([*words, "Mine", "train.py"])
    assert "ncu's own folder of sections was not found" in capsys.readouterr().err


def test_ncu_that_may_not_read_the_counters_is_explained(
    fake_tool: FakeTool, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_tool("ncu", "echo ERR_NVGPUCTRPERM")

    assert main(["ncu", "train.py"]) == 2
    assert "If it printed ERR_NVGPUCTRPERM, only an administrator may read" in capsys.readouterr().err


def test_ctrl_c_ends_the_program_and_what_was_recorded_is_diagnosed(
    ready: Callable[[str], Path], tmp_path: Path
) -> None:
    # The shell that stands for nsys waits for the program; the signal must reach both.
    ready('trap \': >"$out.nsys-rep"; exit 130\' INT; "$@"')
    program = f'{shlex.quote(sys.executable)} -c \'import time; open("started", "w"); time.sleep({PATIENCE_S})\''
    perfkit = subprocess.Popen(
        [sys.executable, "-m", "perfkit", "nsys", "--plain", "--out", "a", "sh", "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    late = time.monotonic() + PATIENCE_S
    while not (tmp_path / "started").exists() and time.monotonic() < late:
        time.sleep(0.02)
    os.kill(perfkit.pid, signal.SIGINT)
    out, err = perfkit.communicate(timeout=PATIENCE_S)

    assert perfkit.returncode == 130, err
    assert "is the window" in err
    assert out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["nsys", "--capture-range-end", "stop-shutdown", "--capture-range", "nvtx", "train.py"], "ends the training"),
        (["nsys", "no-such-program"], "there is no program no-such-program"),
        (["nsys", "--schedule", "soon", "train.py"], "--schedule takes wait,warmup,active"),
        (["nsys", "--nsys-args", "--x='a", "train.py"], "--nsys-args takes options as in a shell"),
        (["ncu", "--all-kernels", "-c", "3", "train.py"], "exclude each other"),
        (["ncu", "--no-such-option", "train.py"], "--no-such-option"),
        (["nsys"], "Missing argument"),
    ],
)
def test_bad_input_is_one_line_and_2(
    words: list[str], error: str, fake_tool: FakeTool, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_tool("nsys")
    fake_tool("ncu")

    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert error in line


def test_an_nsys_that_is_too_old_for_an_option_is_named_with_its_version_and_one_that_has_it(
    fake_tool: FakeTool, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_tool("nsys", version="2019.5.1", help="-t, --trace= -s, --sample=")

    assert main(["nsys", "--delay", "3", "train.py"]) == 2
    assert not (tmp_path / "runs").exists()
    assert "tools/nsys (2019.5) has no --delay: it is in nsys 2022.4; install that or a later version" in " ".join(
        capsys.readouterr().err.split()
    )
