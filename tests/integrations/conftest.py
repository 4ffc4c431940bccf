"""Small trainings with planted sleeps, for Lightning under both its names and for plain torch."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from perfkit import _clock
from perfkit.integrations import lightning as adapter
from perfkit.run.records import PHASES, Phase, Rank, Step

NAMESPACES = ("lightning.pytorch", "pytorch_lightning")

#: What was planted in each phase, ns, in order.
PLANTED: dict[Phase, list[int]] = {}


class SettableClock:
    """perfkit's clock, which also moves when told: a second of it costs a test nothing and is much on any machine."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def __call__(self) -> int:
        return time.perf_counter_ns() + self.ahead_ns


CLOCK = SettableClock()


def plant(phase: Phase, seconds: float = 1.0) -> None:
    """Let time pass, as the work of a phase."""
    CLOCK.ahead_ns += round(1e9 * seconds)
    PLANTED.setdefault(phase, []).append(round(1e9 * seconds))


@pytest.fixture(autouse=True)
def settable_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED.clear()
    monkeypatch.setattr(_clock, "now_ns", CLOCK)


#: What Lightning and others say in runs as small as these are meant to be, and of each other's deprecations.
QUIET = (
    "ignore::UserWarning:lightning.*",
    "ignore::UserWarning:pytorch_lightning.*",
    "ignore::FutureWarning:lightning.*",
    "ignore::FutureWarning:pytorch_lightning.*",
    "ignore::DeprecationWarning:lightning.*",
    "ignore::DeprecationWarning:pytorch_lightning.*",
    # Lightning 2.2 with a torch that is newer.
    "ignore:.*LeafSpec:FutureWarning",
    "ignore:.*treespec:FutureWarning",
    # torch says once per process that a window's events are cleared at its end, which is what perfkit wants.
    "ignore:.*Profiler clears events:UserWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name.startswith("test_lightning") and item.path.parent == Path(__file__).parent:
            for line in QUIET:
                item.add_marker(pytest.mark.filterwarnings(line))


class Rows(Dataset[torch.Tensor]):
    def __init__(self, size: int, seconds: float = 0.0) -> None:
        self.size = size
        self.seconds = seconds

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.seconds:
            plant("data", self.seconds)
        return torch.ones(4)


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.ones(4)] * 5)


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        plant("backward")
        return grad


class SlowSGD(torch.optim.SGD):
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss = super().step(closure)
        plant("optimizer")
        return loss


class Bench:
    """What is planted, and what a run folder says of it; ``last`` is a callback or a profile with a folder."""

    plant = staticmethod(plant)
    slow_backward = SlowBackward
    slow_sgd = SlowSGD
    stream = Stream

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def batches(count: int, seconds: float = 0.0, **options: Any) -> DataLoader[torch.Tensor]:
        return DataLoader(Rows(count, seconds), **options)

    @staticmethod
    def rows(folder: Path, rank: int = 0) -> list[Step]:
        return msgspec.json.Decoder(Step).decode_lines((folder / f"rank-{rank}" / "steps.jsonl").read_bytes())

    @staticmethod
    def rank(folder: Path, rank: int = 0) -> Rank:
        return msgspec.json.decode((folder / f"rank-{rank}" / "rank.json").read_bytes(), type=Rank)

    @staticmethod
    def seconds(rows: list[Step], phase: Phase) -> Any:
        """The time of a phase in each step, to be compared with what was planted, of which a tenth may be beside it.

        A phase has milliseconds of work of its own, some more on a busy machine.
        """
        return [(getattr(row.phases_ns, phase) or 0) / 1e9 for row in rows]

    @staticmethod
    def about(seconds: list[float]) -> Any:
        return pytest.approx(seconds, rel=0.1, abs=0.1)

    def assert_shares(self, rows: list[Step], *, fetched_ahead: int = 0) -> None:
        """Each phase has what was planted in it and no more, in every step; the rest is small.

        ``fetched_ahead`` is how many batches a framework fetches before the step that works on them: the first step
        then has more of them, and the last one less.
        """
        inner = slice(1, -1) if fetched_ahead else slice(None)
        for phase in PLANTED:
            self.assert_planted(rows, phase, ahead=fetched_ahead if phase == "data" else 0, among=inner)
        for row in rows:
            rest = sum(getattr(row.phases_ns, phase) or 0 for phase in PHASES if phase not in PLANTED)
            assert rest < 0.15 * row.wall_ns, row

    def assert_planted(self, rows: list[Step], phase: Phase, *, ahead: int = 0, among: slice = slice(None)) -> None:
        often = len(PLANTED[phase]) // len(rows)
        planted = [sum(PLANTED[phase][ahead + at * often : ahead + (at + 1) * often]) / 1e9 for at in range(len(rows))]
        assert self.seconds(rows, phase)[among] == self.about(planted[among]), phase

    @staticmethod
    def assert_sums(rows: list[Step]) -> None:
        """Every phase of every step is told, and they sum to the step."""
        for row in rows:
            times = [getattr(row.phases_ns, phase) for phase in PHASES]
            assert None not in times
            assert sum(times) == row.wall_ns


