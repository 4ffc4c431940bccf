"""Settings of the process that a change holds at a value, whatever the program sets."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from perfkit.trial.site import Site


class HeldSetting:
    """One setting: what the program asks for is kept, and set while the change is suspended.

    The function with which a program sets it calls `ask` instead. Undone, the setting has its value of before.
    """

    def __init__(
        self, site: Site, name: str, read: Callable[[], Any], write: Callable[[Any], None], value: Any
    ) -> None:
        self._site = site
        self._read, self._write, self._value = read, write, value
        self._asked = before = read()
        # Loader workers that are forked inherit the patches, and have settings of their own.
        self._process = os.getpid()
        site.patches.add(name, lambda: write(before))
        site.switch(self._hold, lambda: write(self._asked))

    def _hold(self) -> None:
        self._asked = self._read()
        if self._asked != self._value:
            self._site.count += 1  # by no line of the program's
            self._write(self._value)

    def ask(self, value: Any) -> None:
        """The program sets ``value``."""
        if not self._site.active or os.getpid() != self._process:
            self._write(value)
            return
        self._asked = value
        if value != self._value:
            self._site.used()
