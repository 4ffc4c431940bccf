"""The last window of a running or finished profile, as users of torch.profiler read one: tables, a trace, stacks.

The window's trace is read again from the run folder, by the same code that reads it offline.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from perfkit.errors import UsageError

if TYPE_CHECKING:
    from perfkit.record.run_recorder import RunRecorder
    from perfkit.reports.op_averages import OpAverages


class LastWindow:
    """What `perfkit.profile` offers of its last window: `key_averages`, `export_chrome_trace` and `export_stacks`."""

    _live: RunRecorder | None

    def _traces(self) -> tuple[Path, Path | None]:
        """The trace of the last window, and that of the last step recorded with stacks, None without one."""
        # It loads numpy, which importing perfkit must not.
        from perfkit.run.reading import RankFolder

        live, found = self._live, None
        if live is not None:
            live.plan.wait()  # a window that is over may not be written yet
            found = RankFolder(live.recording.folder, 0)
        if found is None or not found.windows:
            raise UsageError(
                "no window was recorded yet: the default schedule records one within the first 15 steps, on rank 0; "
                "call this after the loop, or choose the steps with schedule=perfkit.schedule(...)"
            )
        return found.windows[-1], found.stacks[-1] if found.stacks else None

    def key_averages(self, group_by_input_shape: bool = False) -> OpAverages:
        """The ops of the last window by name, as torch's profiler has them: ``print(prof.key_averages().table())``.

        Args:
            group_by_input_shape: One row per op and input shapes, which need ``record_shapes=True``.

        Raises:
            UsageError: no window was recorded yet, or the window has no shapes.
            TraceError: its trace cannot be read.
        """
        # As in `_traces`.
        from perfkit.reports.op_averages import read_op_averages

        return read_op_averages(self._traces()[0], by_shape=group_by_input_shape)

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the trace of the last window to ``path``, for Perfetto and chrome://tracing; gzip if it ends in .gz.

        Raises:
            UsageError: no window was recorded yet, or the path cannot be written.
            TraceError: its trace cannot be read.
        """
        # As in `_traces`.
        from perfkit.reports.window_export import export_trace

        export_trace(self._traces()[0], Path(path))

    def export_stacks(self, path: str | os.PathLike[str], metric: str = "self_cpu_time_total") -> None:
        """Write the stacks of the last window to ``path``, one a line, as flame graph tools read them.

        A line has Python functions and ops, outermost first and separated by ";", and the time that the innermost one
        took by itself, in µs.

        Args:
            path: The file.
            metric: "self_cpu_time_total", or "self_device_time_total" (torch's "self_cuda_time_total").

        Raises:
            UsageError: no window was recorded yet, it has no stacks, the metric is unknown, or the path cannot be
                written.
            TraceError: its trace cannot be read.
        """
        # As in `_traces`.
        from perfkit.reports.window_export import export_stacks

        window, stacks = self._traces()
        export_stacks(window, stacks, Path(path), metric)
