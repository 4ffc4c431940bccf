"""Local tensors with a graph after a batch of an evaluation."""

from __future__ import annotations

import linecache
import weakref

import torch

from perfkit.record.watchers.evaluation_graphs import EvaluationGraphs


def test_a_graph_of_an_evaluation_is_distinguished_from_those_of_the_training() -> None:
    weight = torch.ones(3, requires_grad=True)
    loss = weight.sum()
    graphs = EvaluationGraphs()
    assert graphs.new_graph() is not None  # the training's: it came since nothing was known
    assert graphs.new_graph() is None
    scores = weight * 2

    line = graphs.new_graph()

    assert line is not None
    assert "scores = weight" in linecache.getline(line.file, line.line or 0)
    assert loss is not scores


def test_a_check_keeps_no_tensor_alive() -> None:
    local = torch.ones(3, requires_grad=True) * 2
    reference = weakref.ref(local)
    own = locals()

    EvaluationGraphs().new_graph()
    assert own["local"] is local
    del own
    EvaluationGraphs().new_graph()
    del local

    assert reference() is None
