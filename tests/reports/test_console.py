"""The terminal gets text as it is: nothing in it is markup, a picture or a link, whoever wrote it."""

from __future__ import annotations

import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.table import Table

from perfkit.commands import doctor, main
from perfkit.reports.console import console_for

#: What rich reads in a text that is markup, between any other characters.
MARKED = st.lists(
    st.one_of(
        st.sampled_from(["[red]", "[/]", "[nvml]", "[bold", "\\[", "[link=x]", "[@click=f]", ":key:", ":warning:"]),
        st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), max_size=5),
    ),
    min_size=1,
    max_size=8,
).map("".join)


@given(MARKED)
@example("perfkit: page runs/[bold]x/page.html")
def test_what_looks_like_markup_is_printed_as_it_is(text: str) -> None:
    shown = io.StringIO()
    console = console_for(shown, columns=200, terminal=True)
    table = Table(box=None, show_header=False, padding=0)
    table.add_row(text)

    console.print(text)
    console.print(f"perfkit: {text}", style="dim")
    console.print(table)

    plain, dim, cell = shown.getvalue().splitlines()
    assert plain == text
    assert dim == f"\x1b[2mperfkit: {text}\x1b[0m"
    assert cell.rstrip() == text


def test_doctor_prints_brackets_and_cuts_nothing_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    long = "torch.utils.data.dataloader._BaseDataLoaderIter._index_sampler.and_what_it_has"
    monkeypatch.setattr(doctor, "facts", lambda: [("NVML", "pip install 'perfkit[nvml]'"), ("private names", long)])

    assert main(["doctor"]) == 0

    shown = capsys.readouterr().out
    assert "pip install 'perfkit[nvml]'" in shown
    assert "".join(shown.split()).count(long) == 1
