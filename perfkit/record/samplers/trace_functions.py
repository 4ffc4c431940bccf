"""Trace functions (``sys.settrace``) that never raise into the program whose lines they follow."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from perfkit._code_owner import USER, owner_of
from perfkit._raised_signals import signal_of
from perfkit.ranges import dynamo

if TYPE_CHECKING:
    from perfkit.record.samplers.line_tracer import LineTracer

#: What ``sys.settrace`` takes, and what a frame's ``f_trace`` is.
Trace = Callable[[FrameType, str, Any], Any]


def stops_at_error(follow: Any) -> Callable[..., Trace | None]:
    """A trace function that stops tracing where an error would reach the program whose lines it follows."""

    def guarded(tracer: LineTracer, frame: FrameType, event: str, arg: Any) -> Trace | None:
        began_ns = time.perf_counter_ns()
        tracer.now_ns = began_ns - tracer.own_ns
        try:
            result: Trace | None = follow(tracer, frame, event, arg)
        except Exception as error:
            sys.settrace(None)
            if signal_of(error) is not None:
                raise
            tracer.refused = f"{type(error).__name__}: {error}"
            return None
        if tracer.ended_at() is None:
            tracer.own_ns += time.perf_counter_ns() - began_ns
        return result

    # The interpreter calls these while a compiled program runs: Dynamo would compile what they do with tensors.
    dynamo.leave_alone(guarded.__code__, follow.__code__)
    return guarded


def user_caller(frame: FrameType) -> FrameType | None:
    """The nearest frame of the user's outside ``frame``."""
    caller = frame.f_back
    while caller is not None and owner_of(caller.f_code.co_filename) != USER:
        caller = caller.f_back
    return caller
