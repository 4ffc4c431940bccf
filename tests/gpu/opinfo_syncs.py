"""Which ATen ops make the host wait, measured on a GPU: PyTorch's own samples, under torch's sync debug mode.

    python tests/gpu/opinfo_syncs.py sync_table.json

Writes {"torch", "cuda", "device", "ops": {overload: {"calls", "syncs"}}, "failed": {operator: error}}. Each op that a
sample runs is called with the debug mode "error"; if it raises, that is one sync, and it is called again without the
mode. A sync inside the C++ of a composite op counts for the op inside it that synced.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: Enough for the branches of an op that depend on its arguments; all samples take hours.
SAMPLES = 12
DTYPES = (torch.float32, torch.int64, torch.bool)

_ERROR, _OFF = 2, 0
_SYNC_TEXT = "called a synchronizing"


class _Counter(TorchDispatchMode):
    """Calls each op with the debug mode "error", and counts calls and syncs."""

    def __init__(self, set_debug_mode: Callable[[int], None]) -> None:
        super().__init__()
        self.set_debug_mode = set_debug_mode
        self.ops: dict[str, dict[str, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        counts = self.ops.setdefault(str(func), {"calls": 0, "syncs": 0})
        counts["calls"] += 1
        try:
            self.set_debug_mode(_ERROR)
            return func(*args, **kwargs)
        except RuntimeError as error:
            if _SYNC_TEXT not in str(error):
                raise
        finally:
            self.set_debug_mode(_OFF)
        counts["syncs"] += 1
        return func(*args, **kwargs)


def operators() -> list[Any]:
    """PyTorch's descriptions of its operators, with samples."""
    # torch's common_utils imports expecttest for its own tests; nothing here calls it.
    stub: Any = types.ModuleType("expecttest")
    stub.TestCase = object
    sys.modules.setdefault("expecttest", stub)
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def count_syncs(
    described: Iterable[Any], device: str, set_debug_mode: Callable[[int], None]
) -> tuple[dict[str, dict[str, int]], dict[str, str]]:
    """Overload -> calls and syncs in all samples of the operators; operator -> error of samples that failed."""
    counter, failed = _Counter(set_debug_mode), {}
    kind = torch.device(device).type
    for operator in described:
        for dtype in DTYPES:
            if not operator.supports_dtype(dtype, kind):
                continue
            try:
                for sample in islice(operator.sample_inputs(device, dtype), SAMPLES):
                    with counter:
                        operator.op(sample.input, *sample.args, **sample.kwargs)
            except Exception as error:  # noqa: BLE001 - one operator's failure must not end the table
                failed[operator.name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return counter.ops, failed


def table() -> dict[str, Any]:
    """The table of this machine's GPU and torch."""
    ops, failed = count_syncs(operators(), "cuda", torch.cuda.set_sync_debug_mode)
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(),
        "ops": dict(sorted(ops.items())),
        "failed": failed,
    }


def main() -> int:
    """Write the table to the file in the argument."""
    if len(sys.argv) != 2:
        print("usage: python tests/gpu/opinfo_syncs.py FILE.json", file=sys.stderr)
        return 2
    Path(sys.argv[1]).write_text(json.dumps(table(), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
