"""What follows for a slow loader from whether each epoch gives the same samples."""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Evidence
from perfkit.rules.data._loader_use import LoaderUse
from perfkit.run.records import ComparedSamples, LineRow

#: The share of the samples of later epochs that have to be equal (chosen): one in twenty may have been kept by chance,
#: or differ in something else than the work's result, such as a time stamp.
_EQUAL = 0.95
#: Where the time of a fetch passes that `pre_transform` moves before training.
_GRAPHS = "torch_geometric"


def are_equal(samples: ComparedSamples | None) -> bool | None:
    """Whether each epoch gives the same samples; None where that is not known."""
    return None if samples is None else samples.share >= _EQUAL


def saves_once(loader: LoaderUse, hottest: LineRow | None) -> bool:
    """Whether the work of a line need not be done again in each epoch, and nothing else is what the wait is for."""
    else_is_first = loader.starts or loader.restarted or loader.manager is not None
    # With workers that were not sampled the line is where the loop waits, not where the work is done.
    is_work = hottest is not None and (not loader.num_workers or hottest.worker is not None)
    return are_equal(loader.samples) is True and is_work and not else_is_first


def differ(loader: LoaderUse) -> bool:
    """Whether samples are certainly others in each epoch: they draw random numbers, or the epoch changes them."""
    return are_equal(loader.samples) is False


def once_advice(work: str, workers: str, hottest: LineRow | None = None) -> str:
    """Do it once; ``workers`` sets those that help where its results are too many to keep, empty for none."""
    graphs = hottest is not None and any(_GRAPHS in library for library in hottest.within)
    places = "pre_transform of the dataset, or a file" if graphs else "a list, a tensor, a file"
    once = f"Do {work} once, before training, and keep its results ({places}): each epoch gives the same samples."
    return f"{once} If they are too many to keep: {workers}." if workers else once


def each_time_advice(work: str, workers: str) -> str:
    """Do it elsewhere or faster, but each time; ``workers`` sets those that help, empty for none."""
    why = "Samples differ from epoch to epoch, so that they cannot be kept."
    if not workers:
        return f"Do {work} in one call per batch, or make it cheaper: more workers would not help here. {why}"
    return f"Do {work} in background processes, {workers}, or in one call per batch. {why}"


def evidence_of(samples: ComparedSamples | None) -> Iterator[Evidence]:
    """How many samples came again."""
    if samples is not None:
        source = f"{samples.compared} samples, by some elements of each"
        yield Evidence.percent(
            "samples of later epochs that came in the first", samples.equal, samples.compared, source
        )
