"""A shell completes commands and options of perfkit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("words", "completed"),
    [("perfkit dia", "diagnose"), ("perfkit diagnose --ht", "--html"), ("perfkit tr", "try")],
)
def test_a_shell_completes_commands_and_options(words: str, completed: str) -> None:
    asked = {
        "_PERFKIT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1),
    }  # fmt: skip
    program = "import sys; sys.argv = ['perfkit']; from perfkit.commands import main; sys.exit(main())"

    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )

    assert completed in done.stdout.split(), done.stderr
