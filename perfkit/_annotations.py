"""The type of one parameter or field, from its annotation.

`typing.get_type_hints` evaluates all annotations of a function, or of a class and those it inherits from: for what the
rules and measures ask for, that took a tenth of a diagnosis.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import cache
from typing import Any


def annotated_type(owner: Callable[..., Any] | type, name: str) -> Any:
    """The type that a function gives its parameter ``name``, or a class its field; None where it has none.

    Raises:
        NameError: the annotation names something that its module does not define when it runs.
    """
    for holder in owner.__mro__ if isinstance(owner, type) else (owner,):
        annotations = inspect.get_annotations(holder)
        if name in annotations:
            annotation = annotations[name]
            return _evaluated(annotation, holder.__module__) if isinstance(annotation, str) else annotation
    return None


@cache
def _evaluated(annotation: str, module: str) -> Any:
    return eval(annotation, vars(sys.modules[module]))
