"""Pages that `perfkit diagnose` and `perfkit compare` write: where they go, and what is said where they cannot."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from perfkit.commands import main


def test_diagnose_html_writes_the_page_into_a_run_folder_and_a_trace_s_page_here(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(run, folder)
    (folder / "report.html").unlink()
    monkeypatch.chdir(tmp_path)

    assert main(["diagnose", str(folder), "--html"]) == 0
    assert main(["diagnose", str(folder / "rank-0" / "window-0.pt.trace.json.gz"), "--html"]) == 0
    assert main(["diagnose", str(folder), "--html", "elsewhere.html"]) == 0

    assert [(tmp_path / name).is_file() for name in ("copy/report.html", "window-0.html", "elsewhere.html")] == [
        True
    ] * 3
    assert sorted(file.name for file in (folder / "rank-0").iterdir()) == sorted(
        file.name for file in (run / "rank-0").iterdir()
    )
    assert "page" in capsys.readouterr().err


def test_open_gives_the_page_to_the_browser(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("webbrowser.open", asked.append)

    assert main(["diagnose", str(run), "--open", str(tmp_path / "page.html")]) == 0

    assert asked == [(tmp_path / "page.html").as_uri()]


def test_a_page_that_cannot_be_written_is_bad_input(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(run), "--html", os.devnull + "/page.html"]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert main(["diagnose", str(run), "page.html"]) == 2
    assert "add --html" in capsys.readouterr().err


def test_compare_html_writes_a_page_of_both_and_open_shows_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("webbrowser.open", asked.append)
    monkeypatch.chdir(tmp_path)

    assert main(["compare", str(run), str(run), "--html"]) == 0
    assert main(["compare", str(run), str(run), "--open", "elsewhere.html"]) == 0

    assert (tmp_path / "comparison.html").read_text() == (tmp_path / "elsewhere.html").read_text()
    assert asked == [(tmp_path / "elsewhere.html").as_uri()]
    assert "page comparison.html" in capsys.readouterr().err
    assert main(["compare", str(run), str(run), "page.html"]) == 2
    assert "add --html" in capsys.readouterr().err
    assert main(["compare", str(run), str(run), "--html", os.devnull + "/page.html"]) == 2
