"""Whose code a frame runs: the user's, perfkit's, torch's, Python's or a library's.

The launched script or ``-m`` package is the user's code wherever it lies, and so is everything outside perfkit, torch,
the standard library and site-packages.
"""

from __future__ import annotations

import functools
import gc
import itertools
import linecache
import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FrameType
from typing import TypeVar

_PERFKIT = os.path.dirname(os.path.abspath(__file__)) + os.sep
_DEMO = os.path.join(_PERFKIT, "demo") + os.sep
_STDLIB = tuple(
    dict.fromkeys(
        os.path.realpath(path) + os.sep
        for name in ("stdlib", "platstdlib")
        if (path := sysconfig.get_path(name)) is not None
    )
)
_SITE = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

#: The first line of a class or function.
_OPENING = re.compile(r"([ \t]*)(?:async +)?(class|def) +(\w+)")

#: Names of the code that Python runs for a comprehension.
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")

USER = "user"

#: The file of the frames that import a module.
IMPORTING = "<frozen importlib._bootstrap>"

F = TypeVar("F", bound=Callable[..., object])

#: File name -> owner: "user", "perfkit", "torch", "python", or a library's import name.
_owners: dict[str, str] = {}
#: Folders and files that are the user's wherever they lie: see `claim`.
_claimed: list[str] = []
#: The code of functions that do perfkit's own work, by its number, since its hash goes through all its constants: see
#: `own_work`.
_own_work: dict[int, CodeType] = {}


def claim(path: str) -> None:
    """Count a launched script, or the folder of a ``-m`` package, as the user's code wherever it lies."""
    real = os.path.realpath(path)
    _claimed.append(real + os.sep if os.path.isdir(real) else real)
    _owners.clear()


def owner_of(file: str) -> str:
    """The owner of a file: "user", "perfkit", "torch", "python", or a library's import name."""
    try:
        return _owners[file]
    except KeyError:
        owner = _owners[file] = _find_owner(file)
        return owner


def _find_owner(file: str) -> str:
    if file.startswith("<"):
        # "<string>", "<frozen importlib._bootstrap>" are generated code. A notebook cell has a real file name
        # (ipykernel) or "<ipython-input-...>".
        return USER if file.startswith("<ipython-input") else "python"
    real = _real_path(file)
    if any(real == path or (path.endswith(os.sep) and real.startswith(path)) for path in _claimed):
        return USER
    if real.startswith(_PERFKIT) and not real.startswith(_DEMO):
        return "perfkit"
    for marker in _SITE:
        if marker in real:
            return real.rsplit(marker, 1)[1].split(os.sep, 1)[0].removesuffix(".py")
    if real.startswith(_STDLIB):
        return "python"
    if (library := _generated_by(real)) is not None:
        return library
    # In a checkout the integrations lie next to the package, not inside.
    integrations = os.path.realpath(os.path.join(_PERFKIT, "integrations")) + os.sep
    return "perfkit" if real.startswith(integrations) else USER


def _real_path(file: str) -> str:
    """As `os.path.realpath`, which asks for every folder of each file: 80 ms for the 2,000 modules of a training."""
    folder, name = os.path.split(file)
    if not os.path.isabs(folder):
        folder = os.path.join(os.getcwd(), folder)
    path = os.path.join(_real_folder(folder), name)
    return os.path.realpath(path) if os.path.islink(path) else path


@functools.cache
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


#: File name -> what `library_of` calls it.
_libraries: dict[str, str] = {}


def library_of(file: str) -> str:
    """The library of a file: ``json``, ``PIL``; a part of torch and some others as ``torch.serialization``."""
    if file not in _libraries:
        _libraries[file] = _find_library(file)
    return _libraries[file]


#: Parts of packages that otherwise prepare inputs: modules that compute in the forward.
_MODELS = re.compile(r"[\\/](torchvision|torchaudio|kornia)[\\/](models|ops)[\\/]")


#: Where Lightning keeps the values that ``self.log`` gives it. Private to Lightning; elsewhere its time is Lightning's.
_LIGHTNING, _LOGGING = ("lightning", "pytorch_lightning"), "/connectors/logger_connector/"


