"""The fixture ``syncs``: the sync detection of one test, and whether its result fails the test."""

from __future__ import annotations

from typing import Any

from perfkit.errors import SyncBudgetExceeded
from perfkit.pytest_plugin.baseline import SyncsBaseline
from perfkit.syncs import SyncDetector
from perfkit.syncs.arguments import DetectionArguments


class SyncsFixture(SyncDetector):
    """The `perfkit.detect_syncs` of one test; runs while the test's body does."""

    def __init__(self, arguments: DetectionArguments, *, marked: bool, limit: int | None) -> None:
        super().__init__(arguments)
        #: Whether the test has a marker, and its number; None if the baseline decides.
        self.marked = marked
        self.limit = limit
        self._named = False

    def mark_device(self, *things: Any) -> None:
        """Treat modules, optimizers or tensors as being on the device; dry run only.

        For a test that runs on the CPU and requests no cuda. The first call decides that: unless a tensor was on the
        simulated device already, the dry run then follows the named tensors and simulates no CUDA device.

        Raises:
            UsageError: something else was given, or a tensor that is not on the CPU.
        """
        first, self._named = not self._named, True
        if first and self.mode == "dry" and not self.observed:
            running = self._running
            self._leave()
            self._simulate = False
            if running:
                self.start()
        super().mark_device(*things)

    def assert_max(self, limit: int = 0) -> None:
        """Fail if more than ``limit`` syncs were counted so far, or nothing was checked.

        Raises:
            UsageError: ``limit`` is negative.
            SyncBudgetExceeded: see above.
        """
        __tracebackhide__ = True
        super().assert_max(limit)

    def _why_unobserved(self) -> str:
        reason = super()._why_unobserved()
        if "device_of" not in reason:
            return reason
        return f"{reason}\nIn a test: take the fixture `syncs` and call syncs.mark_device(model)."

    def problem(self, baseline: SyncsBaseline, nodeid: str) -> str | None:
        """Why the syncs of a test fail it; None if they are allowed, or the test has no marker."""
        if not self.marked:
            return None
        if self.limit is None and self.observed:
            return baseline.problem(nodeid, self.events)
        try:
            self.assert_max(self.limit or 0)
        except SyncBudgetExceeded as error:
            return str(error)
        return None
