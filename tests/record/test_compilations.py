"""What Dynamo recorded of a compilation: the call of torch.compile, and the line whose guard failed."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest

from perfkit._location import Location
from perfkit.record.hooks import constructions
from perfkit.record.watchers.compilations import CompileCounter

FILE = "/home/me/project/train.py"


@pytest.mark.parametrize("compiled", [FILE, "/torch/nn/modules/module.py"])
@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("0/3: self.calls == 58  # self.calls += 1  # e/me/project/train.py:29 in forward (HINT: mark it)", 29),
        ("0/3: tensor 'x' size mismatch at index 1. expected 126, actual 127", None),
        ("0/3: self.calls == 58  # self.calls += 1  # another/file.py:29 in forward", None),
    ],
)
def test_the_line_of_a_failed_guard_is_read_from_its_reason(
    compiled: str, reason: str, line: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Location(file=FILE, line=40, function="torch.compile(...)")
    monkeypatch.setattr(constructions, "_compiled", {(compiled, 26): made})
    record = SimpleNamespace(
        co_name="forward",
        co_filename=compiled,
        co_firstlineno=26,
        recompile_reason=reason,
        entire_frame_compile_time_s=0.5,
        stack_trace=(f"Line: 9, Name: <module>, Filename: {FILE}", "Line: 1, Name: __call__, Filename: torch.py"),
    )
    counters: defaultdict[str, Counter[str]] = defaultdict(Counter)
    utils = SimpleNamespace(counters=counters, _compilation_metrics=[])
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)  # type: ignore[arg-type]  # stands in for it
    counter = CompileCounter()
    counters["stats"]["unique_graphs"] = 1
    utils._compilation_metrics.append(record)

    counter.at_close(3)

    [compilation] = counter.compilations
    guarded = compilation.guarded_at
    assert (guarded.file, guarded.line) == (FILE, line) if guarded is not None else line is None
    assert (compilation.compiled_at, compilation.recompiles) == (made, 1)
