"""A shell completes commands and options of perfkit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfkit.commands import main


@pytest.mark.parametrize(
    ("words", "completed"),
    [("perfkit dia", "diagnose"), ("perfkit diagnose --ht", "--html"), ("perfkit tr", "try")],
)
def test_a_shell_completes_commands_and_options(words: str, completed: str) -> None:
    asked = {
        "_PERFKIT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1),
    }  # fmt: skip
    program = "import sys; sys.argv = ['perfkit']; from perfkit.commands import main; sys.exit(main())"

    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )

    assert f"plain,{completed}" in done.stdout.split(), done.stderr


@pytest.mark.parametrize(("shell", "file"), [("bash", ".bashrc"), ("fish", ".config/fish/completions/perfkit.fish")])
def test_completion_is_installed_once_after_what_the_file_has(
    shell: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    (tmp_path / ".bashrc").write_text("alias ll='ls -l'")

    assert [main(["--show-completion"]), main(["--install-completion"]), main(["--install-completion"])] == [0, 0, 0]
    line, *said = capsys.readouterr().out.splitlines()
    assert said == [f"Completion is installed in {tmp_path / file}. It takes effect in new shells."] * 2
    before = ["alias ll='ls -l'"] if shell == "bash" else []
    assert [one for one in (tmp_path / file).read_text().splitlines() if one] == [*before, line]


def test_the_line_that_is_installed_makes_bash_complete(tmp_path: Path) -> None:
    (tmp_path / "perfkit").write_text(f'#!/bin/sh\nexec {sys.executable} -m perfkit "$@"\n')
    (tmp_path / "perfkit").chmod(0o755)
    asked = (
        'eval "$(perfkit --show-completion)"; COMP_WORDS=(perfkit hist); COMP_CWORD=1;'
        ' "$(complete -p perfkit | sed "s/.*-F \\([^ ]*\\).*/\\1/")" perfkit hist perfkit; echo "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "SHELL": "/bin/bash", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", asked], env=environment, capture_output=True, text=True, check=False)

    assert done.stdout == "history\n", done.stderr


def test_a_shell_that_does_not_complete_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHELL", "/bin/csh")

    assert main(["--install-completion"]) == 2
    assert "$SHELL must be bash, zsh, fish" in capsys.readouterr().err
