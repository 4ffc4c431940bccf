"""What the tool starts: `perfkit run` is put into a Python program, and into nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perfkit.errors import UsageError
from perfkit.nsight_runner.target_program import plan_program

ME = sys.executable
RUN = ("-m", "perfkit", "run", "--quiet")


def planned(*words: str, module: bool = False, plain: bool = False) -> tuple[tuple[str, ...], tuple[str, ...]]:
    program = plan_program(words, module=module, plain=plain).with_options(["--quiet"])
    return program.launcher, program.words


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_script(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(script.parent)


@pytest.mark.parametrize(
    ("words", "started"),
    [
        (("train.py", "--epochs", "3"), (ME, *RUN, "train.py", "--epochs", "3")),
        ((ME, "train.py"), (ME, *RUN, "train.py")),
        ((ME, "-u", "-X", "dev", "train.py", "-m"), (ME, "-u", "-X", "dev", *RUN, "train.py", "-m")),
        ((ME, "-m", "pkg.train", "x"), (ME, *RUN, "-m", "pkg.train", "x")),
        ((ME, "-m", "perfkit", "run", "train.py"), (ME, *RUN, "train.py")),
        ((ME, "-c", "pass"), (ME, "-c", "pass")),
        (("sh", "train.sh"), ("sh", "train.sh")),
    ],
)
def test_perfkit_run_is_put_into_python_programs(words: tuple[str, ...], started: tuple[str, ...]) -> None:
    assert planned(*words) == ((), started)


def test_a_module_and_a_plain_program_are_started_with_this_python() -> None:
    assert planned("pkg.train", "-x", module=True) == ((), (ME, *RUN, "-m", "pkg.train", "-x"))
    assert planned("train.py", plain=True) == ((), (ME, "train.py"))


@pytest.mark.parametrize(
    ("words", "launcher", "started"),
    [
        (
            ("--nproc-per-node", "2", "--standalone", "train.py", "--lr", "1"),
            ("--nproc-per-node", "2", "--standalone", "--no-python"),
            (*RUN, "train.py", "--lr", "1"),
        ),
        (("--nproc_per_node=2", "-m", "pkg.train"), ("--nproc_per_node=2", "--no-python"), (*RUN, "-m", "pkg.train")),
        (("--no-python", ME, "train.py"), ("--no-python",), (*RUN, "train.py")),
    ],
)
def test_torchrun_starts_the_tool_for_each_rank(
    words: tuple[str, ...], launcher: tuple[str, ...], started: tuple[str, ...]
) -> None:
    begin = (ME, "-m", "torch.distributed.run")

    assert planned(*begin, *words) == ((*begin, *launcher), (ME, *started))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("no.py",), "the script no.py does not exist"),
        (("no-such-program",), "there is no program no-such-program"),
        ((ME, "no.py"), "the script no.py does not exist"),
        ((ME, "-m", "torch.distributed.run", "--standalone"), "names no script"),
    ],
)
def test_what_cannot_be_started_is_refused(words: tuple[str, ...], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        plan_program(words, module=False, plain=False)


def test_a_program_that_is_not_python_gets_a_message_that_perfkit_is_not_inside(
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = plan_program(["sh", "train.sh"], module=False, plain=False)

    assert not program.inside
    assert "sh is not started as a Python program: perfkit is not inside" in capsys.readouterr().err


def test_a_python_without_perfkit_runs_the_script_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fake_tool: Callable[..., Path]
) -> None:
    other = fake_tool("python3.9", "exit 1") / "python3.9"

    assert planned(str(other), "train.py") == ((), (str(other), "train.py"))
    assert "has no perfkit" in capsys.readouterr().err
