"""What the ops of recorded steps compute, and how the images of convolutions lie in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from perfkit.measures.gathering import measure
from perfkit.measures.results.work import OpWorkTime, StepWork


def recorded(file: Path, layout: torch.memory_format) -> list[OpWorkTime]:
    """The rows of convolutions and pools of a small network in this layout."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, groups=16))
    model.to(memory_format=layout)
    images = torch.rand(4, 3, 32, 32).to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters())
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, record_shapes=True) as profiler:
        for _ in range(4):
            model(images).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    profiler.export_chrome_trace(str(file))
    found = measure(file).get(StepWork)
    assert found is not None
    return [row for row in found.rows if "conv" in row.op or "pool" in row.op]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_ops_on_images_say_whether_channels_come_first(tmp_path: Path, layout: torch.memory_format) -> None:
    rows = recorded(tmp_path / "trace.json", layout)

    expected = layout == torch.contiguous_format
    assert {row.op: row.channels_first for row in rows if row.flops is not None} == {
        "aten::convolution": expected,
        "aten::convolution_backward": expected,
        "aten::max_pool2d_with_indices": expected,
        "aten::max_pool2d_with_indices_backward": expected,
    }


def test_convolutions_say_how_many_products_each_output_sums(tmp_path: Path) -> None:
    rows = recorded(tmp_path / "trace.json", torch.contiguous_format)

    depths = {(row.op, row.depth) for row in rows if row.flops is not None and "conv" in row.op}
    forward, backward = "aten::convolution", "aten::convolution_backward"
    assert depths == {(forward, 27), (backward, 27), (forward, 9), (backward, 9)}


def test_ops_on_expanded_rows_say_which_shape_they_have_in_memory(tmp_path: Path) -> None:
    one, other = torch.randn(20, 1, 8), torch.randn(1, 30, 8)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(4):
            torch.nn.functional.cosine_similarity(one, other, dim=-1)
            profiler.step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))

    work = measure(tmp_path / "trace.json").get(StepWork)

    assert work is not None
    # It expands both first, and `pairwise-broadcast` counts on that.
    assert {row.expanded for row in work.rows if row.op == "aten::linalg_vector_norm"} == {"20x1x8", "1x30x8"}
    assert [(row.shapes, row.expanded) for row in work.rows if row.op == "aten::mul"] == [("20x30x8 20x30x8", "")]
