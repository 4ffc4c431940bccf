"""The optimizers of a run, of which the program may have let go."""

from __future__ import annotations

import sys
from typing import Any

#: References to an item of a list that nothing else has: the list's, and that of the call that counts.
_OWN_REFERENCES = 2


class SteppedOptimizers(list[Any]):
    """The optimizers that have stepped, in the order of their first steps.

    They are held, because what trains is also asked after the function that trained has returned. Each holds its model.
    """

    def add(self, optimizer: Any) -> None:
        """An optimizer steps for the first time."""
        self.append(optimizer)
        self.let_go()

    def let_go(self) -> None:
        """Drop those that the program has let go of, but for the last one: another one trains by now.

        A program that makes a model and an optimizer for each fold, or each round, would else have all in memory.
        """
        for index in range(len(self) - 2, -1, -1):
            if sys.getrefcount(self[index]) <= _OWN_REFERENCES:
                del self[index]
