"""The labelled traces: recordings with a known cause, none, or a part missing, and what the right answer is.

Each is built at run time by the function of its name in a file of its half, which receives a `Timeline` and
returns nothing, or is a damaged version (`damage.py`) of another one. Its label stands in the ``labels.toml`` of its
half: ``tuning`` has the traces that took part in choosing numbers, ``judging`` those that never do.

To add one to the judging half: write a function in a file of ``judging`` from what profilers record, not from what the
rules look for, and its label in ``judging/labels.toml``, without having seen what perfkit reports for it. A wrong
answer stays wrong until a rule or measure is better for a reason that holds for other programs. A label is changed
only where it was false, and no trace moves to the other half. perfkit reads neither labels nor functions.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args

import damage
import msgspec
import msgspec.toml
from trace_timeline import Timeline

HERE = Path(__file__).resolve().parent

Half = Literal["tuning", "judging"]
HALVES: tuple[Half, ...] = get_args(Half)


class PlantedTrace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One trace and its label.

    ``accepted`` has the rule ids that are a right answer, the planted cause first; it is empty in a healthy or
    incomplete trace. ``outcomes`` are the right verdicts; unless given, findings where a cause is planted, else
    healthy. ``spent`` and ``change`` are ``FILE:LINE`` as the right finding names them, None where the trace does not
    show the place. ``damage`` is what was done to the trace named by ``of`` (a name in `damage.DAMAGES`, or a share at
    which the file is cut): an incomplete recording, whose right verdict is that none is possible; where its function
    leaves a part out itself, ``outcomes`` says so alone. ``kind`` is the
    number of the kind of failure in the table of benchmarks/README.md.
    """

    name: str
    half: Half
    accepted: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    spent: str | None = None
    change: str | None = None
    damage: str | float | None = None
    of: str | None = None
    kind: int | None = None

    @property
    def is_incomplete(self) -> bool:
        """Whether a part of the recording is missing, so that no verdict is possible."""
        return self.damage is not None or self.outcomes == ("cannot-tell",)

    @property
    def expected(self) -> tuple[str, ...]:
        """The right outcomes."""
        usual = "cannot-tell" if self.damage is not None else "findings" if self.accepted else "healthy"
        return self.outcomes or (usual,)

    def build(self, folder: Path) -> Path:
        """Writes the trace into a folder and returns its file."""
        builder: Callable[[Timeline], object] = getattr(_builders(self.half), self.of or self.name)
        line = Timeline(folder)
        builder(line)
        path = line.write()
        if self.damage is None:
            return path
        content, damaged = damage.read(path), folder / "damaged.json"
        if isinstance(self.damage, float):
            return damage.cut(damaged, content, self.damage)
        left = damage.DAMAGES[self.damage](content["traceEvents"])
        if left is None:
            raise ValueError(f"{self.name}: the damage {self.damage!r} does not apply to {self.of}")
        return damage.write(damaged, content, left)


def _builders(half: Half) -> Any:
    """The functions of all files of a half."""
    found: dict[str, Any] = {}
    for file in sorted((HERE / half).glob("*.py")):
        spec = spec_from_file_location(f"planted_traces_{half}_{file.stem}", file)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        found |= vars(module)
    return SimpleNamespace(**found)


def traces_of(half: Half) -> tuple[PlantedTrace, ...]:
    """The traces that the labels of a half name.

    Raises:
        msgspec.ValidationError: a label has an unknown field, or a value of the wrong type.
    """
    labels = msgspec.toml.decode((HERE / half / "labels.toml").read_bytes())
    return tuple(msgspec.convert({"name": name, "half": half, **label}, PlantedTrace) for name, label in labels.items())


TRACES = tuple(trace for half in HALVES for trace in traces_of(half))
