"""``Patches``: attributes of other code, replaced together and put back exactly.

Everything that perfkit replaces for a while (functions of torch, methods of a Trainer, warnings filters, hooks) goes
through a `Patches`. `installed` lists what is in place in this process: ``perfkit doctor`` prints it, and the tests
check that nothing is left.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any

_ABSENT = object()


@dataclass
class _Replacement:
    """One replaced attribute: its owner's own value before, or `_ABSENT` where the owner inherited it, and ours."""

    owner: Any
    attribute: str
    before: object
    value: object

    @property
    def name(self) -> str:
        module = getattr(self.owner, "__module__", None)
        name = getattr(self.owner, "__qualname__", None) or getattr(self.owner, "__name__", type(self.owner).__name__)
        return f"{module}.{name}.{self.attribute}" if module else f"{name}.{self.attribute}"

    def undo(self) -> None:
        if vars(self.owner).get(self.attribute) is not self.value:
            self._leave_to_later_wrapper()
        elif self.before is _ABSENT:
            delattr(self.owner, self.attribute)
        else:
            setattr(self.owner, self.attribute, self.before)

    def _leave_to_later_wrapper(self) -> None:
        """Keep what was put over this one; if perfkit did that, it restores what was below this one."""
        for other in (entry for patches in _all() for entry in patches.entries):
            if (
                isinstance(other, _Replacement)
                and other.owner is self.owner
                and other.attribute == self.attribute
                and other.before is self.value
            ):
                other.before = self.before


@dataclass
class _Other:
    """Something in place that is no attribute, and the function that takes it away."""

    name: str
    undo: Callable[[], None]


class Patches:
    """Attributes replaced together and put back together, the last one first.

    Only what is still ours is put back: a program that has wrapped a replacement keeps its wrapper. The replacement
    below it then stays, so after `undo` it must do nothing but call the original.
    """

    def __init__(self) -> None:
        self.entries: list[_Replacement | _Other] = []
        _live.append(weakref.ref(self, _live.remove))

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace ``owner.name``; where the owner only inherited it, `undo` deletes it again."""
        # vars() and not getattr: most Tensor methods are inherited, and a class must get its own
        # descriptor back (a staticmethod, not the function that getattr unwraps).
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        self.entries.append(_Replacement(owner, name, before, value))

    def wrap(self, owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Any]) -> None:
        """Replace ``owner.name`` by ``wrapper(owner.name)``; an attribute that is missing or None is left alone."""
        original = getattr(owner, name, None)
        if original is not None:
            self.set(owner, name, wrapper(original))

    def wrap_for_instances(self, owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Any]) -> None:
        """As `wrap`, for what the instances of a class call; the class itself shows its method as before."""
        shown = getattr(owner, name, None)
        if shown is not None:
            present = vars(owner).get(name)
            called = present.replacement if isinstance(present, ForInstances) else shown
            self.set(owner, name, ForInstances(shown, wrapper(called)))

    def add(self, name: str, undo: Callable[[], None]) -> None:
        """List something else that was put in place, and the function that takes it away."""
        self.entries.append(_Other(name, undo))

    def undo(self) -> None:
        """Put everything back; if some of it fails, the rest is still put back, then the first error is raised."""
        errors: list[Exception] = []
        while self.entries:
            try:
                self.entries.pop().undo()
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
        if errors:
            raise errors[0]

    def __bool__(self) -> bool:
        """Whether anything is in place."""
        return bool(self.entries)


class ForInstances:
    """What the instances of a class call in place of a method, which the class itself still shows.

    A torch profiler with ``with_stack`` takes the code of ``torch.nn.Module.__call__`` once in a process, for that of
    all calls of modules, and reads the module from the frames of that code: one of another function has no module.
    """

    def __init__(self, method: Callable[..., Any], replacement: Callable[..., Any]) -> None:
        self._method = method
        self.replacement = replacement

    def __get__(self, module: Any, kind: type | None = None) -> Any:
        return self._method if module is None else MethodType(self.replacement, module)


#: Weak: an owner that is never put back is freed with the program's last reference to it.
_live: list[weakref.ref[Patches]] = []


def _all() -> list[Patches]:
    return [patches for reference in list(_live) if (patches := reference()) is not None]


def installed() -> list[str]:
    """Names of everything in place now, in all `Patches` of the process."""
    return [entry.name for patches in _all() for entry in list(patches.entries)]


class SharedPatches:
    """Patches that stay in place as long as at least one user of the process needs them."""

    def __init__(self, name: str, *installers: Callable[[Patches], None]) -> None:
        self.name = name
        self._installers = installers
        self._patches = Patches()
        self._users = 0
        self._lock = threading.Lock()

    def acquire(self) -> None:
        """Add a user; the first one installs. If an installer raises, nothing stays in place."""
        with self._lock:
            if self._users == 0:
                try:
                    for install in self._installers:
                        install(self._patches)
                except BaseException:
                    self._patches.undo()
                    raise
            self._users += 1

    def release(self) -> None:
        """Remove a user; the last one puts everything back."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._patches.undo()

    def __bool__(self) -> bool:
        """Whether anything is in place."""
        return bool(self._patches)
