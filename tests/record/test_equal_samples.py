"""Which loaders give the same samples in each pass, and where that is not known."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from perfkit.record.hooks.loop_observer import LoopObserver
from perfkit.record.hooks.sample_fingerprints import RowWidths, fingerprints
from perfkit.run.records import ComparedSamples

SIZE = 200


class Samples(Dataset[Any]):
    """What ``make`` returns for an index."""

    def __init__(self, make: Callable[[int], Any], size: int = SIZE) -> None:
        self.make, self.size = make, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter([row(index) for index in range(SIZE)])


def row(index: int, width: int = 30) -> Tensor:
    return torch.randn(width, generator=torch.Generator().manual_seed(index))


def flipped(index: int) -> Tensor:
    return row(index).flip(0) if random.random() < 0.5 else row(index)


def padded(samples: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


def words(index: int) -> Tensor:
    return torch.arange(index, index + 10 + index % 17)


@pytest.fixture
def compare() -> Iterator[Callable[..., ComparedSamples | None]]:
    """Goes through a loader a few times, and returns what is recorded of it."""
    observers = []

    def passes(loader: Any, epochs: int = 2, after: Callable[[Any], Any] = id) -> ComparedSamples | None:
        observer = LoopObserver(on_optimizer=id, on_samples=id, on_batch=id)
        observers.append(observer)
        observer.attach()
        # Steps of no time leave perfkit none.
        observer._seen.samples._spent_ns = -(10**12)
        torch.manual_seed(0)
        try:
            for _ in range(epochs):
                for batch in loader:
                    after(batch)
        finally:
            observer.detach()
        [known] = observer.loaders.values()
        return known.compared_samples

    yield passes
    for observer in observers:
        observer.detach()


def shuffled(make: Callable[[int], Any], size: int = SIZE, **arguments: Any) -> Any:
    return DataLoader(Samples(make, size), batch_size=16, shuffle=True, **arguments)


def pair(index: int) -> dict[str, Any]:
    return {"views": (row(index), [row(index)[:3], index]), "name": f"{index}.png"}


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (row, {}),
        (row, {"num_workers": 2}),
        (row, {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3}),
        (lambda index: (row(index, 3 * 20 * 20).view(3, 20, 20), 0), {}),
        (pair, {}),
        (words, {"collate_fn": padded}),
        (lambda index: row(index).bfloat16(), {}),
        (lambda index: (row(index) > 0, index), {}),
        (lambda index: torch.tensor(index), {"drop_last": True}),
        # A collate function may sort its samples.
        (row, {"collate_fn": lambda samples: torch.stack(sorted(samples, key=lambda one: float(one[0])))}),
        # Equal rows of some samples: these come again as well.
        (lambda index: row(index - index % 50 // 49), {}),
    ],
)
def test_a_deterministic_dataset_gives_equal_samples(compare: Any, make: Any, arguments: dict[str, Any]) -> None:
    # A batch that is shorter than all before makes the comparison begin again: in three passes of 300 orders of the
    # padded words, 13 leave nothing to compare, in six none.
    found = compare(shuffled(make, **arguments), epochs=6)

    assert found is not None
    assert found.equal >= 0.95 * found.compared > 64


@pytest.mark.parametrize(
    ("make", "share"),
    [
        (lambda index: row(index) + torch.rand(1), 0.0),
        (flipped, 0.5),
        # Only a small part of the batch is drawn: whom an example is compared with.
        (lambda index: (row(index, 500), random.randrange(1000)), 0.0),
        (lambda index: (row(index), f"{index} {random.random()}"), 0.0),
        # A patch of a twentieth of the picture is erased.
        (lambda index: row(index, 400).index_fill(0, torch.arange(20) + random.randrange(380), 0.0), 0.1),
    ],
)
def test_a_dataset_that_draws_random_numbers_does_not(compare: Any, make: Any, share: float) -> None:
    random.seed(0)
    found = compare(shuffled(make), epochs=3)

    assert found is not None
    assert found.equal / found.compared == pytest.approx(share, abs=0.15)


def enlarged(one: Tensor, samples: list[Tensor]) -> Tensor:
    high, wide = (max(other.shape[dim] for other in samples) for dim in (1, 2))
    return torch.nn.functional.pad(one, (0, wide - one.shape[2], 0, high - one.shape[1]))


def lost(samples: list[Tensor]) -> Tensor:
    return torch.stack([one for one in samples if one[0] > 0])


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Stream(), batch_size=16),
        shuffled(lambda index: torch.ones(20)),
        shuffled(lambda index: torch.tensor(index % 2)),
        shuffled(row, size=20),
        shuffled(row, collate_fn=lost),
        shuffled(row, collate_fn=lambda samples: samples),
        shuffled(row, collate_fn=lambda samples: torch.stack(samples, dim=1)),
        shuffled(row, collate_fn=lambda samples: [one.numpy() for one in samples]),
        # Pictures of many sizes in one block: what is padding is not known.
        shuffled(
            lambda index: torch.ones(1, 8 + index % 50, 8 + index % 70) * index,
            collate_fn=lambda samples: torch.stack([enlarged(one, samples) for one in samples]),
        ),
        # Padding on the left.
        shuffled(words, collate_fn=lambda samples: padded([one.flip(0) for one in samples]).flip(1)),
        shuffled(lambda index: row(index).to_sparse(), collate_fn=lambda samples: torch.stack(samples)),
        shuffled(row, collate_fn=lambda samples: torch.stack(samples).to("meta")),
    ],
)  # fmt: skip
def test_of_other_batches_nothing_is_known(compare: Any, loader: Any) -> None:
    assert compare(loader) is None


def test_where_the_shortest_batch_is_the_last_the_whole_next_pass_is_kept(compare: Any) -> None:
    dataset = Samples(lambda index: torch.arange(index, index + (20 if index < 192 else 12)))

    found = compare(DataLoader(dataset, batch_size=16, collate_fn=padded), epochs=3)

    assert found == ComparedSamples(compared=SIZE, equal=SIZE)


def test_one_pass_says_nothing(compare: Any) -> None:
    assert compare(shuffled(row), epochs=1) is None


def test_samples_drawn_with_replacement_are_compared_where_they_come_again(compare: Any) -> None:
    def drawn(make: Any) -> Any:
        dataset = Samples(make)
        return DataLoader(dataset, batch_size=16, sampler=RandomSampler(dataset, replacement=True))

    equal, different = compare(drawn(row)), compare(drawn(lambda index: row(index) + torch.rand(1)))

    assert (equal.equal, different.equal) == (equal.compared, 0)


def test_a_dataset_larger_than_what_is_kept_is_compared(compare: Any) -> None:
    found = compare(DataLoader(Samples(lambda index: torch.tensor([index] * 3), 40_000), batch_size=500, shuffle=True))

    assert found is not None
    assert found.equal == found.compared >= 512


def test_graphs_of_torch_geometric_are_compared_one_by_one(compare: Any) -> None:
    pytest.importorskip("torch_geometric")
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader as GraphLoader

    def graph(index: int) -> Any:
        random_of = torch.Generator().manual_seed(index)
        nodes = 3 + index % 9
        edges = torch.randint(nodes, (2, 2 * nodes), generator=random_of)
        x = torch.randn(nodes, 12, generator=random_of)
        return Data(x=x, edge_index=edges, edge_attr=edges.t().float(), y=torch.ones(1), name=f"{index}")

    def without_edges(index: int) -> Any:
        whole = graph(index)
        kept = torch.rand(whole.edge_index.shape[1]) > 0.3
        return Data(x=whole.x, edge_index=whole.edge_index[:, kept], y=whole.y)

    def rewired(index: int) -> Any:
        whole = graph(index)
        whole.edge_index = torch.randint(len(whole.x), whole.edge_index.shape)
        return whole

    def passes(make: Any, workers: int = 0) -> Any:
        return compare(GraphLoader(Samples(make), batch_size=16, shuffle=True, num_workers=workers))

    for workers in (0, 1):
        found = passes(graph, workers)
        assert found.equal == found.compared > 64
    assert passes(without_edges).share < 0.2
    assert passes(rewired).share < 0.1


def test_a_batch_that_the_program_changes_is_compared_as_it_came(compare: Any) -> None:
    stored = [row(index) for index in range(SIZE)]

    found = compare(shuffled(stored.__getitem__), after=lambda batch: batch.add_(1.0).resize_(3))

    assert found is not None
    assert found.equal == found.compared


def test_no_random_number_is_drawn_and_no_batch_kept(compare: Any) -> None:
    import weakref

    batches: list[Any] = []

    def drawn() -> list[float]:
        torch.manual_seed(0)
        compare(DataLoader(Samples(row), batch_size=16), after=lambda batch: batches.append(weakref.ref(batch)))
        return torch.rand(4).tolist()

    with_it = drawn()
    torch.manual_seed(0)
    for _ in range(2):
        list(DataLoader(Samples(row), batch_size=16))
    assert torch.rand(4).tolist() == with_it
    assert [one() for one in batches[:-1]] == [None] * (len(batches) - 1)


def test_what_a_batch_raises_does_not_reach_the_program(compare: Any) -> None:
    class Raising:
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __len__(self) -> int:
            raise RuntimeError

    class Odd(Tensor):
        @classmethod
        def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError

    for batch in (Raising(), torch.ones(16, 3).as_subclass(Odd), object(), {"x": Raising()}):
        assert compare(shuffled(row, collate_fn=lambda samples, batch=batch: batch)) is None


def test_a_loader_of_short_steps_takes_little_of_their_time(compare: Any) -> None:
    from perfkit.record.hooks import equal_samples

    observer = LoopObserver(on_optimizer=id, on_samples=id, on_batch=id)
    observer.attach()
    try:
        for _ in range(30):
            list(DataLoader(torch.utils.data.TensorDataset(torch.rand(2000, 40)), batch_size=10))
    finally:
        observer.detach()
    watch = observer._seen.samples

    # One look that the machine interrupts may take more than its share.
    assert watch._spent_ns < equal_samples._FIRST_NS + 10_000_000


def test_widths_of_batches_that_are_padded_are_read_up_to_the_shortest() -> None:
    widths = RowWidths()
    wide, narrow = torch.arange(40).view(2, 20), torch.arange(40).view(2, 20)[:, :12].clone()

    fingerprints(wide, 2, widths)
    assert fingerprints(narrow, 2, widths)[1], "fewer places can be compared than before"
    assert fingerprints(narrow, 2, widths) == fingerprints(wide, 2, widths)
    assert widths.vary
