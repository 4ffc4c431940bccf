"""Arguments of TrainingArguments, of Lightning's Trainer and of Accelerator, in place of an edit."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from perfkit._code_owner import owner_of
from perfkit.run.records import ChangedLine
from perfkit.source_edits.draft import Draft
from perfkit.source_edits.source import CannotWriteError
from perfkit.trial.catalog import ChosenChange
from perfkit.trial.patches.edits import TrainerKind

#: What a user writes to make one.
CONSTRUCTORS: dict[TrainerKind, str] = {
    "huggingface": "TrainingArguments",
    "lightning": "Trainer",
    "accelerate": "Accelerator",
}
#: Libraries -> the kinds whose Trainer may have called them. Transformers works through accelerate, Lightning through
#: fabric.
_KINDS: dict[str, tuple[TrainerKind, ...]] = {
    "transformers": ("huggingface",),
    "trl": ("huggingface",),
    "accelerate": ("huggingface", "accelerate"),
    "lightning": ("lightning",),
    "pytorch_lightning": ("lightning",),
    "lightning_fabric": ("lightning",),
}


def library_of(place: ChangedLine) -> str | None:
    """The library through which the user's line did it, by its import name."""
    return None if place.via is None else owner_of(place.via.rpartition(":")[0])


def kinds_of(library: str | None) -> tuple[TrainerKind, ...]:
    """The kinds of Trainer that may be meant; all of them where no library is known."""
    return tuple(CONSTRUCTORS) if library is None else _KINDS.get(library, ())


def find_constructor(draft: Draft, kind: TrainerKind) -> ast.Call | None:
    """The one call in a file that makes a Trainer of this kind, or its arguments.

    Raises:
        CannotWriteError: there are several.
    """
    found = [one for one in draft.source.calls() if _makes(draft.names.meaning(one.func) or "", kind)]
    if len(found) > 1:
        lines = " and ".join(str(one.lineno) for one in found)
        raise CannotWriteError(f"makes several {CONSTRUCTORS[kind]}, in lines {lines}")
    return found[0] if found else None


def write_config(changes: Sequence[ChosenChange], kind: TrainerKind) -> str:
    """What to give to ``TrainingArguments``, Lightning's ``Trainer`` or ``Accelerator``, as Python.

    Changes that have no argument there are listed below it, in comments.
    """
    arguments, left = {}, []
    for chosen in changes:
        argument = chosen.change.trainer.of(kind)
        if argument is None:
            left.append(f"#   {chosen}: {chosen.lines}")
        else:
            name, _, value = argument.format(value=chosen.value).partition("=")
            arguments[name] = value
    lines = [f"    {name}={value}," for name, value in arguments.items()]
    call = [f"{CONSTRUCTORS[kind]}(", *lines, ")"] if lines else []
    rest = [f"# {CONSTRUCTORS[kind]} has no argument for:", *left] if left else []
    return "".join(f"{line}\n" for line in call + rest)


def _makes(name: str, kind: TrainerKind) -> bool:
    library, _, last = name.partition(".")[0], "", name.rpartition(".")[2]
    if kind == "huggingface":
        return last.endswith("TrainingArguments") or (library == "trl" and last.endswith("Config"))
    return last == CONSTRUCTORS[kind] and kind in _KINDS.get(library, ())
