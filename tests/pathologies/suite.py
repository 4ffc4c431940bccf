"""The labelled suite: programs with a known cause, or none, and what the right answer is.

A program is a script that runs on a CPU; ``--fixed`` runs its corrected twin, so the correction is the difference
between the two runs. Its label stands in the ``labels.toml`` of its half: ``tuning`` has the programs that took part in
choosing numbers, ``judging`` those that never do. perfkit reads neither the labels nor the marks in the programs.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import timeit
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec
import msgspec.toml
import numpy as np

HERE = Path(__file__).resolve().parent

Half = Literal["tuning", "judging"]
HALVES: tuple[Half, ...] = get_args(Half)


#: Chosen: on an Intel Xeon products with subnormal numbers took up to 150 times as long, on a recent EPYC 1.0 times.
_SLOW = 3.0


class Program(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One program and its label.

    ``accepted`` has the rule ids that are a right answer, the planted cause first; it is empty in a healthy program.
    ``kind`` is the number of the kind of failure in the table of benchmarks/README.md; None: a plain example
    of its cause. ``quantified`` is False if the correction shortens no step on a CPU. ``bursts`` is True if the cost
    comes in some steps only, so means are compared and not medians. ``ranks`` processes run it. ``tried_with`` is the
    change of `perfkit try` that is the same correction as the twin's; None if the twin is corrected in another way.
    ``slow_subnormals`` is True if the cause costs time only on a processor that computes subnormal numbers slowly.

    Comments ``# spent: RULE`` and ``# change: RULE`` in the script mark the lines where the time passes and the lines
    to edit. ``outside`` has the reason for each of the two that is not in the script; it is then not judged.
    """

    name: str
    folder: Path
    accepted: tuple[str, ...] = ()
    kind: Annotated[int, msgspec.Meta(ge=1, le=13)] | None = None
    framework: Literal["plain", "lightning", "huggingface"] = "plain"
    use: Literal["training", "inference"] = "training"
    quantified: bool = True
    bursts: bool = False
    ranks: int = 1
    tried_with: str | None = None
    slow_subnormals: bool = False
    outside: dict[Literal["spent", "change"], str] = {}

    @property
    def path(self) -> Path:
        """The script."""
        return self.folder / f"{self.name}.py"

    @property
    def missing(self) -> tuple[str, ...]:
        """What the script needs and this machine has not: libraries, or its kind of processor. It cannot be judged."""
        imported = set()
        for node in ast.walk(ast.parse(self.path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
        missing = sorted(name for name in imported if importlib.util.find_spec(name) is None)
        if self.slow_subnormals and subnormal_ratio() < _SLOW:
            missing.append("a processor that is slow with subnormal numbers")
        return tuple(missing)

    @property
    def rule(self) -> str | None:
        """The planted cause, None in a healthy program."""
        return self.accepted[0] if self.accepted else None

    @property
    def half(self) -> str:
        """The half of the suite that the program belongs to."""
        return self.folder.name


@functools.cache
def subnormal_ratio() -> float:
    """How many times as long 100,000 products take here with subnormal numbers as with ordinary ones."""
    took = []
    for number in (1e-40, 1.0):
        numbers = np.full(100_000, number, dtype=np.float32)
        took.append(min(timeit.repeat(lambda numbers=numbers: numbers * numbers.dtype.type(0.5), number=1, repeat=20)))
    return took[0] / took[1]


def programs_of(folder: Path) -> tuple[Program, ...]:
    """The programs that the folder's labels name.

    Raises:
        msgspec.ValidationError: a label has an unknown field, or a value of the wrong type.
    """
    labels = msgspec.toml.decode((folder / "labels.toml").read_bytes())
    return tuple(msgspec.convert({"name": name, "folder": folder, **label}, Program) for name, label in labels.items())


PROGRAMS = tuple(program for half in HALVES for program in programs_of(HERE / half))
PATHOLOGICAL = tuple(program for program in PROGRAMS if program.rule)
HEALTHY = tuple(program for program in PROGRAMS if not program.rule)
