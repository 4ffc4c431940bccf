"""The names that generated code calls while something listens: `RangeListener.connect` fills them in.

Generated code (`enter_exit`) reaches a listener only through the names of this module. Until a listener is connected
they do nothing. So a decorated function that was pickled by value while something listened (cloudpickle, as notebooks
and Ray do) also runs in a process where nothing does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Each listener declares its own names (`RangeListener.calls`)."""
