from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

from perfkit.measures._trace_cache import once
from perfkit.trace import Trace

if TYPE_CHECKING:
    from .conftest import TraceBuilder


def test_a_result_is_computed_once_and_freed_with_the_trace(build: TraceBuilder) -> None:
    build.op("aten::mm", 0, 10)
    asked = []

    @once
    def names(trace: Trace) -> set[str]:
        asked.append(trace.path)
        return set(trace.names)

    trace = build.read()
    answer = names(trace)
    assert names(trace) is answer == {"aten::mm"}
    assert names(build.read()) is not answer
    assert len(asked) == 2

    gone = weakref.ref(answer)
    del trace, answer
    gc.collect()
    assert gone() is None
