"""What holds memory at the peak of a step: by kind, module, op and line, against the sizes of the program's tensors."""

from __future__ import annotations

import gzip
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import perfkit
from perfkit.measures.gathering import measure
from perfkit.measures.memory.peak_memory import trace_memory
from perfkit.measures.results.measurements import Measurements
from perfkit.measures.results.peak_memory import CheckpointTrade, PeakMemory
from perfkit.run.arrays import read_line_times
from perfkit.run.reading import read_run
from perfkit.trace import read_trace

BATCH, WIDTH, LAYERS = 256, 128, 6
#: A short window: the steps for memory come some steps after it.
WINDOW = perfkit.schedule(wait=1, warmup=1, active=1, repeat=1)
ROW = 4 * BATCH * WIDTH  # bytes of one activation


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Net(torch.nn.Module):
    def __init__(self, call: str) -> None:
        super().__init__()
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.call == "sequential":
            return checkpoint_sequential(self.blocks, 2, x, use_reentrant=False)  # type: ignore[no-any-return]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.call == "each" else block(x)
        return x


def training(call: str = "plain") -> tuple[Net, Callable[[], None]]:
    torch.manual_seed(0)
    net = Net(call)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        batch = torch.randn(BATCH, WIDTH)
        optimizer.zero_grad()
        loss = net(batch).pow(2).mean()
        loss.backward()
        optimizer.step()

    return net, step


def record(folder: Path, step: Callable[[], None], steps: int = 18) -> Measurements:
    with perfkit.profile(folder, quiet=True, memory=True, schedule=WINDOW) as prof:
        for _ in prof.steps(range(steps)):
            step()
    return measure(folder)


def peak_of(found: Measurements) -> PeakMemory:
    (memory,) = (one for one in found.all(PeakMemory) if one.device == "cpu")
    return memory


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Measurements, int]:
    folder = tmp_path_factory.mktemp("plain") / "run"
    net, step = training()
    return folder, record(folder, step), sum(p.nbytes for p in net.parameters())


def test_parameters_optimizer_state_and_inputs_have_the_sizes_of_their_tensors(plain: Any) -> None:
    _, found, parameters = plain
    memory = peak_of(found)

    def of_the_model(holding: str) -> int:
        # Models that other tests left alive have another name.
        return sum(one.bytes for one in memory.paths if one.holding == holding and one.path[0] == "blocks")

    assert of_the_model("parameters") == parameters
    assert of_the_model("optimizer state") == parameters  # SGD's momentum
    assert memory.holding["inputs"] == ROW
    assert sum(memory.holding.values()) == memory.peak_bytes


def test_activations_are_what_the_blocks_keep_for_their_backward(plain: Any) -> None:
    _, found, _ = plain
    memory = peak_of(found)
    modules = {part.name: part for part in memory.modules}

    # A block keeps what its gelu gets and returns (4 rows each), and returns its own row.
    assert modules["blocks.0"].holding["activations"] == 9 * ROW
    assert modules["blocks.0.up"].holding["activations"] == 4 * ROW
    kept = sum(modules[f"blocks.{number}"].holding["activations"] for number in range(LAYERS))
    # At the peak, the last block's backward may have freed some of its own.
    assert 9 * ROW * (LAYERS - 1) < kept <= 9 * ROW * LAYERS


def test_the_peak_is_in_the_backward_and_a_module_contains_its_submodules(plain: Any) -> None:
    _, found, parameters = plain
    memory = peak_of(found)
    modules = {part.name: part for part in memory.modules}

    assert memory.phase == "backward"
    assert modules["blocks"].holding["parameters"] == parameters
    assert modules["blocks"].held_bytes == sum(modules[f"blocks.{number}"].held_bytes for number in range(LAYERS))
    assert modules["blocks.2"].peak_bytes is not None
    assert modules["blocks.2"].peak_bytes <= memory.peak_bytes


