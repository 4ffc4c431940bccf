"""Loops whose iterations need the one before are told from those that could be one call, by their source."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfkit.record.samplers.carried_names import carrying_loops

CARRIES = {
    "a simulation": "for _ in range(9):\n    v = v + 0.5 * dt * f\n    x = x + dt * v\n    f = forces(x)",
    "a recurrence": "for t in range(9):\n    h = torch.tanh(w @ h + x[t])",
    "a state of an object": "for t in range(9):\n    self.h = cell(self.h, x[t])",
    "elements before": "for i in range(9):\n    d[i] = torch.minimum(d[i - 1], b[i])",
    "a mean that decays": "for i in range(9):\n    mean = mean * 0.9 + a[i]",
    "a sum inside of a call": "for i in range(9):\n    total = a[i] + (b[i] - total.clamp(0))",
    "a while loop": "while n < 9:\n    x = step(x)\n    n += 1",
    "a sum that is read": "for i in range(9):\n    total = total + a[i]\n    out.append(total * 2)",
    "in a branch": "for i in range(9):\n    if i:\n        h = torch.tanh(h + x[i])",
}
INDEPENDENT = {
    "a sum": "for i in range(9):\n    total = total + a[i] * b[i]",
    "a sum of several": "for i in range(9):\n    total = total + a[i].logsumexp(0) - a[i, i]",
    "a sum in place": "for i in range(9):\n    y = net(a[i])\n    total += y",
    "a list": "for i in range(9):\n    out.append(a[i] * 2)",
    "elements": "for i in range(9):\n    out[i] = a[i] * b[i]",
    "the same element": "for i in range(9):\n    out[i] = out[i] + b[i]",
    "names of one iteration": "for i in range(9):\n    y = a[i]\n    z = y * 2\n    out.append(z)",
    "its own item": "for old, new in pairs:\n    old.data = old.data * 0.9 + new.data",
    "a counter": "while n < 9:\n    out.append(a[n])\n    n += 1",
    "no loop": "h = f(h)",
}


def lines(folder: Path, source: str) -> frozenset[int]:
    file = folder / "train.py"
    file.write_text(f"{source}\n")
    return carrying_loops(str(file))


@pytest.mark.parametrize("source", CARRIES.values(), ids=CARRIES)
def test_an_iteration_that_reads_what_the_one_before_assigned_needs_it(tmp_path: Path, source: str) -> None:
    assert lines(tmp_path, source) == {1}


@pytest.mark.parametrize("source", INDEPENDENT.values(), ids=INDEPENDENT)
def test_sums_and_elements_that_stand_for_themselves_are_not_carried(tmp_path: Path, source: str) -> None:
    assert lines(tmp_path, source) == frozenset()


def test_of_loops_in_loops_only_those_that_carry_are_meant(tmp_path: Path) -> None:
    source = "for t in range(9):\n    for i in range(9):\n        out[i] = a[i] + t\n    h = cell(h)"

    assert lines(tmp_path, source) == {1}
    assert carrying_loops(str(tmp_path / "missing.py")) == frozenset()
