"""Prints the share of HTA's critical path of a trace's second step that is on the device; for bench_replay.py.

And the share between kernels: from the end of one to the begin of the next on its stream, whatever that one waited for.
"""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import sys
import tempfile
from pathlib import Path


def main(file: Path) -> str:
    """The two shares in percent."""
    from hta.trace_analysis import TraceAnalysis

    logging.disable(logging.CRITICAL)
    _mend_drop()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        name = "trace.json.gz" if file.suffix == ".gz" else "trace.json"
        shutil.copy(file, Path(folder) / name)
        analysis = TraceAnalysis(trace_files={0: name}, trace_dir=folder)
        found = analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=1)
        if found is None or not found[1]:
            return "finds no path"
        graph = found[0]
        parts = graph.get_critical_path_breakdown()
        by = parts.groupby("bound_by")["duration"].sum()
        device = sum(float(by.get(name, 0.0)) for name in ("gpu_compute_bound", "gpu_communication_bound"))
        between = float(by.get("gpu_kernel_kernel_overhead", 0.0))
        return f"{device / float(by.sum()):.0%}, {between / float(by.sum()):.0%} between kernels"


def _mend_drop() -> None:
    """HTA 0.5 gives an axis with the columns to drop, which pandas 3 refuses."""
    import pandas as pd

    drop = pd.DataFrame.drop
    pd.DataFrame.drop = lambda self, *given, **named: drop(
        self, *given, **({k: v for k, v in named.items() if k != "axis"} if "columns" in named else named)
    )


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
