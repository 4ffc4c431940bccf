"""``changes``: applies changes of the catalogue in this process, and undoes them."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Any

from perfkit.errors import UsageError
from perfkit.run.records import AppliedChange
from perfkit.trial.catalog import ChosenChange, parse_changes
from perfkit.trial.site import Site


class changes:
    """Apply changes to what a program makes inside: its loaders, optimizers and modules.

        with perfkit.changes("fused-optimizer", "workers=4") as applied:
            train()
        print(applied)

    Afterwards, or after an exception, torch is as it was; what the program has made inside keeps what it was made with.

    Raises:
        UsageError: no change has this name or value, or it cannot be applied on this machine.
    """

    def __init__(self, *names: str) -> None:
        self._chosen = parse_changes(names)
        if not self._chosen:
            raise UsageError("perfkit.changes needs the name of a change, as in changes('workers=4'): got none")
        self._sites: dict[ChosenChange, Site] = {}

    def __enter__(self) -> changes:
        self._sites.clear()
        # The last wrapper is called first.
        for chosen in sorted(self._chosen, key=lambda chosen: chosen.change.first):
            site = Site()
            try:
                apply = _applicable(chosen)
                self._sites[chosen] = site
                apply(site, chosen.value)
            except BaseException:
                self._undo()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._undo()

    def __reduce__(self) -> tuple[type[changes], tuple[str, ...]]:
        # For a process that applies them itself, such as a rank that the program starts.
        return changes, tuple(map(str, self._chosen))

    def suspend(self) -> None:
        """Switch the changes off: the program goes on as without them, until `resume`.

        Call it between two steps. What the program makes meanwhile is made without them.

        Raises:
            UsageError: one of the changes cannot be switched off while the program runs.
        """
        for site in reversed(self._switchable()):
            site.suspend()

    def resume(self) -> None:
        """Switch the changes on again.

        Raises:
            UsageError: one of the changes cannot be switched on while the program runs.
        """
        for site in self._switchable():
            site.resume()

    def _switchable(self) -> list[Site]:
        fixed = [str(chosen) for chosen in self._chosen if not chosen.change.toggle]
        if fixed:
            raise UsageError(
                f"only changes whose effect can be taken back while the program runs can be switched off and on: got "
                f"{', '.join(fixed)}; apply those in a perfkit.changes of their own"
            )
        return list(self._sites.values())

    def _undo(self) -> None:
        errors = []
        for site in reversed(self._sites.values()):
            try:
                site.undo()
            except Exception as error:  # noqa: BLE001 - the others are undone first
                errors.append(error)
        if errors:
            raise errors[0]

    def report(self) -> tuple[AppliedChange, ...]:
        """What became of each change so far."""
        return tuple(
            AppliedChange(
                change=str(chosen),
                count=site.count,
                places=tuple(site.places),
            )
            for chosen in self._chosen
            if (site := self._sites.get(chosen)) is not None
        )

    def __repr__(self) -> str:
        if not self._sites:
            return f"<perfkit.changes {', '.join(map(str, self._chosen))}, not applied>"
        done = (
            f"{one.change} ({one.count} times)" if one.count else f"{one.change} (no effect)" for one in self.report()
        )
        return f"<perfkit.changes {', '.join(done)}>"


def _applicable(chosen: ChosenChange) -> Callable[[Site, Any], None]:
    """What applies the change.

    Raises:
        UsageError: nothing does, or not on this machine.
    """
    reason = chosen.change.refuse()
    if chosen.change.apply is None:
        reason = "its saving is computed from a run without it; perfkit try reports it"
    unset = {
        name: value for name, value in chosen.change.environment(os.environ).items() if os.environ.get(name) != value
    }
    if reason is None and unset:
        variables = " ".join(f"{name}={value}" for name, value in unset.items())
        reason = f"it must be in the environment before the program starts: {variables}"
    if chosen.change.apply is None or reason is not None:
        raise UsageError(f"the change {chosen} cannot be applied: {reason}")
    return chosen.change.apply