class LightningBench(Bench):
    """Trainers, models and callbacks of one of the names of Lightning."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(folder)
        self.name = name
        self.framework = importlib.import_module(name)

    def module(self, name: str) -> Any:
        return importlib.import_module(f"{self.name}.{name}")

    def model(self, **methods: Any) -> Any:
        """A model that trains one weight; ``methods`` replace its own."""

        class Tiny(self.framework.LightningModule):  # type: ignore[misc, name-defined]  # a class known when it runs
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)

            def training_step(self, batch: Any, batch_idx: int) -> Any:
                return self.layer(batch).sum()

            def validation_step(self, batch: Any, batch_idx: int) -> None:
                self.layer(batch)

            test_step = predict_step = validation_step

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=0.1)

        return type("Tiny", (Tiny,), methods)()

    def planted_model(self, *, manual: bool = False) -> Any:
        def loss_of(model: Any, batch: Any) -> Any:
            plant("forward")
            return SlowBackward.apply(model.layer(batch)).sum()

        def manual_step(model: Any, batch: Any, batch_idx: int) -> None:
            loss = loss_of(model, batch)
            model.optimizers().zero_grad()
            model.manual_backward(loss)
            model.optimizers().step()

        return self.model(
            automatic_optimization=not manual,
            training_step=manual_step if manual else lambda model, batch, batch_idx: loss_of(model, batch),
            configure_optimizers=lambda model: SlowSGD(model.parameters(), lr=0.1),
        )

    def hook(self, **hooks: Any) -> Any:
        """A callback with these hooks, which get no ``self``."""
        methods = {name: staticmethod(function) for name, function in hooks.items()}
        return type("Hooked", (self.framework.Callback,), methods)()

    def callback(self, run: Path | None = None, **options: Any) -> Any:
        return adapter.ProfilerCallback(run or self.folder / "run", quiet=True, **{"recorders": (), **options})

    def trainer(self, *callbacks: Any, **options: Any) -> Any:
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
        settings = {"enable_checkpointing": False, "max_epochs": 1, "default_root_dir": self.folder, **quiet}
        return self.framework.Trainer(callbacks=list(callbacks), **{**settings, **options})

    @staticmethod
    def assert_put_back(trainer: Any) -> None:
        assert not {"start", "stop", "profile"} & set(vars(trainer.profiler))
        assert not torch.autograd._profiler_enabled()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def lightning(tmp_path: Path) -> LightningBench:
    """One of the two, for what does not depend on the name."""
    return LightningBench(NAMESPACES[0], tmp_path)


@pytest.fixture(params=NAMESPACES)
def either(request: pytest.FixtureRequest, tmp_path: Path) -> LightningBench:
    return LightningBench(request.param, tmp_path)
