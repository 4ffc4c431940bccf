"""Losses over classes that are computed at positions whose target they ignore, as the words that are not masked.

At such a position the scores of all classes are computed and thrown away. `ConstantOpLog` hands on the ops of a step;
the targets of a negative log-likelihood are counted there, on a CPU.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from perfkit._code_owner import USER, function_name
from perfkit.record.program_values import without_modes
from perfkit.record.samplers.call_paths import Site
from perfkit.run.records import IgnoredTargets

#: Of more targets none are counted: comparing a million took 4 ms on one CPU.
_MAX_TARGETS = 1_000_000
_LOSSES = (torch.ops.aten.nll_loss_forward.default, torch.ops.aten.nll_loss2d_forward.default)


class IgnoredTargetCounts:
    """Counts the targets of the losses of one step, by line."""

    def __init__(self) -> None:
        #: (line, scores that each has) -> all targets, and those that are ignored.
        self._targets: Counter[tuple[Site, int]] = Counter()
        self._ignored: Counter[tuple[Site, int]] = Counter()

    def add(self, func: Any, arguments: Any, site: Site) -> None:
        """An op of a line of the user's has run with these positional arguments."""
        if func not in _LOSSES or len(arguments) < 5:
            return
        scores, target, ignored = arguments[0], arguments[1], arguments[4]
        if target.device.type != "cpu" or target.numel() > _MAX_TARGETS or scores.dim() < 2:
            return
        key = site, int(scores.shape[1])
        with without_modes():
            self._ignored[key] += int((target == ignored).sum())
        self._targets[key] += target.numel()

    def rows(self) -> tuple[IgnoredTargets, ...]:
        """The lines whose loss ignores some of its targets."""
        return tuple(
            IgnoredTargets(
                file=code.co_filename,
                line=line,
                function=function_name(code),
                owner=USER,
                targets=self._targets[(code, line), classes],
                ignored=ignored,
                classes=classes,
            )
            for ((code, line), classes), ignored in self._ignored.items()
            if ignored
        )
