"""The optimizers of torch that have a fused form, also on a CPU."""

from __future__ import annotations

from typing import NamedTuple


class FusedUpdate(NamedTuple):
    """A fused update on a CPU: single ops that cost as much per tensor, and how often it goes over the parameters."""

    ops_per_tensor: float
    passes: int


#: Classes of torch that have a fused form on a CPU (torch 2.4 to 2.13). Passes: parameters and states are read and
#: written, gradients read; SGD's state is its momentum. The number of steps is a tensor but for SGD.
FUSED = {
    "Adam": FusedUpdate(1.6, 7),
    "AdamW": FusedUpdate(1.6, 7),
    "Adagrad": FusedUpdate(1.6, 5),
    "SGD": FusedUpdate(0.6, 5),
}
