"""The hot lines that draw with numpy's ``choice`` where that costs more than what it draws."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest

from perfkit._location import Location
from perfkit.record.samplers.numpy_draws import find_numpy_draws
from perfkit.record.samplers.user_source import HotPlaces


@pytest.mark.parametrize(
    ("text", "permutes"),
    [
        ("at = np.random.choice(900_000, 512, replace=False)", True),
        ("at = torch.from_numpy(numpy.random.choice(len(bank), 512, False))", True),
        ("at = self.rng.choice(2400, 20, p=self.weights)", False),
        ("at = np.random.choice(2400, 20, True, weights)", False),
        ("at = rng.choice(900_000, 512, replace=False)", None),
        ("at = np.random.choice(900_000, 512)", None),
        ("at = rng.choice(2400, 20, p=None)", None),
        ("at = random.choice(names)", None),
        ("at = jax.random.choice(key, names, (5,), False)", None),
        ("at = self.random.choice(9, 3, replace=False)", None),
        ("at = choice(2400, 20, p=weights)", None),
    ],
)
def test_a_choice_that_permutes_or_adds_up_weights_is_found(text: str, permutes: bool | None, tmp_path: Path) -> None:
    file = str(tmp_path / "train.py")
    Path(file).write_text(f"{text}\n")
    linecache.checkcache(file)
    place = Location(file=file, line=1, function="draw", owner="user")

    found = find_numpy_draws(HotPlaces(frozenset(), {(file, 1): place}))

    assert [(one.line, one.function, one.permutes) for one in found] == (
        [] if permutes is None else [(1, "draw", permutes)]
    )


def test_the_call_of_another_line_of_a_statement_is_not_that_lines(tmp_path: Path) -> None:
    file = str(tmp_path / "train.py")
    Path(file).write_text("x = pair(\n    first(),\n    np.random.choice(9, 3, replace=False),\n)\n")
    linecache.checkcache(file)
    places = {(file, line): Location(file=file, line=line, function="draw", owner="user") for line in (2, 3)}

    assert [one.line for one in find_numpy_draws(HotPlaces(frozenset(), places))] == [3]
