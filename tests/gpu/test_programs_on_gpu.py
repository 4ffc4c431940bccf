"""Whole programs as people write them, under perfkit: each ends as it would without it, and its record is right."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import perfkit
from perfkit.run.reading import RankFolder, read_run
from perfkit.run.records import Step, SyncEvent

pytestmark = pytest.mark.semantics

several_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device on this machine")


def recorded(folder: Path, steps: Any, body: Callable[[Any], Any], **options: Any) -> RankFolder:
    """A run of ``body`` over ``steps`` in which nothing of perfkit's failed."""
    with perfkit.profile(folder, quiet=True, report=False, **options) as prof:
        for item in prof.steps(steps):
            body(item)
        torch.cuda.synchronize()
    found = read_run(folder).ranks[0]
    assert found.rank is not None
    assert found.rank.errors == ()
    return found


def waits_in(found: RankFolder) -> list[SyncEvent]:
    """The waits that were detected, without the one after the loop."""
    assert found.syncs is not None
    return [event for event in found.syncs.events if event.function != "recorded"]


def device_total(step: Step) -> int:
    assert step.device_phases_ns is not None
    return sum(getattr(step.device_phases_ns, name) or 0 for name in step.device_phases_ns.__struct_fields__)


class Training:
    """A small network on the current device."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.batch = torch.randn(8, 64, device="cuda")

    def step(self, _: Any = None) -> None:
        self.optimizer.zero_grad()
        self.model(self.batch).pow(2).mean().backward()
        self.optimizer.step()


def test_mixed_precision_with_a_scaler_has_its_waits_in_the_optimizer(tmp_path: Path) -> None:
    training = Training()
    scaler = torch.amp.GradScaler("cuda")

    def body(_: int) -> None:
        training.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = training.model(training.batch).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(training.optimizer)
        torch.nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        scaler.step(training.optimizer)
        scaler.update()

    found = recorded(tmp_path / "x", range(40), body, recorders=(), detect_syncs="cuda")

    assert all(device_total(step) > 0 for step in found.steps)
    assert all(step.phases_ns.optimizer for step in found.steps)
    # The scaler reads whether a gradient was infinite: one wait in each step.
    (wait,) = [event for event in waits_in(found) if "GradScaler" in event.op]
    assert wait.per_step == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_recomputes_in_the_backward(tmp_path: Path, reentrant: bool) -> None:
    training = Training()
    training.batch.requires_grad_()

    def body(_: int) -> None:
        training.optimizer.zero_grad()
        hidden = training.batch
        for layer in training.model:
            hidden = checkpoint(layer, hidden, use_reentrant=reentrant)
        hidden.sum().backward()
        training.optimizer.step()

    found = recorded(tmp_path / "x", range(30), body)

    assert len([step for step in found.steps if step.device_phases_ns is not None]) == 30
    assert len(found.windows) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_pins_its_batches_in_a_thread_is_timed_and_makes_no_sync_of_its_own(
    tmp_path: Path, workers: int
) -> None:
    training = Training()
    data = TensorDataset(torch.randn(480, 64))
    loader = DataLoader(data, batch_size=8, pin_memory=True, num_workers=workers, multiprocessing_context=None)

    def body(batch: list[torch.Tensor]) -> None:
        training.batch = batch[0].to("cuda", non_blocking=True)
        training.step()

    found = recorded(tmp_path / "x", loader, body, recorders=(), detect_syncs="cuda")

    assert len(found.steps) == 60
    assert all(device_total(step) > 0 for step in found.steps)
    assert waits_in(found) == []


def test_an_error_out_of_memory_in_a_window_leaves_the_window_and_goes_on(tmp_path: Path) -> None:
    training = Training()
    caught = []

    def body(number: int) -> None:
        training.step()
        if number == 13:  # in the window
            try:
                torch.empty(2**50, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError as error:
                caught.append(error)

    found = recorded(
        tmp_path / "x", range(60), body, recorders=("kineto", "memory"), triggers=perfkit.triggers("out-of-memory")
    )

    assert len(caught) == 1
    assert found.rank is not None
    assert all(window.complete for window in found.rank.windows)
    names = {file.name for file in found.folder.iterdir()}
    assert {"memory-0.pickle", "memory-0.oom.pickle", "memory-oom.pickle"} <= names
    assert not torch.cuda.memory._snapshot()["device_traces"][0][-1:] or not torch._C._cuda_isHistoryEnabled()  # type: ignore[attr-defined]


def test_an_error_out_of_memory_that_ends_the_run_is_recorded_with_the_memory_at_its_end(tmp_path: Path) -> None:
    training = Training()

    def body(number: int) -> None:
        training.step()
        if number == 20:
            torch.empty(2**50, dtype=torch.uint8, device="cuda")

    with pytest.raises(torch.OutOfMemoryError):
        recorded(tmp_path / "x", range(60), body, recorders=(), triggers=perfkit.triggers("exception"))

    failure = json.loads((tmp_path / "x" / "rank-0" / "failure.json").read_text())
    assert failure["out_of_memory"]
    assert failure["step"] == 20
    assert failure["memory_bytes"] > 0


def test_a_profiler_that_the_program_runs_keeps_its_kernels_and_perfkit_records_no_window(tmp_path: Path) -> None:
    training = Training()
    with torch.profiler.profile() as users:
        with perfkit.profile(tmp_path / "x", quiet=True, report=False) as prof:
            for _ in prof.steps(range(40)):
                training.step()
        torch.cuda.synchronize()

    found = read_run(tmp_path / "x").ranks[0]
    assert len([event for event in users.events() if event.device_type == torch.autograd.DeviceType.CUDA]) > 40
    assert list(found.windows) == []
    assert all(step.device_phases_ns is not None for step in found.steps)


def test_a_profiler_that_the_program_runs_before_and_after_a_window_has_its_kernels(tmp_path: Path) -> None:
    training = Training()

    def kernels() -> int:
        with torch.profiler.profile() as users:
            training.step()
            torch.cuda.synchronize()
        return len([event for event in users.events() if event.device_type == torch.autograd.DeviceType.CUDA])

    before = kernels()
    recorded(tmp_path / "x", range(40), training.step)

    assert before > 0
    assert kernels() == before


def test_a_profiler_that_the_program_starts_in_a_window_has_its_kernels(tmp_path: Path) -> None:
    training = Training()
    users = torch.profiler.profile()

    def body(number: int) -> None:
        if number == 13:  # in the window
            users.start()
        training.step()
        if number == 15:
            torch.cuda.synchronize()
            users.stop()

    found = recorded(tmp_path / "x", range(40), body)

    assert len([event for event in users.events() if event.device_type == torch.autograd.DeviceType.CUDA]) > 20
    assert [window.complete for window in found.rank.windows] == [False] if found.rank else False


def test_the_queue_is_done_before_the_capture_range_of_nsight_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training()
    late = torch.cuda.Stream()
    queued: list[bool] = []
    cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # not annotated

    class Cudart:
        def cudaProfilerStart(self) -> None:
            cudart.cudaProfilerStart()

        def cudaProfilerStop(self) -> None:
            queued.append(not (late.query() and torch.cuda.current_stream().query()))
            cudart.cudaProfilerStop()

    monkeypatch.setattr(torch.cuda, "cudart", Cudart)

    def body(_: int) -> None:
        training.step()
        with torch.cuda.stream(late):
            torch.cuda._sleep(20_000_000)  # 10 ms and more

    found = recorded(tmp_path / "x", range(40), body, recorders=("cuda_profiler",), detect_syncs="cuda")

    assert queued == [False]
    assert waits_in(found) == []


def test_a_step_that_waits_for_nothing_is_told_no_wait_though_windows_and_snapshots_wait(tmp_path: Path) -> None:
    training = Training()
    found = recorded(
        tmp_path / "x", range(60), training.step, recorders=("kineto", "memory", "ranges"), detect_syncs="cuda"
    )

    assert waits_in(found) == []


@several_devices
def test_a_snapshot_and_memory_are_those_of_the_device_that_trains(tmp_path: Path) -> None:
    big = torch.empty(2**28, dtype=torch.uint8, device="cuda:0")
    torch.cuda.set_device(1)
    try:
        training = Training()
        found = recorded(tmp_path / "x", range(60), training.step, recorders=("memory",))
    finally:
        torch.cuda.set_device(0)

    readings = [step.memory_bytes for step in found.steps if step.memory_bytes is not None]
    assert readings
    assert max(readings) < big.numel()


@several_devices
def test_counts_of_one_device_are_not_taken_from_those_of_another(tmp_path: Path) -> None:
    blocks = [torch.empty(2**22, dtype=torch.uint8, device="cuda:1") for _ in range(50)]
    training = Training()

    def body(number: int) -> None:
        torch.cuda.set_device(number // 50 % 2)  # the other device at every reading of the counts
        training.step()

    try:
        found = recorded(tmp_path / "x", range(300), body, recorders=())
    finally:
        torch.cuda.set_device(0)

    assert len(blocks) == 50
    assert all(step.device_allocs is None or step.device_allocs < 20 for step in found.steps)


class Streams:
    """A pipeline: each step on another stream than the one before."""

    def __init__(self) -> None:
        self.streams = [torch.cuda.Stream() for _ in range(3)]

    def __iter__(self) -> Iterator[torch.cuda.Stream]:
        return iter(self.streams * 20)


def test_steps_that_take_turns_on_streams_keep_their_times(tmp_path: Path) -> None:
    training = Training()

    def body(stream: torch.cuda.Stream) -> None:
        torch.cuda.set_stream(stream)
        training.step()

    before = torch.cuda.current_stream()
    try:
        found = recorded(tmp_path / "x", Streams(), body, recorders=())
    finally:
        torch.cuda.set_stream(before)

    assert all(device_total(step) >= 0 for step in found.steps)


@several_devices
def test_ranks_of_ddp_on_two_devices_with_gloo_record_their_own_device(tmp_path: Path, program: Any) -> None:
    program(
        """
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel as DDP
        rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(rank)
        dist.init_process_group("gloo")
        model = DDP(torch.nn.Linear(64, 64).cuda(), device_ids=[rank])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batch = torch.randn(8, 64, device="cuda")
        with perfkit.profile("x", quiet=True, recorders=("kineto",)) as prof:
            for _ in prof.steps(range(30)):
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
            torch.cuda.synchronize()
        dist.destroy_process_group()
        """,
        *("-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=29571"),
        OMP_NUM_THREADS="1",
    )
    ranks = list(read_run(tmp_path / "x").ranks.values())

    assert len(ranks) == 2
    for found in ranks:
        assert found.rank is not None
        assert found.rank.errors == ()
        assert len([step for step in found.steps if step.device_phases_ns is not None]) >= 25


@pytest.mark.parametrize("fails", ["NVMLError_GpuIsLost", "NVMLError_Unknown"])
def test_a_card_that_nvml_loses_ends_the_watch_and_not_the_training(tmp_path: Path, fails: str, program: Any) -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    program(
        f"""
        import pynvml
        def lost(*arguments):
            raise pynvml.{fails}()
        pynvml.nvmlDeviceGetClockInfo = lost
        x = torch.ones(64, 64, device="cuda")
        with perfkit.profile("x", quiet=True, recorders=()) as prof:
            for _ in prof.steps(range(60)):
                x @ x
                if prof._live.attachments.node.problem is None:
                    import time; time.sleep(0.02)
        """,
    )
    found = read_run(tmp_path / "x").ranks[0]

    assert found.rank is not None
    assert found.rank.errors == ()
    assert len(found.steps) == 60
    assert any("health is not watched any more" in note for note in found.rank.notes)


def test_with_torchs_cache_of_memory_off_memory_is_unknown_and_syncs_are_found(tmp_path: Path, program: Any) -> None:
    program(
        """
        x = torch.ones(64, 64, device="cuda")
        with perfkit.profile("x", quiet=True, recorders=("memory",), detect_syncs="cuda") as prof:
            for _ in prof.steps(range(60)):
                (x @ x).sum().item()
        with perfkit.detect_syncs(mode="cuda") as syncs:
            x + 1
        assert syncs.observed
        """,
        PYTORCH_NO_CUDA_MEMORY_CACHING="1",
    )
    found = read_run(tmp_path / "x").ranks[0]

    assert found.rank is not None
    assert found.rank.errors == ()
    assert all(step.memory_bytes is None for step in found.steps)
    assert found.syncs is not None
    assert "item" in {event.op for event in found.syncs.events}


def test_workers_of_a_loader_that_set_their_device_leave_the_run_alone(tmp_path: Path, program: Any) -> None:
    program(
        """
        from torch.utils.data import DataLoader
        def work(number):
            torch.cuda.set_device(0)
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 120
            def __getitem__(self, index): return torch.ones(8, device="cuda").cpu() * index
        if __name__ == "__main__":
            spawned = {"num_workers": 2, "multiprocessing_context": "spawn", "worker_init_fn": work}
            loader = DataLoader(Data(), batch_size=2, **spawned)
            model = torch.nn.Linear(8, 8).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with perfkit.profile("x", quiet=True, recorders=()) as prof:
                for batch in prof.steps(loader):
                    model(batch.cuda()).sum().backward()
                    optimizer.step()
                torch.cuda.synchronize()
        """,
    )
    found = read_run(tmp_path / "x").ranks[0]

    assert found.rank is not None
    assert found.rank.errors == ()
    assert len([step for step in found.steps if step.device_phases_ns is not None]) == 60
