"""peak-N.json: what is known of tensors in the steps that were recorded for memory, beside their trace."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from perfkit.run.records.steps import Count
from perfkit.run.records.version import SCHEMA

#: What memory is held for. Activations are what a forward computes and another op uses later, "temporaries" all that is
#: freed again by the op or the backward that allocated it, and "other" what no part of the training is known to hold.
Holding = Literal[
    "parameters", "buffers", "gradients", "optimizer state", "activations", "inputs", "temporaries", "other"
]
HOLDINGS: tuple[Holding, ...] = get_args(Holding)


class Storage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The memory of a tensor that was alive: its device as torch names it, and what it is held for.

    ``name`` is the parameter's (``layers.0.weight``), the module's whose output or input it is, or for "other" its type
    and shape. ``is_output`` marks what a module returned: whether it is an activation is seen in the trace.
    """

    device: str
    address: Count
    bytes: Count
    holding: Holding
    name: str
    is_output: bool = False


class HeldStorages(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that was held at one time (unix ns): all that is known where ``is_whole``, else some."""

    time_ns: Count
    storages: tuple[Storage, ...]
    is_whole: bool = False


class MemorySteps(msgspec.Struct, frozen=True, kw_only=True):
    """The steps that were recorded for memory: the last one is recorded with its lines.

    Attributes:
        steps: Their numbers; the step before them, in which recording began, is left out.
        modules: The modules that have a range in the trace.
        chains: Modules whose children run one after the other, each with its children's names in order.
        held: What was held, in order of time.
        rss_bytes: The process's resident memory when the first of them began.
    """

    schema: int = SCHEMA
    steps: tuple[Count, ...]
    modules: tuple[str, ...] = ()
    chains: dict[str, tuple[str, ...]] = {}
    held: tuple[HeldStorages, ...] = ()
    rss_bytes: Count | None = None
