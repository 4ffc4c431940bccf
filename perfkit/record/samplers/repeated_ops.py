"""Ops that compute what an op computed before in the same step, and the line that leads to them.

Two ops have the same result if they are the same op and their results have the same shape, type and sampled elements:
no two different computations of floating point numbers agree in 64 of them, unless all of these are equal, and such a
result says nothing. Nor does one that an op leaves as its input was: what adds nothing to a state repeats no op.
`ConstantOpLog` hands on the ops of a step that are not the same in each step.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any

from perfkit._code_owner import USER, function_name
from perfkit.record.program_values import is_tensor, sample_of
from perfkit.record.samplers.call_paths import Path, Site, location_of
from perfkit.run.records import RepeatedOps

#: Smaller results agree by chance, or cost nothing.
_FEW_ELEMENTS = 8
#: A line leads to the repeated ops if it leads to this share of their time; of several such lines the outermost counts
#: whose share of repeated ops is nearly that of the line with the largest (both chosen).
_LEADS, _NEARLY = 0.9, 0.9


class RepeatedOpLog:
    """Counts the repeated ops of one step; keeps no tensor alive."""

    def __init__(self) -> None:
        #: Results, and how often each was computed.
        self._seen: Counter[int] = Counter()
        #: Lines that led to an op -> the time of all ops, and of the repeated ones.
        self._all: Counter[Path] = Counter()
        self._again: Counter[Path] = Counter()
        self._ops = 0
        self._graph_ns = 0

    def add(self, func: Any, arguments: Any, out: Any, path: Path, took_ns: int, *, with_graph: bool) -> None:
        """An op below these lines has returned ``out`` for these positional arguments.

        ``with_graph``: a backward may follow it.
        """
        self._all[path] += took_ns
        tensor = out[0] if isinstance(out, tuple) and out else out
        if not is_tensor(tensor) or not tensor.is_floating_point() or tensor.numel() < _FEW_ELEMENTS:
            return
        sample = sample_of(tensor)
        if sample is None or sample == sample[: tensor.element_size()] * (len(sample) // tensor.element_size()):
            return
        key = hash((func, tensor.shape, tensor.stride(), tensor.dtype, sample))
        if key in self._seen and not any(sample == _sample_of_alike(one, tensor) for one in arguments):
            self._again[path] += took_ns
            self._ops += 1
            self._graph_ns += took_ns if with_graph else 0
        self._seen[key] += 1

    def rows(self) -> tuple[RepeatedOps, ...]:
        """The line that leads to nearly all of them; none where no line does."""
        again_ns = self._again.total()
        in_all, in_again = _by_site(self._all), _by_site(self._again)
        shares = {site: ns / max(1, in_all[site]) for site, ns in in_again.items() if ns >= _LEADS * again_ns > 0}
        if not shares:
            return ()
        best = max(shares.values())
        outwards = {site: at for path in self._again for at, site in enumerate(path)}
        code, line = max((site for site in shares if shares[site] >= _NEARLY * best), key=lambda site: outwards[site])
        busiest = Counter[Site]()
        for path, ns in self._again.items():
            busiest[path[0]] += ns
        return (
            RepeatedOps(
                file=code.co_filename,
                line=line,
                function=function_name(code),
                owner=USER,
                busiest=location_of(busiest.most_common(1)[0][0]),
                ops=self._ops,
                host_ns=again_ns,
                of_ns=self._all.total(),
                most=max(self._seen.values()),
                builds_graph=2 * self._graph_ns > again_ns,
            ),
        )


def _sample_of_alike(value: Any, tensor: Any) -> bytes | None:
    """Some elements of an input of the same shape and type; None for others."""
    alike = is_tensor(value) and value.shape == tensor.shape and value.dtype == tensor.dtype
    return sample_of(value) if alike else None


def _by_site(times: Counter[Path]) -> Counter[Site]:
    """The time below each line."""
    sums = Counter[Site]()
    for site, ns in chain.from_iterable(((site, ns) for site in set(path)) for path, ns in times.items()):
        sums[site] += ns
    return sums
