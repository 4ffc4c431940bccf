"""Which expression of a source line synced: the name of a sync that no wrapped function names."""

from __future__ import annotations

import ast
import functools
from types import CodeType, FrameType

from perfkit import _code_owner
from perfkit.run.records import SyncKind
from perfkit.syncs.sync_log import Cause

#: Name of a called function -> the kind of its sync.
_KIND_OF_CALL: dict[str, SyncKind] = {
    **dict.fromkeys(
        ("nonzero", "argwhere", "where", "masked_select", "unique", "unique_consecutive", "bincount"), "shape"
    ),
    **dict.fromkeys(("repeat_interleave", "one_hot", "coalesce", "to_sparse"), "shape"),
    **dict.fromkeys(("cuda", "tensor", "as_tensor", "asarray", "new_tensor"), "copy-h2d"),
    **dict.fromkeys(("equal", "allclose", "mode"), "read"),
    **dict.fromkeys(("barrier", "all_gather_object", "broadcast_object_list"), "collective"),
}


def cause_of_line(frame: FrameType) -> Cause:
    """The cause of a sync below ``frame``: the expression that the program's innermost frame evaluates."""
    for program in _code_owner.frames_outwards(frame):
        if _code_owner.owner_of(program.f_code.co_filename) not in ("perfkit", "torch", "python"):
            return _cause_at(program.f_code, program.f_lasti)
    return Cause("other", "sync")


# A loop syncs at the same few places; 1024 are more than a program has.
@functools.lru_cache(maxsize=1024)
def _cause_at(code: CodeType, instruction: int) -> Cause:
    text = _code_owner.expression_at(code, instruction)
    if not text:
        return Cause("other", "sync")
    return Cause(_kind_of(text), text if len(text) <= 60 else text[:57] + "...")


def _kind_of(expression: str) -> SyncKind:
    try:
        node = ast.parse(expression, mode="eval").body
    except SyntaxError:
        return "other"
    if not isinstance(node, ast.Call):
        return "other"
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    if name == "print":
        return "print"
    return _KIND_OF_CALL.get(name, "other")
