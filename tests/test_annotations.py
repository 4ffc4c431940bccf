"""The type of a single parameter or field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from perfkit._annotations import annotated_type


class Base(msgspec.Struct):
    device: int
    names: Sequence[str] = ()


class Derived(Base):
    names: Any = ()


def function(given: Sequence[Base], absent: NotImported, default: int | None = None) -> None:  # type: ignore[name-defined]  # noqa: F821 - it is what is tested
    """Only what is asked for is evaluated."""


@pytest.mark.parametrize(
    ("owner", "name", "kind"),
    [
        (function, "given", Sequence[Base]),
        (function, "default", int | None),
        (Base, "names", Sequence[str]),
        (Derived, "names", Any),
        (Derived, "device", int),
        (Derived, "another", None),
    ],
)
def test_one_annotation_is_evaluated_where_it_stands(owner: Any, name: str, kind: Any) -> None:
    assert annotated_type(owner, name) == kind


def test_a_name_that_is_not_there_when_it_runs_is_an_error() -> None:
    with pytest.raises(NameError, match="NotImported"):
        annotated_type(function, "absent")
