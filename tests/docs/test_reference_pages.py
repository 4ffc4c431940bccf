"""The reference of the site has every rule, change, command and public name, because it is written from them."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import perfkit
from perfkit.commands import _COMMANDS
from perfkit.rules._engine import find_rules
from perfkit.trial.catalog import find_changes
from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def reference() -> Iterator[ModuleType]:
    """The Sphinx extension, which needs no Sphinx to write its pages."""
    path = ROOT / "docs" / "_ext" / "reference_pages.py"
    spec = importlib.util.spec_from_file_location("reference_pages", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference_pages"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["reference_pages"]


@pytest.fixture(scope="module")
def pages(reference: ModuleType) -> dict[str, str]:
    found = reference.pages()
    assert isinstance(found, dict)
    return found


def test_each_rule_has_a_section_on_the_page_of_its_family(pages: dict[str, str]) -> None:
    for rule in find_rules():
        assert f"(rule-{rule.id})=\n## {rule.id}\n" in pages[f"rules/{rule.family}.md"]
        assert f"(#rule-{rule.id})" in pages["rules/index.md"]


def test_the_paragraphs_of_every_rule_are_on_its_page(pages: dict[str, str]) -> None:
    for rule in find_rules():
        labels = set(re.findall(r"^(Problem|Fix|Saving|Source):", rule.explanation, re.M))
        section = pages[f"rules/{rule.family}.md"].split(f"\n## {rule.id}\n")[1].split("\n## ")[0]
        assert {label for label in labels if f"**{label}.**" in section} == labels, rule.id


def test_each_change_has_a_section(pages: dict[str, str]) -> None:
    assert re.findall(r"^\(change-(.*)\)=$", pages["changes.md"], re.M) == list(find_changes())


def test_a_rule_and_the_change_that_answers_it_link_to_each_other(pages: dict[str, str]) -> None:
    assert "(#change-workers)" in pages["rules/data.md"]
    assert "(#rule-input-bound)" in pages["changes.md"]


def test_each_command_has_a_section_with_its_options(pages: dict[str, str]) -> None:
    assert re.findall(r"^\(command-(.*)\)=$", pages["commands.md"], re.M) == list(_COMMANDS)
    assert "`--fail-on RULE|SEVERITY`" in pages["commands.md"]


def test_no_text_of_a_command_is_shown_as_code(pages: dict[str, str]) -> None:
    assert re.findall(r"^    .*$", pages["commands.md"], re.M) == []


def test_each_public_name_is_described_once(pages: dict[str, str]) -> None:
    described = re.findall(r"^\.\. auto\w+:: perfkit\.(\w+)$", pages["python.md"], re.M)

    assert sorted(described) == sorted({*perfkit.__all__} - {"__version__"})


def test_the_figures_are_those_of_the_benchmarks(pages: dict[str, str]) -> None:
    benchmarks = (ROOT / "benchmarks" / "README.md").read_text()
    judging = benchmarks.split("\n### judging\n")[1]

    rows = re.findall(r"^\| (right cause first) \| (\S+) \| (\S+) \|$", pages["figures.md"], re.M)
    assert rows
    assert f"| {rows[0][0]} | {rows[0][1]} |" in judging


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("It has `a*b` and a*b.", r"It has `a*b` and a\*b."),
        ("Fix: do it.\n\n    x = 1\n\n    y = 2", "**Fix.** Do it.\n\n```python\nx = 1\n\ny = 2\n```"),
        ("A list:\n\n  word   what it means", "A list:\n\n```text\nword   what it means\n```"),
        ("Give --steps or <name>.", r"Give `--steps` or \<name\>."),
    ],
)
def test_a_docstring_becomes_markdown(reference: ModuleType, docstring: str, expected: str) -> None:
    assert reference.markdown(docstring) == expected


def test_a_page_that_is_no_longer_written_is_removed(reference: ModuleType, tmp_path: Path) -> None:
    class App:
        srcdir = tmp_path

    (tmp_path / "_generated" / "rules").mkdir(parents=True)
    (tmp_path / "_generated" / "rules" / "gone.md").write_text("a family that was renamed")

    reference.write_pages(App)

    assert {path.relative_to(tmp_path / "_generated").as_posix() for path in tmp_path.rglob("*.md")} == set(
        reference.pages()
    )
