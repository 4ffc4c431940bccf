"""perfkit in TensorBoard.

handler   ``trace_handler``: writes each window's trace, and what perfkit found in it as text and scalars

Importing this package loads neither torch nor tensorboard.
"""

from __future__ import annotations

from perfkit.integrations.tensorboard.handler import trace_handler as trace_handler

__all__ = ["trace_handler"]
