"""`perfkit ranks`, and `perfkit diagnose` on paths of several ranks: what they print, and how they end."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfkit.commands import main
from perfkit.diagnosis import Diagnosis
from perfkit.ranks.diagnosing import RanksDiagnosis
from tests.ranks.build import kineto_trace, late_rank_traces, run_folder

VERDICT = "Rank 2 (node0) waits for its data in most steps."


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERFKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("perfkit.ranks.mapping.cores", lambda: 1)  # processes take a second each


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.parametrize("command", ["ranks", "diagnose"])
@pytest.mark.parametrize("path", ["traces", "traces/*.json.gz"])
def test_a_folder_or_pattern_of_traces_has_one_verdict_and_the_traces_to_open(
    capsys: pytest.CaptureFixture[str], command: str, path: str
) -> None:
    late_rank_traces(Path("traces"))
    out = printed(capsys, command, path)
    assert VERDICT in out
    assert "perfkit diagnose traces/rank-2.json.gz  # rank 2, late" in out.replace(f"{Path.cwd()}/", "")
    assert len(out.splitlines()) <= 25
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("command", ["ranks", "diagnose"])
def test_json_is_the_diagnosis_of_the_ranks(capsys: pytest.CaptureFixture[str], command: str) -> None:
    late_rank_traces(Path("traces"))
    found = RanksDiagnosis.from_json(printed(capsys, command, "traces", "--json"))
    assert found.findings[0].ranks == (2,)


def test_a_run_of_several_ranks_has_both_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    run_folder(Path("run"), 3)
    out = printed(capsys, "diagnose", "run")
    assert out.startswith("run · steps.jsonl")
    assert f"3 ranks: {VERDICT}" in out
    assert out.endswith("perfkit ranks run\n")
    assert VERDICT in printed(capsys, "ranks", "run")


def test_without_a_path_the_newest_run_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    run_folder(Path("runs/a"), 3)
    assert main(["ranks"]) == 0
    out, err = capsys.readouterr()
    assert (VERDICT in out, err) == (True, "perfkit: the newest run is runs/a\n")


def test_a_run_of_one_rank_has_no_verdict_on_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    run_folder(Path("run"), 1)
    assert "ranks" not in printed(capsys, "diagnose", "run")


def test_the_json_of_a_run_stays_the_diagnosis_of_a_rank(capsys: pytest.CaptureFixture[str]) -> None:
    run_folder(Path("run"), 3)
    assert Diagnosis.from_json(printed(capsys, "diagnose", "run", "--json")).source == "run"


def test_a_second_call_resumes_with_what_the_first_has_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    late_rank_traces(Path("traces"))
    first = printed(capsys, "ranks", "traces")
    # Nothing can be read any more.
    monkeypatch.setattr("perfkit.ranks.mapping.read_trace", None)
    assert printed(capsys, "ranks", "traces", "--resume") == first


def test_processes_give_the_same_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    late_rank_traces(Path("traces"))
    assert printed(capsys, "ranks", "traces", "--on", "processes:2") == printed(capsys, "ranks", "traces")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ranks", "missing"], "missing does not exist"),
        (["ranks", "folder"], "holds no run (no rank-0"),
        (["ranks", "traces", "--on", "slurm:4"], "--on takes processes, processes:N"),
        (["ranks", "traces", "--on", "processes:0"], "--on takes processes, processes:N"),
        (["ranks"], "runs/ must hold a run"),
        (["ranks", "nosuch://bucket/run"], "not a URL that fsspec supports"),
        (["ranks", "traces", "--html", "no/such/folder/page.html"], "the page cannot be written"),
        (["ranks", "traces", "page.html"], "ranks takes one path; add --html to write a page to page.html"),
        (["ranks", "traces", "--json", "--markdown"], "choose one of --json and --markdown"),
        (["ranks", "traces", "--fail-on", "input-bound"], "for several ranks a severity (info, warning, critical) or"),
        (["diagnose", "traces", "--fail-on", "input-bound"], "for several ranks a severity (info, warning, critical)"),
        (["diagnose", "traces", "--out", "no/such/folder/d.json"], "cannot be written"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    Path("folder").mkdir()
    late_rank_traces(Path("traces"), ranks=2, late=1)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    # A page is written after the verdict was printed.
    assert (bool(out), err.count("\n")) == ("no/such/folder/page.html" in arguments, 1)
    assert err.startswith("perfkit: ")
    assert words in err


@pytest.mark.parametrize("command", ["ranks", "diagnose"])
def test_markdown_has_the_verdict_and_the_late_rank(capsys: pytest.CaptureFixture[str], command: str) -> None:
    late_rank_traces(Path("traces"))
    out = printed(capsys, command, "traces", "--markdown")
    assert out.startswith(f"**{VERDICT}")
    assert "| rank 2 | node0 | data |" in out


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        (["ranks", "traces", "--html"], "ranks.html"),
        (["diagnose", "traces", "--html"], "ranks.html"),
        (["ranks", "run", "--html"], "run/ranks.html"),
        (["ranks", "run", "page.html", "--html"], "page.html"),
    ],
)
def test_a_page_is_written_into_a_run_and_beside_nobodys_traces(
    capsys: pytest.CaptureFixture[str], arguments: list[str], file: str
) -> None:
    late_rank_traces(Path("traces"))
    run_folder(Path("run"), 3)
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert VERDICT in out
    assert err == f"perfkit: page {file}\n"
    assert VERDICT in Path(file).read_text()
    assert [*Path().rglob("*.html")] == [Path(file)]


@pytest.mark.parametrize("command", ["ranks", "diagnose"])
@pytest.mark.parametrize(
    ("word", "code"),
    # The late rank costs 20 of a step of 100 ms.
    [("slow-rank", 1), ("info", 1), ("warning", 1), ("critical", 0)],
)
def test_a_late_rank_fails_a_gate_of_its_severity(command: str, word: str, code: int) -> None:
    late_rank_traces(Path("traces"))
    assert main([command, "traces", "--fail-on", word]) == code


def test_healthy_ranks_pass_every_gate() -> None:
    late_rank_traces(Path("traces"), late=-1)
    assert main(["ranks", "traces", "--fail-on", "slow-rank", "--fail-on", "info"]) == 0


def test_one_rank_is_no_error_but_says_what_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    kineto_trace(Path("traces/rank-0.json"), 0)
    out = printed(capsys, "ranks", "traces")
    assert "at least two ranks are needed" in out
    assert "Next: bring the files of all ranks into one folder" in out
