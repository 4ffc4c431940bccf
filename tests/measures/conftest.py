"""Traces with known answers: built event by event, recorded by torch, and the real ones next to the checkout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfkit.trace import Trace, read_trace

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "traces"


class TraceBuilder:
    """Writes a trace event by event; times in ns, so that what a measure gives back can be compared to the ns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[str] = []
        self.correlation = 100

    def add(self, cat: str, name: str, start: int, end: int, tid: object = 1, pid: int = 9, **args: Any) -> None:
        """One event of any category."""
        quoted = [msgspec.json.encode(value).decode() for value in (cat, name, pid, tid, args)]
        times = [f"{ns // 1000}.{ns % 1000:03}" for ns in (start, end - start)]
        self.events.append(
            f'{{"ph": "X", "cat": {quoted[0]}, "name": {quoted[1]}, "pid": {quoted[2]}, "tid": {quoted[3]},'
            f' "ts": {times[0]}, "dur": {times[1]}, "args": {quoted[4]}}}'
        )

    def op(self, name: str, start: int, end: int, tid: int = 1, **args: Any) -> None:
        self.add("cpu_op", name, start, end, tid, **args)

    def range(self, name: str, start: int, end: int, tid: int = 1) -> None:
        self.add("user_annotation", name, start, end, tid)

    def step(self, number: int, start: int, end: int, tid: int = 1) -> None:
        self.range(f"ProfilerStep#{number}", start, end, tid)

    def frame(self, name: str, start: int, end: int, tid: int = 1) -> None:
        self.add("python_function", name, start, end, tid)

    def call(self, name: str, start: int, end: int, tid: int = 1) -> None:
        self.add("cuda_runtime", name, start, end, tid, correlation=0)

    def launch(self, at: int, start: int, end: int, name: str = "gemm", **how: Any) -> None:
        """An API call of 100 ns at ``at`` that puts a kernel (or copy) from start to end on a stream."""
        self.correlation += 1
        api, tid, stream = how.get("api", "cudaLaunchKernel"), how.get("tid", 1), how.get("stream", 7)
        self.add("cuda_runtime", api, at, at + 100, tid, correlation=self.correlation)
        self.work(name, start, end, stream, correlation=self.correlation, bytes=how.get("bytes", -1))

    def work(self, name: str, start: int, end: int, stream: int = 7, **args: Any) -> None:
        """Device work; without a correlation its launch is not in the trace."""
        cat = "gpu_memcpy" if name.startswith("Memcpy") else "gpu_memset" if name.startswith("Memset") else "kernel"
        self.add(cat, name, start, end, stream, 0, device=0, stream=stream, **args)

    def read(self) -> Trace:
        file = self.folder / "built.json"
        file.write_text('{"traceEvents": [\n' + ",\n".join(self.events) + "\n]}")
        return read_trace(file)


@pytest.fixture
def build(tmp_path: Path) -> TraceBuilder:
    return TraceBuilder(tmp_path)


@pytest.fixture(scope="session")
def new_build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], TraceBuilder]:
    """Gives a fresh builder each time: for property tests, which build many traces."""
    folder = tmp_path_factory.mktemp("built")
    return lambda: TraceBuilder(folder)


def shared_files() -> list[str]:
    """Names of the real traces; one that stands for them all where they are absent, so that the skip is seen."""
    return sorted(p.name for p in SHARED.iterdir() if p.suffix in (".gz", ".sqlite")) if SHARED.is_dir() else ["any"]


@pytest.fixture(params=shared_files())
def shared_trace(request: pytest.FixtureRequest) -> Trace:
    if not SHARED.is_dir():
        pytest.skip("shared traces are not next to the checkout")
    return read_trace(SHARED / request.param)


@pytest.fixture
def shared() -> Callable[[str], Trace]:
    def read(name: str) -> Trace:
        if not SHARED.is_dir():
            pytest.skip("shared traces are not next to the checkout")
        return read_trace(SHARED / name)

    return read


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Three steps of a small model on the CPU: a loader, a loop of 12 times 3 small ops, backward, SGD."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(40, 16)), batch_size=8)
    plan = schedule(wait=1, warmup=1, active=3)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=True) as profiler:
        for (batch,) in loader:
            optimizer.zero_grad()
            hidden = model(batch)
            state = torch.zeros(8)
            for i in range(12):
                state = state + hidden.select(1, i).tanh()
            state.sum().backward()
            optimizer.step()
            profiler.step()
    file = tmp_path_factory.mktemp("recorded") / "t.json"
    profiler.export_chrome_trace(str(file))
    return read_trace(file)
