"""Tells the samples of a batch from one another by some elements of each, at fixed places.

A sample is a row of every tensor of the batch, or one graph of a batch of torch_geometric. Nothing is computed with the
program's tensors but a copy of those elements, on the CPU.
"""

from __future__ import annotations

import functools
import itertools
from collections import UserDict
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from perfkit.record.program_values import is_fake, is_plain, is_tensor, own_attribute, parts_of

#: Maximum nesting of containers, and of tensors and lists of a batch: each costs some 10 µs.
_MAX_DEPTH, _MAX_PARTS = 4, 8
#: Elements of a row that are read: of samples that differ in a fiftieth of their elements half are distinguished, which
#: shows that samples differ. Fewer of a large batch, so that torch uses one thread.
_PLACES, _MAX_ELEMENTS = 32, 32_000
#: Rows of a graph that are read of each of its tensors, and numbers of all of these.
_GRAPH_ROWS, _GRAPH_NUMBERS = 8, 64
#: Bytes of the words that are combined.
_WORD = 8
#: Twice as many elements of at most 16 bytes, as a slice may have, and a number of rows.
_MAX_WORDS = 4 * _PLACES + 1
_PARTS_FACTOR = 0x9E3779B97F4A7C15
_PLAIN = (str, int, float, bool)


class UnknownSamples(Exception):
    """The rows of a batch cannot be told to be samples, or cannot be read."""


