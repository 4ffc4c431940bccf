"""Groups of ops by name."""

from __future__ import annotations


def named(*words: str) -> frozenset[str]:
    """ATen's ops of these names, as traces name them; a string may have several words."""
    return frozenset(f"aten::{name}" for part in words for name in part.split())


#: Views of the same memory, and ops that read no tensor: they neither end a chain nor belong to one.
VIEWS = named(
    "view reshape transpose permute expand expand_as select slice unsqueeze squeeze t detach alias as_strided",
    "unbind split chunk unflatten flatten narrow movedim swapaxes view_as lift_fresh numpy_T mT real imag",
    "_unsafe_view size stride is_same_size result_type can_cast broadcast_tensors view_as_real view_as_complex",
)


def plain_name(name: str) -> str:
    """An op's name without the underscore of its in-place form."""
    return name.removesuffix("_")