def test_lines_hold_what_they_allocated_and_the_calls_lead_to_them(plain: Any) -> None:
    _, found, _ = plain
    memory = peak_of(found)
    source = Path(__file__).read_text().splitlines()
    at = next(number for number, line in enumerate(source, 1) if line.strip().startswith("return x + self.down"))

    first = memory.lines[0]
    assert first.at is not None
    assert (Path(first.at.file).name, first.at.line) == (Path(__file__).name, at)
    assert first.holding["activations"] > 40 * ROW
    path = next(one for one in memory.paths if one.holding == "activations" and one.path[-1] == "aten::gelu")
    assert [part.split()[0].rpartition(".")[2] for part in path.path[:-2]][-3:] == ["step", "forward", "forward"]


def test_what_is_held_at_the_end_is_less_than_the_peak_and_steps_of_one_batch_are_alike(plain: Any) -> None:
    _, found, parameters = plain
    memory = peak_of(found)

    assert len({one.peak_bytes for one in memory.steps}) == 1
    # Parameters, momentum, gradients, and the batch and outputs that variables still hold; other tests' tensors too.
    assert memory.peak_bytes > memory.end_bytes >= 3 * parameters
    assert memory.outside_bytes is not None
    assert memory.outside_bytes > 50e6


def test_the_levels_agree_with_the_allocators_own_changes(plain: Any) -> None:
    folder, _found, _ = plain
    rank = read_run(folder).ranks[0]
    (path,) = rank.peaks
    trace = read_trace(path)
    record = rank.memory_steps(path)
    assert record is not None
    (traced,) = trace_memory(trace, record, read_line_times(path, []))
    inside = traced.within(traced.places.start_ns, traced.places.end_ns)
    rows = traced.lives.rows
    in_step = (trace.start_ns[rows] >= traced.places.start_ns) & (trace.start_ns[rows] < traced.places.end_ns)

    # The height of the peak over the step's start, by the profiler's signed sizes alone.
    rise = int(trace.bytes[rows[in_step]].cumsum().max())
    assert int(traced.level[inside].max()) - int(traced.level[inside.start]) == rise


@pytest.mark.parametrize(("call", "named"), [("each", "for each of blocks"), ("sequential", "checkpoint_sequential")])
def test_checkpointing_frees_what_was_predicted(plain: Any, tmp_path: Path, call: str, named: str) -> None:
    _, found, _ = plain
    (trade,) = (one for one in found.all(CheckpointTrade) if named in one.call)
    _, step = training(call)
    measured = peak_of(record(tmp_path / "run", step))
    # What other tests hold differs from one recording to the next.
    before = peak_of(found)
    measured_freed = (before.peak_bytes - before.holding.get("other", 0)) - (
        measured.peak_bytes - measured.holding.get("other", 0)
    )

    assert trade.freed_bytes > 10 * ROW
    # 3 % of what is freed: torch keeps a few scalars and generator states of each segment.
    assert measured_freed == pytest.approx(trade.freed_bytes, rel=0.03)


@pytest.mark.parametrize(("call", "named"), [("each", "for each of blocks"), ("sequential", "checkpoint_sequential")])
def test_checkpointing_computes_again_the_part_of_the_forward_that_was_predicted(
    plain: Any, call: str, named: str
) -> None:
    _, found, _ = plain
    (trade,) = (one for one in found.all(CheckpointTrade) if named in one.call)
    with_it, without = (_calls_of_a_step(training(one)[1]) for one in (call, "plain"))

    # The two ops that take nearly all of the forward's time. Calls, not time: that depends on who else uses the caches.
    for op, in_forward in (("aten::addmm", 2 * LAYERS), ("aten::gelu", LAYERS)):
        assert without[op] == in_forward
        assert (with_it[op] - without[op]) / in_forward == pytest.approx(trade.forward_share, abs=0.2)


