"""The examples of README.md and docs/ run as a reader would run them, and their command lines exist."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from perfkit.commands import command_line
from tests.docs.pages import ROOT, Block, Page, find_pages

PAGES = {page.name: page for page in find_pages()}
#: Kinds of comments above a block; `pages` describes them.
KINDS = {"setup", "pytest", "file", "program", "torchrun", "edit", "output", "not run", "demo"}
EVERY_BLOCK = [(name, block) for name, page in PAGES.items() for block in page.blocks]


def having(kind: str) -> list[Any]:
    return [pytest.param(block, id=f"{name}:{block.line}") for name, page in PAGES.items() for block in page.of(kind)]


def run_program(folder: Path, *command: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_pages_have_examples_of_every_kind() -> None:
    # A comment that is misspelled would leave its example out.
    comments = {
        kind for page in PAGES.values() for kind in re.findall(r"^<!-- ([a-z]+(?: run)?)", page.path.read_text(), re.M)
    }
    assert comments == KINDS
    assert {name for name, page in PAGES.items() if page.plain()} >= {"README.md", "docs/how-to/own_loop.md"}


def test_every_block_of_python_compiles() -> None:
    for name, block in EVERY_BLOCK:
        if block.language == "python":
            compile("\n" * (block.line - 1) + block.text, name, "exec")


@pytest.mark.parametrize("page", [page for page in PAGES.values() if page.plain()], ids=lambda page: page.name)
def test_the_examples_of_a_page_run_one_after_the_other(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for block in page.of("file"):
        (tmp_path / block.note).write_text(block.text)
    program = tmp_path / "examples.py"
    program.write_text("\n".join([page.setup, *(block.text for block in page.plain())]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    runpy.run_path(str(program), run_name="__main__")


@pytest.mark.parametrize("block", having("pytest"))
def test_the_tests_that_a_page_shows_pass(block: Block, tmp_path: Path) -> None:
    (tmp_path / "test_shown.py").write_text(f"{block.note}\n{block.text}")

    printed = run_program(tmp_path, "-m", "pytest", "-p", "no:cacheprovider", "--perfkit-update-syncs", "test_shown.py")

    assert "2 passed" in printed


@pytest.mark.slow
@pytest.mark.parametrize("block", having("program"))
def test_a_program_of_a_page_runs_and_leaves_its_run(block: Block, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(block.text)

    printed = run_program(tmp_path, "train.py")

    assert "perfkit:" not in printed  # nothing of perfkit's failed
    assert (tmp_path / "runs" / block.note / "diagnosis.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("block", having("torchrun"))
def test_a_program_of_several_ranks_is_recorded_on_each(block: Block, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(block.text)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

    run_program(tmp_path, *launcher, "-m", "perfkit", "run", "--out", "runs/ddp", "train.py")

    assert all((tmp_path / "runs" / "ddp" / f"rank-{rank}" / "steps.jsonl").stat().st_size for rank in range(2))


#: Written by programs, which do not show command lines.
GENERATED = {"docs/faults.md", "docs/hostile_input.md"}


def outside_of_blocks(page: Page) -> str:
    return re.sub(r"```.*?```", "", page.path.read_text(), flags=re.S)


def command_lines() -> list[tuple[str, str]]:
    """(page, command line of perfkit) of every console block, and of code in the text."""
    found = []
    for name, page in PAGES.items():
        if name in GENERATED:
            continue
        for block in page.blocks:
            if block.language == "console":
                found += [(name, line[2:]) for line in block.text.splitlines() if line.startswith("$ ")]
        found += [
            (name, code) for code in re.findall(r"`((?:[A-Z_]+=\S+ )?perfkit [a-z][^`]*)`", outside_of_blocks(page))
        ]
    return [(name, line) for name, line in found if "perfkit " in line and not line.startswith("pip ")]


def test_every_command_line_that_is_shown_exists_with_its_options() -> None:
    shown = command_lines()
    for name, line in shown:
        words = shlex.split(line.partition("perfkit ")[2].partition(" &&")[0], comments=True)
        command = command_line.get_command(click.Context(command_line), words[0])
        assert command is not None, f"{name}: {line}"
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        # What follows a program is the program's own.
        own = words[1 : next((at for at, word in enumerate(words) if word == "--" or word.endswith(".py")), len(words))]
        used = {word.partition("=")[0] for word in own if word.startswith("--") or re.fullmatch(r"-[a-z]", word)}
        assert used <= known, f"{name}: {line}"
    assert len({words for _, words in shown}) > 40


def test_a_link_between_pages_leads_to_a_file() -> None:
    for name, page in PAGES.items():
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", outside_of_blocks(page)):
            if "://" not in target and "_generated" not in target:
                assert (page.path.parent / target).exists(), f"{name}: {target}"
