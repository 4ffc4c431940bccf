"""Columns of a rank from a few numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfkit.ranks.rank_columns import RankColumns

MS = 1_000_000


def rank_columns(rank: int = 0, steps: int = 4, collectives: int = 3, **changed: Any) -> RankColumns:
    """A rank whose steps of 100 ms have ``collectives`` each, with the fields of ``changed`` replaced."""
    number, m = np.arange(steps), steps * collectives
    start = 1_760_000_000 * 10**9 + number * 100 * MS
    arrive = (start[:, None] + 10 * MS * np.arange(1, collectives + 1)).reshape(-1)
    unknown = np.full(steps, -1)
    fields: dict[str, Any] = {
        "rank": rank,
        "world_size": 2,
        "host": "node0",
        "launch": "",
        "source": f"rank-{rank}",
        "origin": "rows",
        "digest": "0123",
        "lost": (),
        "step_number": number,
        "step_start_ns": start,
        "step_wall_ns": np.full(steps, 100 * MS),
        "phase_names": ("data", "backward"),
        "phases_ns": np.tile(np.array([20 * MS, 80 * MS]), (steps, 1)),
        "gc_ns": unknown,
        "waited_ns": unknown,
        "work": unknown,
        "group_names": ("all",),
        "kind_names": ("allreduce",),
        "collective_group": np.zeros(m, np.int32),
        "collective_kind": np.zeros(m, np.int32),
        "collective_sequence": np.arange(m),
        "collective_bytes": np.full(m, 1024),
        "collective_step": np.repeat(number, collectives),
        "collective_arrive_ns": arrive,
        "collective_start_ns": arrive + MS,
        "collective_end_ns": arrive + 5 * MS,
        "kernel_classes": (),
        "kernel_ns": np.zeros((steps, 0), np.int64),
        "kernel_count": np.zeros((steps, 0), np.int64),
    }
    return RankColumns(**(fields | changed))
