"""The hot lines outside of training that read the values of tensors."""

from __future__ import annotations

import linecache
from pathlib import Path

from perfkit._location import Location
from perfkit.record.samplers.host_reads import find_host_reads
from perfkit.record.samplers.user_source import HotPlaces

TEXT = """
def describe(values):
    low = values.min()
    return {
        "low": low.item(),
        "quantiles": torch.quantile(values, LEVELS).tolist(),
        "names": NAMES,
        "rows": table.cpu(2),
    }
"""


def test_a_line_that_gives_values_to_the_host_reads_them_also_in_one_entry_of_a_dictionary(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(TEXT)
    linecache.checkcache(str(file))
    places = {(str(file), line): Location(file=str(file), line=line, function="describe") for line in range(2, 9)}

    found = find_host_reads(HotPlaces(frozenset(), places))

    assert [at.line for at in found] == [5, 6]
    assert find_host_reads(HotPlaces(frozenset(), {("gone.py", 3): Location(file="gone.py", line=3)})) == ()
