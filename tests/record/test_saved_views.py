"""Views that are saved with all of their memory, as the steps in which ops are listened to show them."""

from __future__ import annotations

import copy
import gzip
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from perfkit.record.samplers.constant_ops import ConstantOpLog
from perfkit.run.records import SavedViews

BATCH = torch.randn(8, 100, 100)
ROW, ALL = BATCH[0].nbytes, BATCH.nbytes


def saved(what: Any) -> bytes:
    file = io.BytesIO()
    torch.save(what, file)
    return file.getvalue()


def saved_before_1_6(what: Any) -> None:
    torch.save(what, io.BytesIO(), _use_new_zipfile_serialization=False)


def found(*steps: Callable[[], Any]) -> tuple[SavedViews, ...]:
    log = ConstantOpLog(lambda: "forward")
    for step in steps if len(steps) > 1 else 2 * steps:
        log.start()
        step()
        log.stop()
    return log.inputs.saved_views.rows()


@pytest.mark.parametrize(
    ("step", "calls", "needed", "written"),
    [
        (lambda: torch.save(BATCH[1], io.BytesIO()), 1, ROW, ALL),
        (lambda: [torch.save(row, io.BytesIO()) for row in BATCH], 8, 8 * ROW, 8 * ALL),
        (lambda: torch.save(BATCH[1], io.BytesIO(), _use_new_zipfile_serialization=False), 1, ROW, ALL),
        (lambda: torch.save({"a": BATCH[1], "b": [BATCH[2]]}, io.BytesIO()), 1, 2 * ROW, ALL),
        (lambda: torch.save(nn.Parameter(BATCH[1]), io.BytesIO()), 1, ROW, ALL),
        (lambda: torch.save(BATCH.view(-1)[:1000].reshape(10, 100).T, io.BytesIO()), 1, 4000, ALL),
        (lambda: pickle.dumps(BATCH[1]), 1, ROW, ALL),
        (lambda: gzip.compress(pickle.dumps(BATCH[1], 2), 1), 1, ROW, ALL),
        (lambda: pickle.dumps(list(BATCH)), 8, 8 * ROW, 8 * ALL),
        (lambda: pickle.dump({"row": nn.Parameter(BATCH[1])}, io.BytesIO()), 1, ROW, ALL),
    ],
    ids=[
        "a row", "each row", "a row in the old format", "two rows in one file", "a parameter", "a view of a view",
        "a pickle", "a compressed pickle", "a pickle of all rows, which shares no memory", "a pickle of a parameter",
    ],
)  # fmt: skip
def test_a_line_that_saves_views_is_counted_with_what_it_writes(
    step: Callable[[], Any], calls: int, needed: int, written: int
) -> None:
    [row] = found(step)

    assert (row.calls, row.bytes, row.storage_bytes) == (calls, needed, written)
    assert row.line == step.__code__.co_firstlineno


def test_pickle_writes_in_memory_and_torch_save_a_file() -> None:
    def step() -> None:
        pickle.dumps(BATCH[1])
        torch.save(BATCH[1], io.BytesIO())
        pickle.dumps(BATCH[1]), torch.save(BATCH[1], io.BytesIO())

    rows = found(step)

    assert [row.in_memory for row in rows] == [True, False, False]


def test_the_bytes_that_are_counted_are_those_of_the_file() -> None:
    def step() -> None:
        sizes.append((len(saved(BATCH[1])), len(pickle.dumps(BATCH[2])), len(saved(BATCH[1].clone()))))

    sizes: list[tuple[int, int, int]] = []
    rows = {row.function: row for row in found(step)}

    in_file, in_pickle, of_clone = sizes[-1]
    assert in_file == pytest.approx(rows["saved"].storage_bytes - ROW, rel=0.01)
    assert in_pickle == pytest.approx(ALL, rel=0.01)
    assert of_clone == pytest.approx(ROW, rel=0.1)


def _flattened() -> dict[str, torch.Tensor]:
    flat = torch.randn(40_000)
    return {str(at): part for at, part in enumerate(flat.split(4_000))}


def _tied() -> nn.Module:
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50, bias=False))
    model[1].weight = model[0].weight
    return model


TIED, FLAT = _tied(), _flattened()
WEIGHTS = nn.LSTM(8, 8, num_layers=3)


