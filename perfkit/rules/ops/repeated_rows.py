"""A layer gets each row, or each sample, several times, and computes the same result for each copy.

Problem: a layer computes each row by itself, and a convolution each sample. Where these are gathered or repeated before
it, it computes the results of equal ones as often as they stand there, and so does its backward, and each layer after
it, up to what makes them different.

How it shows: at most half of the rows of a product with a weight are different. They were gathered in the step from at
most half as many, or stand in equal blocks. Or the samples that a convolution gets are such: what the layers after it
get is compared too. What the products, convolutions and ops between them take for the other rows, in the forward and in
the backward, is 5% of the step or more.

Causes: a message of a graph network that applies a layer to the features of each edge's source; a dataset that returns
the same grid of coordinates with each sample; a context that is expanded over time steps, pixels or candidates; images
that are repeated for several draws of an importance-weighted bound, several prompts or negatives before an encoder.

Fix: apply the layer to the different rows, and index, repeat or expand its result.

    messages = self.linear(x)[source]                         # not: self.linear(x[source])
    basis = self.trunk(grid)                                  # not: self.trunk(grids), a copy for each sample
    hidden = self.mlp(context)[:, None].expand(-1, n, -1)     # not: self.mlp(context[:, None].expand(-1, n, -1))
    code = self.encoder(x).repeat_interleave(k, dim=0)        # not: self.encoder(x.repeat_interleave(k, dim=0))

With a batch norm in training, if each sample stands as often before it, results and gradients stay the same too: its
mean and variance are those of the different samples. Only its running variance differs slightly, because torch
multiplies the variance of n values by n / (n - 1), and n is smaller.

Saving: 60% (chosen) of these ops' time, by the share of the rows that are copies, to all of it and what else is done
with these rows.

Source: the inputs of one step's layers. Rows that are equal by chance, as those of words in an embedding, and rows of
zeros are not counted, nor is a batch of equal samples, nor are copies whose gradients the program gets one by one,
after `requires_grad_()` or `retain_grad()`. Half was chosen. On a CPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import prod

from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.run.records import Lines, RepeatedLayer, RepeatedRows, RepeatedSamples

ID = "repeated-rows"
CLAIMS = COMPUTING
#: What is the same in every step, or is not read, needs no layer at all.
FOLLOWS_AT_LINE = ("repeated-work", "repeated-in-step", "unread-results", "unused-rows", "sparse-as-dense")

#: The share of the rows that is computed at most without copies, and of the cost that is saved at least (both chosen).
_NEEDED, _MINIMUM = 0.5, 0.6

#: What stands between layers and computes each element, or each row, by itself; its backward too.
_ACTIVATIONS = frozenset(
    f"aten::{name}{end}"
    for name in ("relu", "threshold", "tanh", "sigmoid", "gelu", "silu", "elu", "leaky_relu", "softplus", "sin", "cos",
                 "native_layer_norm")
    for end in ("", "_", "_backward")
)  # fmt: skip


def check(step: StepBudget, lines: Lines, work: StepWork) -> Iterator[Finding]:
    """Find layers that get rows several times, and what their products take for the copies.

    Layers of one function, each of which gets as many columns as the one before it returns, are one finding: the first
    one is to be moved.
    """
    for samples in lines.repeated_samples:
        yield from _of_samples(samples, step, work)
    for layers in _chains(one for one in lines.repeated_rows if one.needed <= _NEEDED * one.rows):
        spent: dict[Location, float] = defaultdict(float)
        products_ns = 0
        for one in _by_size(layers):
            rows = [row for row in work.rows if _is_product_of(row, one)]
            products_ns += sum(row.ns for row in rows)
            spent[one.at] += sum(row.ns for row in rows) * (1 - one.needed / one.rows)
        activations = [row for row in work.rows if any(_makes_input_of(row, one) for one in layers[1:])]
        between_ns = sum(row.ns for row in activations)
        spent[layers[0].at] += between_ns * (1 - layers[0].needed / layers[0].rows)
        cost = sum(spent.values()) * step.wall_ns / max(1, work.step_ns)
        if step.is_negligible(cost):
            continue
        first = layers[0]
        calls = "" if first.calls == 1 else f" in {first.calls} calls"
        yield step.finding(
            cost=cost,
            saving=(_MINIMUM * cost, step.maximum_saving(cost)),
            spent=max(spent, key=lambda at: spent[at]),
            change=first.at,
            message=(
                f"Of {first.rows:,} rows that a linear layer gets{calls}, {first.different:,} are different: the other "
                f"results are computed again: {step.shown(cost)}."
            ),
            advice=(
                "Apply the layer to the different rows, and index, repeat or expand its result: self.linear(x)[index], "
                "not self.linear(x[index])."
            ),
            confidence="medium",
            evidence=(
                Evidence("rows that are different", first.different, f"of {first.rows:,}", "a step's products"),
                Evidence.ms("products with all rows", products_ns, f"{work.source}, per step"),
                Evidence.ms("activations in their lines", between_ns, f"{work.source}, per step"),
            ),
        )


def _of_samples(found: RepeatedSamples, step: StepBudget, work: StepWork) -> Iterator[Finding]:
    """The finding for a convolution that gets copies of samples, and the layers after it."""
    spent: dict[Location, float] = defaultdict(float)
    whole_ns = 0
    for row in work.rows:
        layers = [one for one in found.layers if _is_op_of(row, one)]
        if layers:
            layer = max(layers, key=lambda one: one.repeated / max(1, one.calls))
            whole_ns += row.ns
            spent[layer.called_at] += row.ns * min(1.0, layer.repeated / max(1, layer.calls))
    cost = sum(spent.values()) * (1 - found.needed / max(1, found.samples)) * step.wall_ns / max(1, work.step_ns)
    if not spent or 2 * found.needed > found.samples or step.is_negligible(cost):
        return
    calls = sum(one.repeated for one in found.layers if one.weight or one.flops)
    getting = "a convolution gets" if calls == 1 else f"each of {calls} calls of layers gets"
    yield step.finding(
        cost=cost,
        saving=(_MINIMUM * cost, step.maximum_saving(cost)),
        spent=max(spent, key=lambda at: spent[at]),
        change=found.copied_at,
        message=(
            f"Of {found.samples:,} samples that {getting}, {found.needed:,} are different: the other "
            f"results are computed again: {step.shown(cost)}."
        ),
        advice=(
            "Call the layers with the different samples, and repeat their result: "
            "self.encoder(x).repeat_interleave(k, dim=0), not self.encoder(x.repeat_interleave(k, dim=0))."
        ),
        confidence="medium",
        evidence=(
            Evidence("samples that are different", found.needed, f"of {found.samples:,}", "a step's convolutions"),
            Evidence.ms("layers with all samples", whole_ns, f"{work.source}, per step"),
        ),
    )


def _is_op_of(row: OpWorkTime, layer: RepeatedLayer) -> bool:
    """Whether the op is one of the layer's line with such tensors, or of its backward."""
    if row.at is None or (row.at.file, row.at.line) != (layer.file, layer.line):
        return False
    if layer.flops:
        return row.kind == "matmul" and row.flops == layer.flops
    shapes = row.shapes.split()
    if layer.weight:
        return row.kind == "convolution" and layer.shape in shapes[:2] and layer.weight in shapes[1:3]
    return row.kind not in ("matmul", "convolution") and layer.shape in shapes[:2]


