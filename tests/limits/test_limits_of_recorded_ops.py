"""Ops of a recorded training: most of their time has a known work, and none is faster than its limit."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from perfkit.limits.measuring import measure_limits
from perfkit.measures._rows import nearest_above
from perfkit.measures.ops._op_kinds import op_kind
from perfkit.measures.ops._op_work import OpWork, work_of
from perfkit.run.records import OpKind
from perfkit.trace import Trace, read_trace
from perfkit.trace.columns import Kind

#: Other programs may disturb either side; below this time an op is mostly the overhead of its recording.
NOISE, SHORTEST_NS = 1.6, 10_000


class Everything(nn.Module):
    """The layers that trainings on a CPU spend their time in."""

    def __init__(self) -> None:
        super().__init__()
        self.images = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(4)
        )
        self.embedding = nn.Embedding(5_000, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, activation="gelu")
        self.recurrent = nn.LSTM(64, 64, batch_first=True)
        self.head = nn.Linear(64 + 256, 10)

    def forward(self, images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        seen = self.images(images).flatten(1)
        read, _ = self.recurrent(self.layer(self.embedding(tokens)))
        return self.head(torch.cat((seen, read.mean(1)), 1))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Everything()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    images, tokens, labels = torch.rand(16, 3, 32, 32), torch.randint(5_000, (16, 48)), torch.randint(10, (16,))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(12):
            loss = nn.functional.cross_entropy(model(images, tokens), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.set_num_threads(before)
    file = tmp_path_factory.mktemp("recorded") / "t.json"
    profiler.export_chrome_trace(str(file))
    return read_trace(file)


def works(trace: Trace) -> dict[int, OpWork]:
    """Row -> work, of ops whose work is known."""
    keys = ("Input Dims", "Input type", "Concrete Inputs")
    rows = np.flatnonzero(trace.is_kind(Kind.OP))
    fields = trace.fields(rows, keys)
    found = {}
    for place, row in enumerate(rows.tolist()):
        given: list[Any] = [
            fields[k].values[code] if (code := int(fields[k].codes[place])) >= 0 else None for k in keys
        ]
        if (work := work_of(trace.names[trace.name[row]], *given)) is not None:
            found[row] = work
    return found


def too_high(compared: dict[tuple[str, OpWork], int]) -> dict[str, tuple[int, int]]:
    """Ops whose limit, measured now, is above the time that was recorded: name -> (limit, recorded), ns."""
    limits = measure_limits(1)
    return {
        name: (limit_ns, ns)
        for (name, work), ns in compared.items()
        if (limit_ns := limits.op_limit_ns(work.flops, work.bytes, work.precision, op_kind(name), work.depth))
        > NOISE * ns
    }


@pytest.mark.alone
def test_no_recorded_op_is_faster_than_its_limit(trace: Trace) -> None:
    fastest: dict[tuple[str, OpWork], int] = defaultdict(lambda: 2**62)
    for row, work in works(trace).items():
        key = trace.names[trace.name[row]], work
        fastest[key] = min(fastest[key], int(trace.duration_ns[row]))
    compared = {key: ns for key, ns in fastest.items() if ns > SHORTEST_NS}

    assert len({name for name, _ in compared}) >= 25
    # Another program's load makes a limit longer and never shorter: an op with a wrong one has it each time.
    found = too_high(compared)
    for _ in range(2):
        found = {name: both for name, both in too_high(compared).items() if name in found} if found else {}
    assert found == {}


def test_four_fifths_of_the_time_in_ops_have_a_known_work(trace: Trace) -> None:
    is_op = trace.is_kind(Kind.OP)
    rows = np.flatnonzero(is_op)
    known = np.zeros(len(trace), dtype=bool)
    known[list(works(trace))] = True
    outermost = [
        row for row, above in zip(rows.tolist(), nearest_above(trace, rows, is_op).tolist(), strict=True) if above < 0
    ]
    inside = np.flatnonzero(known)
    first = inside[nearest_above(trace, inside, known) < 0]

    assert trace.duration_ns[first].sum() > 0.8 * trace.duration_ns[outermost].sum()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm", "matmul"),
        ("aten::mkldnn_rnn_layer_backward", "matmul"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention"),
        ("aten::convolution_backward", "convolution"),
        ("aten::relu", "copy"),
        ("aten::relu_", "update"),
        ("aten::elu", "exp"),
        ("aten::_log_softmax", "softmax"),
        ("aten::_log_softmax_backward_data", "softmax"),
        ("aten::_softmax_backward_data", "copy"),
        ("aten::logical_and", "copy"),
        ("aten::linalg_vector_norm", "read"),
        ("aten::normal_", "normal"),
        ("aten::bernoulli_", "bernoulli"),
        ("aten::_foreach_sqrt", "sqrt"),
        ("aten::_fused_adamw_", "update"),
        ("aten::max_pool2d_with_indices", "max pool"),
        ("aten::max_pool2d_with_indices_backward", "max pool gradient"),
        ("aten::_adaptive_avg_pool2d_backward", "average pool"),
        ("aten::upsample_nearest2d", "nearest"),
        ("aten::native_batch_norm", "batch norm"),
        ("aten::native_batch_norm_backward", "copy"),
    ],
)
def test_the_kind_of_an_op_follows_from_the_words_of_its_name(name: str, kind: OpKind) -> None:
    assert op_kind(name) == kind


@pytest.mark.parametrize(
    ("name", "dims", "types", "concrete", "expected"),
    [
        (
            "aten::mkldnn_rnn_layer",
            [[80, 32, 8], [512, 8], [512, 128], [512], [512], [32, 128], [32, 128]],
            ["float"] * 7,
            None,
            (2 * 80 * 32 * 512 * 136, 4 * (80 * 32 * 136 + 512 * 136)),
        ),
        (
            "aten::embedding_dense_backward",
            [[16, 64, 128], [16, 64], [], [], []],
            ["float", "long int", "Scalar", "Scalar", "Scalar"],
            ["", "", "96", "-1", "False"],
            (16 * 64 * 128, 4 * 16 * 64 * 128 + 8 * 16 * 64 + 4 * 96 * 128),
        ),
        ("aten::embedding", [[96, 128], [16, 64]], ["float", "long int"], None, (0, 8 * 1024 + 2 * 4 * 128 * 1024)),
        (
            "aten::index_select",
            [[96, 128], [], [10]],
            ["float", "Scalar", "long int"],
            ["", "1", ""],
            (0, 8 * 10 + 2 * 4 * 96 * 10),
        ),
        ("aten::nll_loss_forward", [[16, 10], [16]], ["float", "long int"], None, (16, 4 * 16 + 8 * 16)),
        ("aten::_adaptive_avg_pool2d_backward", [[2, 3, 4, 4], [2, 3, 8, 8]], ["float"] * 2, None, (384, 4 * 480)),
        (
            "aten::upsample_nearest2d",
            [[2, 8, 16, 16], [], []],
            ["float", "", "ScalarList"],
            ["", "", "[2., 1.5]"],
            (2 * 8 * 32 * 24, 4 * 2 * 8 * (256 + 768)),
        ),
        (
            "aten::upsample_bilinear2d",
            [[2, 8, 16, 16], [], [], []],
            ["float", "ScalarList", "Scalar", ""],
            ["", "[20, 30]", "False", ""],
            (2 * 8 * 600, 4 * 2 * 8 * (256 + 600)),
        ),
        (
            "aten::upsample_bilinear2d_backward",
            [[2, 8, 20, 30], [], [], [], [], []],
            ["float", "ScalarList", "ScalarList", "Scalar", "", ""],
            ["", "[20, 30]", "[2, 8, 16, 16]", "False", "", ""],
            (2 * 8 * 600, 4 * 2 * 8 * (256 + 600)),
        ),
    ],
)
def test_the_work_of_ops_that_trainings_on_a_cpu_run(
    name: str, dims: Any, types: Any, concrete: Any, expected: tuple[int, int]
) -> None:
    work = work_of(name, dims, types, concrete)

    assert work is not None
    assert (work.flops, work.bytes) == expected