def _part_of_transformers(file: str) -> str:
    """What prepares inputs is no part of its Trainer, and a tokenizer written in Python is no compiled one."""
    stem = os.path.basename(file).removesuffix(".py")
    if stem.startswith("image_"):
        return "transformers.image"
    if not stem.startswith("tokenization"):
        return "transformers"
    # What all tokenizers share, and what calls the compiled ones (``_fast`` before transformers 5).
    compiled = stem.endswith(("_base", "_fast", "_tokenizers"))
    return "transformers.tokenization" if compiled else "transformers.tokenization_python"


def _find_library(file: str) -> str:
    owner = owner_of(file)
    if owner == "transformers":
        return _part_of_transformers(file)
    if owner in _LIGHTNING and _LOGGING in file.replace(os.sep, "/"):
        return f"{owner}.logging"
    if (part := _MODELS.search(file)) is not None and part[1] == owner:
        return ".".join(part.groups())
    folder = os.path.dirname(os.__file__) if owner == "python" else f"{os.sep}torch"
    if owner not in ("python", "torch") or file.startswith("<"):
        return owner
    parts = os.path.realpath(file).rpartition(os.path.realpath(folder) if owner == "python" else folder + os.sep)[2]
    names = parts.strip(os.sep).removesuffix(".py").split(os.sep)
    if owner == "python":
        return names[0]
    # "torch.utils" alone says nothing: it holds TensorBoard's writer, the DataLoader and checkpointing.
    return ".".join(("torch", *names[: 2 if names[0] == "utils" else 1])).removesuffix(".__init__")


#: What torch_geometric calls the files that it writes for a layer: `torch_geometric.template.module_from_template`.
_OF_TEMPLATE = re.compile(r".+_(propagate|edge_updater)_\w{8}\.py")


def _generated_by(real: str) -> str | None:
    """The library that wrote a file of code outside of its own folder, named by its module; None for other files.

    torch_geometric writes ``/tmp/torch_geometric.nn.conv.gcn_conv_GCNConv_propagate_x7.py``, and
    ``/tmp/layers_EdgeConv_propagate_x7.py`` for a layer of the user's.
    """
    name = os.path.basename(real)
    # The folder last: looking for it writes a file, and raises where there is none.
    is_template = _OF_TEMPLATE.fullmatch(name) is not None and "torch_geometric" in sys.modules
    if is_template and os.path.dirname(real) == os.path.realpath(tempfile.gettempdir()):
        return "torch_geometric"
    package, dot, rest = name.removesuffix(".py").partition(".")
    origin = getattr(sys.modules.get(package), "__file__", None) if dot and rest else None
    return package if origin is not None and any(marker in origin for marker in _SITE) else None


def own_work(function: F) -> F:
    """A decorator: what torch does below ``function`` is perfkit's work, not that of the line that called perfkit.

    Wrappers around the program's functions must not have it.
    """
    _own_work[id(function.__code__)] = function.__code__
    return function


def does_own_work(code: CodeType) -> bool:
    """Whether it is the code of a function of `own_work`."""
    return id(code) in _own_work


def is_own_work(frame: FrameType | None) -> bool:
    """Whether ``frame`` runs below a function of `own_work`, without the program's or a library's code between."""
    return _is_own(outer.f_code for outer in frames_outwards(frame))


def is_own_stack(stack: Sequence[tuple[CodeType, int]]) -> bool:
    """The same of a stack, innermost first."""
    return _is_own(code for code, _ in stack)


def _is_own(codes: Iterable[CodeType]) -> bool:
    for code in codes:
        if id(code) in _own_work:
            return True
        if owner_of(code.co_filename) not in ("perfkit", "torch", "python"):
            return False
    return False


def function_name(code: CodeType) -> str:
    """The qualified name of the function that the code belongs to: ``Model.forward``."""
    # co_qualname ("Model.forward") came with Python 3.11.
    name: str = getattr(code, "co_qualname", None) or _qualified(code.co_name, code.co_filename, code.co_firstlineno)
    # Before Python 3.12 a comprehension runs in a frame of its own; report the function around it.
    while name.endswith(COMPREHENSIONS):
        name = name.rpartition(".<locals>")[0] or name.rpartition("<")[0] or "<module>"
    return name


