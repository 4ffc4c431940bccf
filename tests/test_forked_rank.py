"""A rank that is forked from the script's process has the script's changes already; one that is spawned has not."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from perfkit import _env, spawned_ranks
from perfkit.spawned_ranks import SpawnedRank

EVENTS: list[str] = []


class Log:
    """Stands for the profile, and for what happens to the rank beside its recording."""

    def __init__(self, **_: Any) -> None:
        self.started_by = ""

    def start(self, prof: Any = None) -> None:
        EVENTS.append("profile" if prof is None else "changes and profile")

    def stop(self, *_: Any) -> None:
        pass


def train(index: int) -> None:
    EVENTS.append(f"rank {index}")


@pytest.mark.parametrize(("spawned", "began"), [(True, "changes and profile"), (False, "profile")])
def test_changes_are_applied_where_the_process_has_not_got_them(
    monkeypatch: pytest.MonkeyPatch, spawned: bool, began: str
) -> None:
    monkeypatch.setattr(spawned_ranks, "profile", Log)
    monkeypatch.setattr(_env, "set_spawned", lambda *_: None)
    monkeypatch.setattr(spawned_ranks, "claim", lambda _: None)
    rank = SpawnedRank(train, 1, {}, "train.py", Log())
    EVENTS.clear()

    (pickle.loads(pickle.dumps(rank)) if spawned else rank)(0)

    assert [began, "rank 0"] == EVENTS