@pytest.mark.parametrize(
    "step",
    [
        lambda: torch.save(BATCH, io.BytesIO()),
        lambda: [torch.save(row.clone(), io.BytesIO()) for row in BATCH],
        lambda: torch.save({"a": BATCH[:4], "b": BATCH[4:]}, io.BytesIO()),
        lambda: torch.save(list(BATCH), io.BytesIO()),
        lambda: torch.save({"a": BATCH[:6], "b": BATCH[2:]}, io.BytesIO()),
        lambda: torch.save(BATCH[0, 0].expand(1000, 100).clone()[0].expand(1000, 100), io.BytesIO()),
        lambda: torch.save(FLAT, io.BytesIO()),
        lambda: torch.save(TIED.state_dict(), io.BytesIO()),
        lambda: torch.save(WEIGHTS.state_dict(), io.BytesIO()),
        lambda: pickle.dumps(TIED.state_dict()),
        lambda: pickle.dumps(BATCH[1].numpy()),
        lambda: BATCH[1].numpy().tobytes(),
        lambda: pickle.dumps(BATCH[1].tolist()),
        lambda: copy.copy(BATCH[1]),
        lambda: copy.deepcopy(BATCH[1].clone()),
        lambda: torch.save(BATCH.to("meta")[0], io.BytesIO()),
        lambda: torch.save(BATCH[0].to_sparse(), io.BytesIO()),
        lambda: torch.load(io.BytesIO(saved(BATCH.clone()))),
    ],
    ids=[
        "a batch", "clones", "halves in one file", "all rows in one file", "parts that overlap", "an expanded row",
        "flattened weights", "tied weights", "an LSTM", "a pickle of tied weights", "an array", "bytes", "numbers",
        "copy.copy", "a copy", "no memory", "a sparse tensor", "loading",
    ],
)  # fmt: skip
def test_what_writes_no_more_than_its_tensors_is_not_counted(step: Callable[[], Any]) -> None:
    assert found(step) == ()


def test_a_function_that_gets_a_view_is_passed_it_by_the_line_of_the_function_that_made_it() -> None:
    def keep(row: torch.Tensor) -> None:
        saved(row)

    def step() -> None:
        for row in BATCH:
            keep(row)

    [row] = found(step)

    assert (row.function, row.calls) == ("saved", 8)
    assert [at.function.split(".")[-1] for at in row.passed_at if at.function] == ["saved", "keep", "step"]
    assert row.passed_at[-1].line == step.__code__.co_firstlineno + 2


def test_a_function_that_makes_the_view_itself_is_passed_nothing() -> None:
    def keep(batch: torch.Tensor) -> None:
        pickle.dumps(batch[0])

    [row] = found(lambda: keep(BATCH))

    assert [at.line for at in row.passed_at] == [row.line] == [keep.__code__.co_firstlineno + 1]


def test_a_view_from_before_the_step_is_known_by_the_line_that_saves() -> None:
    view = BATCH[3]

    [row] = found(lambda: saved(view))

    assert [at.line for at in row.passed_at] == [row.line]


def test_of_two_steps_the_one_that_saves_most_counts() -> None:
    for steps in ((lambda: None, lambda: saved(BATCH[1])), (lambda: saved(BATCH[1]), lambda: None)):
        [row] = found(*steps)
        assert (row.calls, row.storage_bytes) == (1, ALL)


def test_another_thread_is_not_heard() -> None:
    def step() -> None:
        thread = threading.Thread(target=lambda: pickle.dumps(BATCH[1]))
        thread.start()
        thread.join()

    assert found(step) == ()


def test_an_error_in_a_save_is_the_programs_and_what_comes_after_it_is_heard() -> None:
    def step() -> None:
        with pytest.raises((AttributeError, pickle.PicklingError, TypeError)):
            torch.save([BATCH[1], lambda: 0], io.BytesIO())
        pickle.dumps(BATCH[2])

    [row] = found(step)

    assert (row.line, row.calls) == (step.__code__.co_firstlineno + 3, 1)


def test_nothing_stays_replaced() -> None:
    before = vars(torch.Tensor).get("__reduce_ex__"), torch.serialization._save, torch.serialization._legacy_save
    found(lambda: saved(BATCH[1]))

    after = vars(torch.Tensor).get("__reduce_ex__"), torch.serialization._save, torch.serialization._legacy_save
    assert after == before
