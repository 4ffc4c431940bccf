"""Modules whose weight torch computes anew each time that it is read: weight_norm, spectral_norm, orthogonal."""

from __future__ import annotations

from perfkit._location import Location
from perfkit.rules._settings import first_call
from perfkit.run.records import PARAMETRIZATIONS, Lines, Rank

#: How the name of the class begins that torch gives such a module.
_CLASS = "Parametrized"


def parametrized_module(lines: Lines, *places: Location) -> str | None:
    """The class of a module with a parametrization that one of these lines calls; None for none."""
    known = {(place.file, place.line) for place in places}
    called = (calls.module for row in lines.traced if (row.file, row.line) in known for calls in row.modules)
    return next((name for name in called if name.startswith(_CLASS)), None)


def parametrized_at(rank: Rank | None) -> Location | None:
    """The first line of the program's that gives a module a parametrization."""
    return first_call(rank, *PARAMETRIZATIONS) if rank is not None else None


def weight_advice(module: str, *, is_trained: bool) -> str:
    """How its weight is computed less often."""
    once = "under `with torch.nn.utils.parametrize.cached():`, which computes it once"
    if is_trained:
        return f"{module} computes its weight in each call: make the calls of a step {once}."
    return (
        f"{module} computes its weight in each call: call torch.nn.utils.parametrize.remove_parametrizations where "
        f"nothing trains it any more, or make the calls {once}."
    )
