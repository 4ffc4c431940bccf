"""input-bound where a `datasets.Dataset` without a format hands out Python lists: it is to be given one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.findings import Finding
from perfkit.rules.data import input_bound
from perfkit.run.records import ComparedSamples, DatasetTable, LineRow, Lines

MS = 1_000_000
LISTS = DatasetTable(format="python", columns=2, numbers=4097)
COLLATE = "transformers.data.data_collator.default_data_collator"
TRAINER = Location(file="train.py", line=107, function="Trainer.train(...)", owner="accelerate")
CALLS: dict[str, tuple[Location, ...]] = {
    "TrainingArguments": (Location(file="train.py", line=82, function="TrainingArguments(...)"),),
    "Trainer": (Location(file="train.py", line=98, function="Trainer(...)"),),
    "train_dataset": (Location(file="train.py", line=101, function="train_dataset="),),
}
WITHIN = {
    "transformers > accelerate > torch.utils.data > transformers": 64,
    "transformers > accelerate > torch.utils.data > datasets": 17,
}


def fetch(data: float, within: dict[str, int]) -> LineRow:
    """The line of the Trainer, in which a batch is fetched for ``data`` ms."""
    place: dict[str, Any] = {"file": "train.py", "line": 107, "function": "main", "owner": "user"}
    return LineRow(**place, phase="data", samples=90, host_ns=round(data * MS), within=within)


@pytest.fixture
def found(build: Any) -> Any:
    def find(
        table: DatasetTable | None = LISTS,
        *,
        within: dict[str, int] = WITHIN,
        calls: dict[str, tuple[Location, ...]] = CALLS,
        workers: int = 0,
        data: float = 60.0,
        wall: float = 100.0,
        **loader: Any,
    ) -> Finding:
        rank = build.rank(workers=workers, calls=calls)
        known = {"collate_fn": COLLATE, "created_at": TRAINER, "batches": 100, "iterators": 1, **loader}
        loaders = (msgspec.structs.replace(rank.loaders[0], table=table, **known),)
        lines = Lines(period_ns=MS, steps=40, rows=(fetch(data, within),))
        step = build.step(wall, data=data, forward=wall - data)
        [one] = build.findings(input_bound, step, msgspec.structs.replace(rank, loaders=loaders), lines)
        return one

    return find


def is_of_format(finding: Finding) -> bool:
    return "with_format" in finding.advice


def test_a_dataset_that_hands_out_lists_is_to_be_given_a_format(found: Any) -> None:
    finding = found(compared_samples=ComparedSamples(compared=200, equal=200))

    assert finding.message == (
        "Waiting for data takes 60.0 ms of the 100 ms step (60%): the datasets.Dataset has no format, so it hands out "
        "Python lists, 4,097 numbers per sample, of which default_data_collator makes tensors again in each batch."
    )
    assert finding.advice.startswith('Give the dataset a format: dataset = dataset.with_format("torch")')
    assert (finding.spent.line, finding.change.line, finding.edit) == (107, 101, None)
    assert (finding.cost_ns, finding.saving_low_ns) == (59.9 * MS, 59.9 * MS / 2)
    assert finding.saving_high_ns >= finding.cost_ns
    assert ("numbers per sample", 4097) in [(one.name, one.value) for one in finding.evidence]


def test_the_line_is_the_trainers_where_its_argument_has_no_name(found: Any) -> None:
    calls = {name: at for name, at in CALLS.items() if name != "train_dataset"}

    assert found(calls=calls).change.line == 98
    # The user's line that the Trainer was called from, where no source shows more.
    assert (found(calls={}).change.line, found(calls={}).change.owner) == (107, "user")


def test_without_a_trainer_the_line_is_the_one_that_makes_the_loader(found: Any) -> None:
    made = Location(file="train.py", line=50, function="DataLoader(...)")

    finding = found(
        created_at=made, collate_fn="torch.utils.data._utils.collate.default_collate", within={"torch.utils.data": 90}
    )

    assert is_of_format(finding)
    assert finding.change.line == 50
    assert "of which default_collate makes tensors" in finding.message


@pytest.mark.parametrize(
    "case",
    [
        {"table": None},
        {"table": msgspec.structs.replace(LISTS, format="torch")},
        # Short lists, many columns, lists in lists: a format costs as much as it saves.
        {"table": msgspec.structs.replace(LISTS, numbers=65)},
        {"table": msgspec.structs.replace(LISTS, columns=40)},
        {"table": msgspec.structs.replace(LISTS, numbers=None)},
        # These make lists of tensors, or are the user's.
        {"collate_fn": "transformers.data.data_collator.DataCollatorWithPadding"},
        {"collate_fn": "__main__.default_collate"},
        {"collate_fn": None},
        # A fetch in which most is the user's own, and workers.
        {"within": {"": 50, **WITHIN, "transformers > accelerate > torch.utils.data > transformers": 23}},
        {"within": {}},
        {"workers": 2},
        # A new iterator for each batch costs more.
        {"iterators": 40, "within": {"torch.utils.data": 90}},
    ],
)
def test_no_format_is_advised_where_it_would_not_help(found: Any, case: dict[str, Any]) -> None:
    assert not is_of_format(found(**case))
    assert is_of_format(found())


def test_the_least_numbers_are_200_per_column(found: Any) -> None:
    assert is_of_format(found(DatasetTable(format="python", columns=2, numbers=400)))
    assert not is_of_format(found(DatasetTable(format="python", columns=2, numbers=399)))


def test_a_short_wait_is_shorter_with_a_format_too(found: Any) -> None:
    table = DatasetTable(format="torch", columns=2, numbers=512)

    # Batches that cost less than handing them over from workers.
    assert "only less work per batch" in found(table, data=1.2, wall=20.0).advice
    assert is_of_format(found(msgspec.structs.replace(table, format="python"), data=1.2, wall=20.0))


def test_on_a_device_the_minimum_is_no_more_than_it_was_idle_for_data(build: Any) -> None:
    rank = build.rank(calls=CALLS)
    loaders = (msgspec.structs.replace(rank.loaders[0], table=LISTS, collate_fn=COLLATE, created_at=TRAINER),)
    device = build.device(1000, compute=700, causes={"data loading": 50, "python": 250})

    [finding] = build.findings(
        input_bound,
        build.step(100, data=60, forward=40),
        msgspec.structs.replace(rank, loaders=loaders),
        Lines(period_ns=MS, steps=40, rows=(fetch(60.0, WITHIN),)),
        device,
    )

    assert is_of_format(finding)
    # 5 ms idle in each step, less 1.3 ms for handing over.
    assert finding.saving_low_ns == round(3.7 * MS)
