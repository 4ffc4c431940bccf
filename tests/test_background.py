"""Background processes: their output, their limits, and the sentence for each failure."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from perfkit._background import BackgroundError, BackgroundProcess


@pytest.mark.parametrize(
    ("module", "argument", "message"),
    [
        ("json.tool", "not-there.json", "not-there.json"),  # the last line of stderr
        ("http.server", "0", "it took longer than 1 s"),
        ("calendar", "2026", "larger than"),
    ],
)
def test_a_process_that_fails_hangs_or_prints_too_much_is_an_error_in_one_sentence(
    module: str, argument: str, message: str
) -> None:
    process = BackgroundProcess(module, argument, timeout_s=1 if module == "http.server" else 60, max_bytes=100)
    with pytest.raises(BackgroundError, match=message):
        process.output()


def test_it_runs_at_low_priority_with_one_thread_and_without_perfkit(tmp_path: Path) -> None:
    (tmp_path / "prints.py").write_text(
        "import os; print(os.nice(0), *map(os.environ.get, ('PERFKIT_DISABLE', 'OMP_NUM_THREADS')))"
    )

    process = BackgroundProcess("prints", timeout_s=60, folder=tmp_path)
    assert process.output() == b"10 1 1\n"


def test_modules_of_the_current_folder_do_not_replace_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "calendar.py").write_text("print('the file of somebody else')")
    monkeypatch.chdir(tmp_path)

    assert b"October" in BackgroundProcess("calendar", "2026", timeout_s=60).output()


def test_a_process_that_is_not_waited_for_is_killed_after_its_time() -> None:
    process = BackgroundProcess("http.server", "0", timeout_s=0.2)
    assert process.running
    time.sleep(0.3)

    assert not process.running
    with pytest.raises(BackgroundError):
        process.output()


def test_a_killed_process_has_no_output() -> None:
    process = BackgroundProcess("http.server", "0", timeout_s=60)
    process.kill()

    with pytest.raises(BackgroundError, match="ended with exit code"):
        process.output()
