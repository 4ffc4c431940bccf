"""The built site: no warnings, every part of the reference on it, nothing loaded from outside."""

from __future__ import annotations

import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import perfkit
from perfkit.rules._engine import find_rules
from perfkit.trial.catalog import find_changes
from tests.docs.pages import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html", "-d", str(out / "cache")]
    done = subprocess.run([*command, "docs", str(out / "html")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out / "html"


def text_of(page: Path) -> str:
    return page.read_text("utf-8")


def test_every_page_that_is_written_is_on_the_site(site: Path) -> None:
    built = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")}
    written = {
        path.relative_to(ROOT / "docs").with_suffix("").as_posix()
        for path in (ROOT / "docs").rglob("*.md")
        if "_build" not in path.parts and path.stem != "figures"
    }
    assert written <= built


def test_a_page_can_be_reached_from_the_start(site: Path) -> None:
    # A page without a place in a toctree is a warning; one that is hidden has no link.
    reached, ahead = set(), [site / "index.html"]
    while ahead:
        page = ahead.pop()
        if page in reached or not page.is_file():
            continue
        reached.add(page)
        links = re.findall(r'href="([^":#?]+\.html)', text_of(page))
        ahead += [(page.parent / link).resolve() for link in links]
    built = {path.resolve() for path in site.rglob("*.html") if "_static" not in path.parts}
    unreached = built - {path.resolve() for path in reached}
    assert {path.name for path in unreached} <= {"genindex.html", "search.html", "py-modindex.html"}


def test_rules_and_changes_have_an_anchor_of_their_own(site: Path) -> None:
    for rule in find_rules():
        assert f'id="rule-{rule.id}"' in text_of(site / "_generated" / "rules" / f"{rule.family}.html")
    changes = text_of(site / "_generated" / "changes.html")
    assert [change for change in find_changes() if f'id="change-{change}"' not in changes] == []


def test_public_names_can_be_looked_up_by_other_sites(site: Path) -> None:
    # objects.inv: four lines of text, then zlib; what intersphinx of another project reads.
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    names = {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}
    assert {f"perfkit.{name}" for name in perfkit.__all__ if name != "__version__"} <= names


def test_a_class_has_its_inherited_methods_and_no_attribute_of_perfkits_own(site: Path) -> None:
    described = set(re.findall(r'id="perfkit\.profile\.(\w+)"', text_of(site / "_generated" / "python.html")))

    assert described >= {"step", "key_averages", "export_chrome_trace", "folder", "diagnosis"}
    assert not described & {"off", "started_by", "loading_ns", "diagnoses"}


def test_a_page_loads_nothing_from_outside(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]*\ssrc="([^"]+)"', text_of(page))
        loaded += re.findall(r'<link[^>]*\shref="([^"]+)"', text_of(page))
        assert [one for one in loaded if re.match(r"(?:https?:)?//", one)] == [], page
    for style in (site / "_static").rglob("*.css"):
        assert "url(http" not in style.read_text("utf-8", "replace"), style


def test_a_docstring_leaves_no_markup_behind(site: Path) -> None:
    python = re.sub(r"<[^>]+>", "", text_of(site / "_generated" / "python.html"))

    assert "``" not in python
    assert not re.findall(r"(?<!\w)`[a-z_.]+`", python)


def test_an_example_in_a_docstring_is_code(site: Path) -> None:
    python = text_of(site / "_generated" / "python.html")

    assert "prof.steps" in python
    assert python.count('class="highlight-python') >= 4
