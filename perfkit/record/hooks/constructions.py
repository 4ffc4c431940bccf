"""Where the program makes its DataLoaders and optimizers, and calls torch.compile: the lines to edit.

A stack is read once per object, when it is made. Of what was made before the hooks were in place no line is known.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from perfkit._code_owner import function_name, line_of, owner_of, user_and_library_frame
from perfkit._location import Location
from perfkit._patches import Patches
from perfkit._raised_signals import errors_dropped

#: Compiled functions whose line is kept.
_MAX_COMPILED = 256
_CONSTRUCTORS = ("__init__", "__post_init__")

#: Key of a living object -> the object, weakly, and the line that made it.
_made: dict[int, tuple[weakref.ref[Any], Location]] = {}
#: File and first line of a function that was given to torch.compile -> the line that did.
_compiled: dict[tuple[str, int], Location] = {}


def watch_constructions(patches: Patches) -> None:
    """Note the lines from now on, as long as the patches are in place."""
    patches.wrap(DataLoader, "__init__", _noting(_note_made))
    patches.wrap(Optimizer, "__init__", _noting(_note_made))
    # An iterator does not name its loader.
    patches.wrap(_BaseDataLoaderIter, "__init__", _noting(_note_iterator))
    patches.wrap(torch, "compile", _noting(_note_compiled))


def made_at(thing: Any) -> Location | None:
    """The user's line that made a DataLoader (or the loader of an iterator) or an optimizer; None where unknown.

    The function is the call on that line, ``DataLoader(...)``. Where a library made the object the owner is that
    library, and the call is the user's one into it, ``Trainer.train(...)``.
    """
    found = _made.get(id(thing))
    return found[1] if found is not None and found[0]() is thing else None


def compiled_at(file: str | None, first_line: int | None) -> Location | None:
    """The user's line that called torch.compile for this function, or for all that was compiled if there is one."""
    exact = _compiled.get((file, first_line)) if file is not None and first_line is not None else None
    return exact or (next(iter(_compiled.values())) if len(_compiled) == 1 else None)


def _noting(note: Callable[..., None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A wrapper that calls the original, then ``note`` with its first arguments."""

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            with errors_dropped():  # nothing of perfkit's may end training
                note(sys._getframe(1), *args, **kwargs)
            return result

        return call

    return wrapper


def _note_made(frame: FrameType, made: Any, *_: Any, **__: Any) -> None:
    while _is_constructor(frame, made) and frame.f_back is not None:
        frame = frame.f_back
    place = _place(frame, type(made).__name__)
    if place is not None and place.owner != "user" and isinstance(made, DataLoader):
        # A Trainer makes a loader again, with another sampler: the user's is the one to edit.
        places = (at for one, at in _loaders() if at.owner == "user" and one.dataset is made.dataset)
        place = next(places, place)
    _keep(made, place)


def _note_iterator(frame: FrameType, iterator: Any, loader: Any) -> None:
    _keep(iterator, made_at(loader))


def _note_compiled(frame: FrameType, model: Any = None, **_: Any) -> None:
    code = _code_of(model)
    place = _place(frame, "torch.compile")
    if code is not None and place is not None and len(_compiled) < _MAX_COMPILED:
        _compiled[code.co_filename, code.co_firstlineno] = place


def _keep(made: Any, place: Location | None) -> None:
    if place is not None:
        key = id(made)
        _made[key] = weakref.ref(made, lambda _: _made.pop(key, None)), place


def _loaders() -> Iterator[tuple[Any, Location]]:
    for reference, place in list(_made.values()):
        if isinstance(one := reference(), DataLoader):
            yield one, place


def _is_constructor(frame: FrameType, made: Any) -> bool:
    """Whether this frame is a constructor of the object, which a subclass has of its own."""
    code = frame.f_code
    return code.co_name in _CONSTRUCTORS and bool(code.co_argcount) and frame.f_locals[code.co_varnames[0]] is made


def _place(frame: FrameType, called: str) -> Location | None:
    user, library = user_and_library_frame(frame)
    if user is None:
        return None
    owner = "user"
    if library is not None:
        owner = owner_of(library.f_code.co_filename)
        called = function_name(_called_by(user, frame).f_code)
    return Location(file=user.f_code.co_filename, line=line_of(user), function=f"{called}(...)", owner=owner)


def _called_by(user: FrameType, frame: FrameType) -> FrameType:
    """The outermost frame below the user's, which a line of the user's called."""
    while frame.f_back is not None and frame.f_back is not user:
        frame = frame.f_back
    return frame


def _code_of(model: Any) -> CodeType | None:
    """The code that Dynamo compiles first: a module's forward, or the function itself."""
    owner = getattr(model, "__self__", model)  # Module.compile() passes a method of the module
    function = type(owner).forward if isinstance(owner, torch.nn.Module) else model
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None
