"""What a Dataset of Hugging Face's library hands out: the format of its table, and how many numbers a row has."""

from __future__ import annotations

import math
import sys
from typing import Any

from torch.utils.data import Subset

from perfkit._code_owner import own_work
from perfkit._raised_signals import errors_dropped
from perfkit.run.records import DatasetTable

#: What a dataset without a format has rows of.
_PYTHON = "python"
#: Subsets of subsets that are looked into.
_DEEP = 4


@own_work
def table_of(dataset: Any) -> DatasetTable | None:
    """The table of a `datasets.Dataset`, also in a Subset; None for other datasets, and where it cannot be read.

    The dataset is asked for no sample: its first row is looked at in the table itself.
    """
    with errors_dropped():
        for _ in range(_DEEP):
            if type(dataset) is not Subset:
                break
            dataset = dataset.dataset
        # A class of the user's, or a stream, may do anything when it is asked.
        if type(dataset) is not getattr(sys.modules.get("datasets.arrow_dataset"), "Dataset", None):
            return None
        columns = dataset.format["columns"]
        return DatasetTable(
            format=dataset.format["type"] or _PYTHON, columns=len(columns), numbers=_numbers(dataset, columns)
        )
    return None


def _numbers(dataset: Any, columns: list[str]) -> int | None:
    """How many numbers the first row has; None where it is not known, or lists are in lists."""
    with errors_dropped():
        found = [_numbers_in(dataset.features[name], dataset.data, name) for name in columns]
        known = [numbers for numbers in found if numbers is not None]
        return sum(known) if len(known) == len(found) else None
    return None


def _numbers_in(feature: Any, table: Any, name: str) -> int | None:
    """The numbers that a column has in the first row, as its type says; None for lists in lists."""
    if hasattr(feature, "shape"):  # Array2D and the like
        return int(math.prod(feature.shape))
    # Before datasets 4 the type of a list may be a list of one type.
    inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
    if inner is None:
        return int(_is_number(feature))
    if not hasattr(inner, "dtype") or hasattr(inner, "feature") or hasattr(inner, "shape"):
        return None
    return len(table.column(name)[0]) if _is_number(inner) else 0


def _is_number(feature: Any) -> bool:
    return str(getattr(feature, "dtype", "")).startswith(("int", "uint", "float", "bool"))


def name_of(collate: Any) -> str | None:
    """``torch.utils.data._utils.collate.default_collate``: the function, or the class of the object, that collates."""
    with errors_dropped():
        named = collate if hasattr(collate, "__qualname__") else type(collate)
        return f"{named.__module__}.{named.__qualname__}" if collate is not None else None
    return None