def _chains(rows: Iterable[RepeatedRows]) -> list[list[RepeatedRows]]:
    """Layers one after the other, that get as many rows, and as many different ones."""
    together: dict[tuple[str, str, int, int], list[list[RepeatedRows]]] = defaultdict(list)
    for one in rows:
        times = max(1, one.calls)
        chains = together[one.file, one.function or "", one.rows // times, one.needed // times]
        before = next((chain for chain in chains if chain[-1].results == one.columns), None)
        if before is not None:
            before.append(one)
        else:
            chains.append([one])
    return [chain for chains in together.values() for chain in chains]


def _by_size(layers: list[RepeatedRows]) -> list[RepeatedRows]:
    """One of the layers for each line and number of multiplications: its products are found by these."""
    return list({(one.line, one.columns * one.results): one for one in layers}.values())


def _is_product_of(row: OpWorkTime, one: RepeatedRows) -> bool:
    """Whether the op is the layer's product or one of the two of its backward, which are of the same size."""
    if row.at is None or (row.at.file, row.at.line) != (one.file, one.line) or row.kind != "matmul":
        return False
    return row.flops == 2 * (one.rows // max(1, one.calls)) * one.columns * one.results


def _makes_input_of(row: OpWorkTime, one: RepeatedRows) -> bool:
    """Whether the op is an activation of as many elements in the line of a layer that is not the first."""
    if row.at is None or (row.at.file, row.at.line) != (one.file, one.line) or row.op not in _ACTIVATIONS:
        return False
    lengths = row.shapes.split()[:1]
    elements = prod(int(length) for shape in lengths for length in shape.split("x") if length.isdigit())
    return elements == one.rows // max(1, one.calls) * one.columns
