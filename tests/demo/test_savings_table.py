"""The table that `perfkit demo` ends with: a row per corrected mistake, and one with all of them."""

from __future__ import annotations

import pytest

from perfkit.commands import demo
from perfkit.findings import Finding
from perfkit.reports.console import stdout_console

MS = 1_000_000


def test_the_row_with_all_mistakes_corrected_is_called_so_where_one_alone_was_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = Finding(
        rule="input-bound", severity="critical", message="It waits", advice="Change it", confidence="high",
        cost_ns=45 * MS, saving_low_ns=20 * MS, saving_high_ns=45 * MS,
    )  # fmt: skip

    demo._print_savings(100 * MS, [([one], 60 * MS), ([one], 20 * MS)], stdout_console())

    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows if "ms" in row and row[0] != "With"] == ["input-bound", "everything"]