class RowWidths:
    """How far the rows of each tensor go, where batches are padded to different widths.

    Places are counted from the beginning of the row, and none is beyond what the shortest batch has.
    """

    def __init__(self) -> None:
        self._known: list[tuple[tuple[int, ...], int]] = []
        #: How many places of a row are read.
        self.places = 0
        #: Whether batches of different widths were seen.
        self.vary = False

    def of(self, tensors: Sequence[Any]) -> tuple[list[int], bool]:
        """The elements of each tensor's rows to read, and whether these are fewer than before.

        Raises `UnknownSamples` where more than the second dimension differs from the batches before.
        """
        shapes = [(tuple(one.shape[2:]), int(one.shape[1]) if one.dim() > 1 else 1) for one in tensors]
        fewer = False
        if not self._known:
            self._known = shapes
            count = max((one.shape[0] for one in tensors), default=1)
            self.places = min(_PLACES, _MAX_ELEMENTS // count // _WORD * _WORD)
            if not self.places:
                raise UnknownSamples
        if [rest for rest, _ in shapes] != [rest for rest, _ in self._known]:
            raise UnknownSamples
        for place, ((rest, width), (_, known)) in enumerate(zip(shapes, self._known, strict=True)):
            self.vary = self.vary or width != known
            if width < known:
                # Half of it: the next batch may be shorter still.
                self._known[place] = rest, max(1, width // 2)
                fewer = True
        return [known * _product(rest) for rest, known in self._known], fewer


def fingerprints(batch: Any, count: int, widths: RowWidths) -> tuple[list[int], bool]:
    """A number for each of the ``count`` samples of a batch, and whether they cannot be compared with earlier ones.

    Raises `UnknownSamples`, or what an exotic tensor raises, where the batch does not show its samples.
    """
    import numpy  # importing perfkit does not import numpy

    store = _graphs_in(batch)
    fewer = False
    if store is not None:
        words = [_graph_words(key, store, count) for key in _keys_of(store)]
    else:
        parts = list(itertools.islice(_parts_in(batch, count), _MAX_PARTS + 1))
        if len(parts) > _MAX_PARTS:
            raise UnknownSamples
        tensors = [part for part in parts if is_tensor(part)]
        lengths, fewer = widths.of(tensors)
        words = [_row_words(one, length, widths.places) for one, length in zip(tensors, lengths, strict=True)]
        for values in (part for part in parts if not is_tensor(part)):
            hashes = numpy.fromiter(map(hash, values), dtype=numpy.int64, count=count)
            words.append(hashes.view(numpy.uint64).reshape(count, 1))
    if not words:
        raise UnknownSamples
    total = numpy.zeros(count, dtype=numpy.uint64)
    for one in words:
        total *= numpy.uint64(_PARTS_FACTOR)
        total += one @ _factors()[: one.shape[1]]
    found: list[int] = total.tolist()
    return found, fewer


def _parts_in(value: Any, count: int, depth: int = 0) -> Iterator[Any]:
    """The tensors of a batch with a row per sample, and its lists of texts or numbers with one per sample.

    Single numbers and texts are of no sample, and left out.
    """
    kind = type(value)
    if value is None or kind in _PLAIN:
        return
    if is_tensor(value):
        if not _is_readable(value):
            raise UnknownSamples
        if value.dim():
            if value.shape[0] != count or not value.numel():
                raise UnknownSamples
            yield value
        return
    if depth == _MAX_DEPTH:
        raise UnknownSamples
    if issubclass(kind, UserDict):  # transformers' BatchEncoding
        value = own_attribute(value, "data")
        kind = type(value)
    if not issubclass(kind, (tuple, list, dict)):
        value = _own_attributes(value)
        if not value:
            raise UnknownSamples
        kind = dict
    values = list(parts_of(value))
    if not issubclass(kind, dict) and values and all(type(one) in _PLAIN for one in values):
        if len(values) != count:
            raise UnknownSamples
        yield values
        return
    for one in values:
        yield from _parts_in(one, count, depth + 1)


def _own_attributes(value: Any) -> dict[str, Any]:
    """The attributes that an object has of its own; no code of its class runs."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _row_words(tensor: Any, length: int, most: int) -> Any:
    """Some elements of each row, ``most`` of the first ``length``, as words of 64 bits."""
    rows = tensor.detach()
    if not rows.is_contiguous():
        # Images whose channels were moved are one block in another order.
        rows = rows.permute(0, *sorted(range(1, rows.dim()), key=lambda dim: -rows.stride(dim)))
        if not rows.is_contiguous() or length != _product(rows.shape[1:]):
            raise UnknownSamples
    count = int(rows.shape[0])
    rows = rows.view(count, -1)
    # A slice is copied in a third of the time of an `index_select`. An odd distance, so that of a picture, whose width
    # is mostly even, not all places are in one column.
    picked = rows[:, :length] if length <= most else rows[:, : (length // most | 1) * most : length // most | 1]
    if picked.shape[1] * picked.element_size() % _WORD:
        return _words(rows.index_select(1, _places(length, most)))
    return _words(picked.clone(memory_format=torch.contiguous_format))


def _words(copied: Any) -> Any:
    """A copy that perfkit made, as an array of words: torch cannot resize memory that numpy shares."""
    import numpy  # not before a batch is looked at

    return copied.view(torch.uint8).numpy().view(numpy.uint64)


@functools.lru_cache(maxsize=64)
def _places(length: int, most: int) -> torch.Tensor:
    """Places in a row of this length, in number a multiple of `_WORD`."""
    number = min(-(-length // _WORD) * _WORD, most)
    places = [min(place * max(1, length // most | 1), length - 1) for place in range(number)]
    return torch.tensor(places, device="cpu")


@functools.cache
def _factors() -> Any:
    """An odd factor for each word of a row: the same in every process, and not drawn (they are those of splitmix64)."""
    import numpy  # not before a batch is looked at

    found, state, mask = [], 0, 2**64 - 1
    for _ in range(_MAX_WORDS):
        state = (state + _PARTS_FACTOR) & mask
        word = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
        found.append((word ^ (word >> 31)) | 1)
    return numpy.array(found, dtype=numpy.uint64)


def _is_readable(tensor: Any) -> bool:
    """Whether it has values in the memory of the host: to read others, a device would have to finish its work."""
    return is_plain(tensor) and not is_fake(tensor) and tensor.device.type == "cpu"


def _product(sizes: Sequence[int]) -> int:
    return functools.reduce(lambda one, other: one * int(other), sizes, 1)


# -- graphs of torch_geometric


def _graphs_in(batch: Any) -> dict[str, Any] | None:
    """The attributes of the store of a batch of graphs; None for any other batch."""
    if is_tensor(batch) or issubclass(type(batch), (tuple, list, dict)):
        return None
    store = _own_attributes(_own_attributes(batch).get("_store"))
    return store if type(store.get("_slice_dict")) is dict and type(store.get("_mapping")) is dict else None


def _keys_of(store: dict[str, Any]) -> Iterator[str]:
    """The attributes that hold a part of each graph."""
    found = 0
    for key, value in store["_mapping"].items():
        if key in ("batch", "ptr") or not is_tensor(value):
            continue
        if key not in store["_slice_dict"] or not _is_readable(value) or found == _MAX_PARTS:
            raise UnknownSamples
        found += 1
        yield key


def _graph_words(key: str, store: dict[str, Any], count: int) -> Any:
    """Some numbers of an attribute of each graph, and how many rows it has there."""
    import numpy  # not before a batch is looked at

    values, slices = store["_mapping"][key].detach(), store["_slice_dict"][key]
    if not is_tensor(slices) or not _is_readable(slices) or tuple(slices.shape) != (count + 1,) or not values.dim():
        raise UnknownSamples
    bounds = slices.clone().numpy()
    total = int(bounds[-1])
    if values.shape[0] != total:
        # Edges are columns, and the numbers of nodes go on from graph to graph.
        if values.dim() != 2 or values.shape[1] != total:
            raise UnknownSamples
        values = values.t()
    if not total:
        raise UnknownSamples
    sizes = numpy.diff(bounds)[:, None]
    rows = bounds[:-1, None] + sizes * numpy.arange(_GRAPH_ROWS) // _GRAPH_ROWS
    picked = values.index_select(0, torch.from_numpy(numpy.minimum(rows, total - 1).reshape(-1))).view(count, -1)
    if picked.shape[1] > _GRAPH_NUMBERS:
        picked = picked[:, :: picked.shape[1] // _GRAPH_NUMBERS | 1]
    added = store["_inc_dict"].get(key) if type(store.get("_inc_dict")) is dict else None
    if is_tensor(added) and picked.dtype is torch.int64 and tuple(added.shape) == (count,):
        picked = picked - added[:, None]
    # An even number of them: small types fill whole words.
    words = _words(torch.nn.functional.pad(picked, (0, -picked.shape[1] % _WORD)).contiguous())
    return numpy.concatenate((words * (sizes > 0), sizes.astype(numpy.uint64)), axis=1)