def _calls_of_a_step(step: Callable[[], None]) -> Counter[str]:
    with torch.profiler.profile() as prof:
        step()
    return Counter(event.name for event in prof.events())


def test_nothing_stays_on_and_the_steps_are_part_of_no_timing(tmp_path: Path) -> None:
    _, step = training()
    hooks = torch.nn.modules.module._global_forward_hooks
    seen: list[tuple[bool, bool]] = []
    with perfkit.profile(tmp_path / "x", quiet=True, memory=True, schedule=WINDOW) as prof:
        for _ in prof.steps(range(18)):
            step()
            seen.append((bool(hooks), sys.gettrace() is not None))

    assert not torch.nn.modules.module._global_forward_hooks
    assert sys.gettrace() is None
    rows = read_run(tmp_path / "x").ranks[0].steps
    kinds = {number: row.kind for row in rows for number in range(row.step, row.step + row.steps)}
    memory = [number for number, kind in kinds.items() if kind == "memory"]
    assert len(memory) == 5
    assert [number for number, (hooked, _) in enumerate(seen) if hooked] == memory[2:]


def test_a_run_that_ends_too_early_says_that_memory_was_not_recorded(tmp_path: Path) -> None:
    _, step = training()
    found = record(tmp_path / "x", step, steps=9)

    assert not found.all(PeakMemory)
    assert any("memory was not recorded: the run ended" in sentence for sentence in found.missing)


def test_a_compiled_program_is_not_compiled_again_and_has_no_modules(tmp_path: Path) -> None:
    torch._dynamo.reset()
    net = torch.compile(torch.nn.Linear(8, 8), backend="eager")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)  # type: ignore[attr-defined]

    def step() -> None:
        optimizer.zero_grad()
        net(torch.ones(4, 8)).sum().backward()
        optimizer.step()

    step()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    found = record(tmp_path / "x", step)

    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before
    memory = peak_of(found)
    assert memory.modules == ()
    assert memory.holding["parameters"] >= 4 * 72
    assert any("memory has no modules" in sentence for sentence in found.missing)


def test_tensors_of_numpy_are_not_counted_as_held_by_torch(tmp_path: Path) -> None:
    import numpy as np  # the only test that needs it

    _, step = training()
    mine = torch.from_numpy(np.zeros(50_000_000, np.uint8))
    found = record(tmp_path / "x", step)

    assert all(str(tuple(mine.shape)) not in one.path[-1] for one in peak_of(found).paths)


def test_a_profiler_of_the_programs_own_ends_the_recording_and_that_is_said(tmp_path: Path) -> None:
    _, step = training()
    with perfkit.profile(tmp_path / "x", quiet=True, memory=True, schedule=WINDOW) as prof:
        for number in prof.steps(range(18)):
            if number == 11:
                with torch.profiler.profile() as own:
                    step()
            step()

    assert any(event.key == "aten::gelu" for event in own.key_averages())
    assert not torch.nn.modules.module._global_forward_hooks
    found = measure(tmp_path / "x")
    assert not found.all(PeakMemory)
    said = [sentence for sentence in found.missing if "memory was not recorded" in sentence]
    assert said == ["memory was not recorded: the program started a torch profiler of its own"]


def test_damaged_addresses_and_a_damaged_record_leave_the_rest_readable(plain: Any, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    shutil.copytree(plain[0], folder)
    trace = folder / "rank-0" / "peak-0.pt.trace.json.gz"
    text = gzip.decompress(trace.read_bytes()).decode()
    trace.write_bytes(gzip.compress(re.sub(r'"Addr": (\d+)', r'"Addr": [\1]', text).encode()))
    assert peak_of(measure(folder)).holding["parameters"] > 0

    (folder / "rank-0" / "peak-0.json").write_text("{")
    found = measure(folder)
    assert not found.all(PeakMemory)
    assert any("peak-0.json: damaged" in sentence for sentence in found.missing)
