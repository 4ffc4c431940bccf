"""perfkit never starts CUDA: each program here is a process of its own, which has not used the device yet."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from perfkit.run.reading import RankFolder, read_run

pytestmark = pytest.mark.semantics

TRAINING = """
def training(device="cpu"):
    model = torch.nn.Linear(64, 64).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(8, 64, device=device)
    def step():
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    return step

def in_child(work):
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException as error:
            print("child failed:", error, flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.fixture
def run(program: Callable[..., str]) -> Callable[..., str]:
    """Run a program that may use `TRAINING`; returns what it printed."""
    return lambda source, *command: program(TRAINING + textwrap.dedent(source), *command)


def rank_of(folder: Path) -> RankFolder:
    found = read_run(folder / "x").ranks[0]
    assert found.rank is not None
    assert found.rank.errors == ()
    return found


def test_a_training_on_the_cpu_with_windows_makes_no_context(tmp_path: Path, run: Callable[..., str]) -> None:
    run(
        """
        step = training()
        with perfkit.profile("x", quiet=True, detect_syncs="auto") as prof:
            for _ in prof.steps(range(60)):
                step()
        assert not torch.cuda.is_initialized()
        """,
    )
    found = rank_of(tmp_path)

    assert found.rank is not None
    assert found.rank.devices == ()
    assert len(found.windows) == 1


def test_children_that_are_forked_in_and_after_a_run_can_use_cuda(tmp_path: Path, run: Callable[..., str]) -> None:
    # No backward: torch's own counts the devices at the first one, which alone keeps forked children from CUDA.
    run(
        """
        step = lambda: torch.ones(8, 8) @ torch.ones(8, 8)
        with perfkit.profile("x", quiet=True, recorders=("ranges",), triggers="out-of-memory") as prof:
            for number in prof.steps(range(30)):
                with perfkit.range("timed", device_time=True):
                    step()
                if number == 20:
                    in_child(lambda: torch.ones(2, device="cuda"))
        in_child(lambda: torch.ones(2, device="cuda"))
        """,
    )
    assert len(rank_of(tmp_path).steps) == 30


def test_ranks_that_are_forked_out_of_a_recorded_process_train_on_their_devices(run: Callable[..., str]) -> None:
    out = run(
        """
        def rank(number):
            torch.cuda.set_device(number)
            step = training("cuda")
            for _ in range(3):
                step()
            print("trained on", torch.cuda.current_device(), flush=True)

        with perfkit.profile("x", quiet=True, recorders=()):
            for number in range(torch.cuda.device_count()):
                in_child(lambda: rank(number))
        """,
    )
    assert "trained on 0" in out


def test_devices_that_the_program_hides_during_a_run_are_hidden(run: Callable[..., str]) -> None:
    run(
        """
        step = training()
        with perfkit.profile("x", quiet=True, recorders=()) as prof:
            for number in prof.steps(range(20)):
                step()
                if number == 10:
                    os.environ["CUDA_VISIBLE_DEVICES"] = ""
        assert torch.cuda.device_count() == 0
        """,
    )


@pytest.mark.parametrize("command", [(), ("-m", "perfkit", "run", "--out", "x", "--syncs=auto")])
def test_a_program_that_starts_cuda_in_its_first_step_gets_device_times_memory_and_syncs(
    tmp_path: Path, command: tuple[str, ...], run: Callable[..., str]
) -> None:
    loop = """
        from torch.utils.data import DataLoader
        model = optimizer = None
        for number, x in enumerate(DataLoader(torch.randn(960, 64), batch_size=8)):
            if model is None:
                model = torch.nn.Linear(64, 64).cuda()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer.zero_grad()
            loss = model(x.cuda()).sum()
            loss.backward()
            optimizer.step()
            loss.item()
    """
    if not command:
        loop = textwrap.indent(textwrap.dedent(loop), "    ")
        loop = 'with perfkit.profile("x", quiet=True, detect_syncs="auto"):\n' + loop
    run(loop, *command)
    found = rank_of(tmp_path)

    steps = list(found.steps)
    timed = [step for step in steps[5:] if step.kind == "timed"]
    assert found.rank is not None
    assert found.rank.devices
    assert found.syncs is not None
    assert found.syncs.mode == "cuda"
    assert "item" in {event.op for event in found.syncs.events}
    # The last ones may still run when the program ends.
    assert len([step for step in timed if step.device_phases_ns is not None]) >= 0.8 * len(timed)
    assert any(step.memory_bytes for step in steps)


def test_a_dry_run_of_syncs_that_simulates_a_device_is_not_taken_for_one(
    tmp_path: Path, run: Callable[..., str]
) -> None:
    run(
        """
        with perfkit.profile("x", quiet=True, recorders=()) as prof, perfkit.detect_syncs(mode="dry") as syncs:
            step = training("cuda")
            for _ in prof.steps(range(30)):
                step()
        assert syncs.observed
        """,
    )
    found = rank_of(tmp_path)

    assert found.rank is not None
    assert found.rank.devices == ()
    assert all(step.device_phases_ns is None for step in found.steps)
