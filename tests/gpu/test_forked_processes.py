"""Processes that are forked out of one that perfkit recorded on a device: a loader's workers, a program's own.

torch (2.13) ends a forked process in which an event of the device is freed.
"""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

pytestmark = pytest.mark.semantics

PROGRAM = """
import gc
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@perfkit.range("forward", device_time=True)
def forward():
    return model(torch.randn(8, 64, device="cuda"))

def train(at=lambda number: None):
    with perfkit.profile("x", quiet=True) as prof:
        for number in prof.steps(range(40)):
            optimizer.zero_grad()
            forward().sum().backward()
            optimizer.step()
            at(number)

def forked(work):
    child = os.fork()
    if not child:
        work()
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0, "the child was aborted"
"""


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("gc.disable()\ntrain()\nforked(gc.collect)", id="after-the-run"),
        pytest.param("train(lambda number: forked(gc.collect) if number == 30 else None)", id="in-the-run"),
        pytest.param(
            """
            from torch.utils.data import DataLoader
            gc.disable()
            train()
            for _ in DataLoader(list(range(64)), batch_size=8, num_workers=2, worker_init_fn=lambda _: gc.collect()):
                pass
            """,
            id="a-loader-after-the-run",
        ),
        pytest.param(
            """
            gc.disable()
            perfkit.measure_latency(model, torch.randn(8, 64, device="cuda"), (1,), budget_s=1, progress=False)
            forked(gc.collect)
            """,
            id="after-a-latency",
        ),
    ],
)
def test_a_forked_process_can_collect_garbage_and_end(source: str, program: Callable[..., str]) -> None:
    program(PROGRAM + dedent(source))
