"""What tests of recording share."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def nothing_compiled() -> None:
    """Dynamo as in a program that compiled nothing: other tests of this process may have."""
    if (eval_frame := sys.modules.get("torch._dynamo.eval_frame")) is not None:
        eval_frame.cached_backends.clear()