@functools.lru_cache(maxsize=4096)  # a program has some hundred functions that are asked for
def _qualified(name: str, file: str, line: int) -> str:
    """The qualified name of a function of Python 3.10, by the indentation of the ``class`` and ``def`` lines above it.

    A class or a function in the text of a string, further left than the function, is mistaken for the one around it.
    """
    lines = linecache.getlines(file)[:line]
    if name.startswith("<module") or len(lines) < line:
        return name
    found, indent = name, _indent(lines[-1])
    for text in reversed(lines[:-1]):
        opening = _OPENING.match(text)
        if opening is not None and len(opening[1]) < indent:
            found = f"{opening[3]}.{'' if opening[2] == 'class' else '<locals>.'}{found}"
            indent = len(opening[1])
        elif name.startswith("<") and found == name and text.strip():
            indent = min(indent, _indent(text))  # an expression may begin further right than its statement
        if indent == 0:
            break
    return found


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def line_of(frame: FrameType) -> int:
    """The line that a frame runs; the function's first line where ``f_lineno`` is None.

    It is None between a function's call and its first line, which happens to frames of other threads.
    """
    line: int | None = frame.f_lineno
    return frame.f_code.co_firstlineno if line is None else line


def expression_at(code: CodeType, instruction: int) -> str:
    """The source of the expression at an instruction; "" if it spans several lines, or on Python 3.10."""
    first, last, start, end = _position(code, instruction)
    if first is None or first != last or start is None or end is None:
        return ""
    # Columns count bytes of UTF-8.
    return linecache.getline(code.co_filename, first).encode()[start:end].decode(errors="replace").strip()


def expression_end(code: CodeType, instruction: int) -> tuple[int, int] | None:
    """Where the expression at an instruction ends: line, and column in bytes of UTF-8; None on Python 3.10."""
    _, line, _, column = _position(code, instruction)
    return None if line is None or column is None else (line, column)


def _position(code: CodeType, instruction: int) -> tuple[int | None, int | None, int | None, int | None]:
    """First and last line, first and last column."""
    positions = getattr(code, "co_positions", None)
    if positions is None or instruction < 0:
        return None, None, None, None
    # Two bytes of bytecode per entry.
    found: tuple[int | None, int | None, int | None, int | None]
    found = next(itertools.islice(positions(), instruction // 2, None))
    return found


def frames_outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """``frame`` and the frames that called it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def frame_of(thread: int) -> FrameType | None:
    """The frame that a thread runs, by `threading.get_ident`; None where it runs none.

    No collection may run meanwhile: its callbacks and finalizers let the other threads continue while
    `sys._current_frames` still reads frames that they then leave (seen: crashes in libpython, with Python 3.11).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread)
    finally:
        if collects:
            gc.enable()


def stack_of(frame: FrameType | None) -> list[tuple[CodeType, int]]:
    """(code, line) of each frame, innermost first, for frames of another thread.

    All frames are read before anything can release the interpreter lock, such as file access or a long garbage
    collection. Otherwise that thread would continue, and torch.compile leaves frames behind that cannot be read any
    more (a process crashed reading one).
    """
    stack = []
    collects = gc.isenabled()
    gc.disable()
    try:
        while frame is not None:
            stack.append((frame.f_code, line_of(frame)))
            frame = frame.f_back
    except AttributeError:
        pass  # what Dynamo leaves behind may read as an object of another type (seen: a module, with Python 3.11)
    finally:
        if collects:
            gc.enable()
    return stack


def user_and_library_frame(frame: FrameType | None) -> tuple[FrameType | None, FrameType | None]:
    """The innermost frame of user code from ``frame`` outwards, and the innermost library frame inside it.

    A library is anything but perfkit, torch and Python. Either is None where the stack has none.
    """
    library: FrameType | None = None
    while frame is not None:
        owner = owner_of(frame.f_code.co_filename)
        if owner == USER:
            return frame, library
        if library is None and owner not in ("perfkit", "torch", "python"):
            library = frame
        frame = frame.f_back
    return None, library
