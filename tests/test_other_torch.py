"""``make test-torch``: which packages go with another torch, and what is said where it cannot be had."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HERE / "other_torch.py"), *arguments], capture_output=True, check=False, text=True
    )


def pins(version: str, python: str) -> list[str]:
    code = f"import other_torch; print(other_torch.constraints({version!r}, {python}), end='')"
    done = subprocess.run([sys.executable, "-c", code], cwd=HERE, capture_output=True, check=True, text=True)
    return done.stdout.splitlines()


def test_only_torch_is_another_one_where_the_others_go_with_it() -> None:
    pinned = [line for line in (HERE.parent / "constraints.txt").read_text().splitlines() if "==" in line]

    assert [one for one in pins("2.8.0", "(3, 11)") if one not in pinned] == ["torch===2.8.0"]
    assert len(pins("2.8.0", "(3, 11)")) == len(pinned)


def test_an_older_torch_has_an_older_transformers() -> None:
    found = pins("2.4.1", "(3, 11)")

    assert "transformers<5" in found
    assert not [one for one in found if one.startswith(("huggingface_hub", "tokenizers", "accelerate"))]
    assert "transformers<5" not in pins("2.6.0", "(3, 11)")


def test_a_torch_that_asks_for_one_release_of_sympy_gets_it() -> None:
    assert not [one for one in pins("2.6.0", "(3, 11)") if one.startswith("sympy")]
    assert [one for one in pins("2.7.0", "(3, 11)") if one.startswith("sympy")]


def test_an_older_python_has_no_pins_but_torchs() -> None:
    assert pins("2.8.0", "(3, 10)") == ["torch===2.8.0"]


def test_without_a_version_the_usage_is_said() -> None:
    for arguments in ((), ("",), ("newest",), ("2.6",)):
        done = script(*arguments)
        assert (done.returncode, done.stderr) == (2, "usage: make test-torch VERSION=2.6.0 [PYTHON=python3.10]\n")
