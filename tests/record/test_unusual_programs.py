"""Programs with one unusual feature each train to the same bits while everything is recorded, and are recorded."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
import warnings
import weakref
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.func import functional_call, functionalize, grad, hessian, vjp
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

import perfkit
from perfkit.run.reading import read_run

STEPS = 18

#: Each trains twice, in 2 to 4 s together.
pytestmark = pytest.mark.slow

Program = Callable[[], Iterator[Any]]
PROGRAMS: dict[str, Program] = {}


def program(train: Program) -> Program:
    """A program yields after each step what must be the same with and without perfkit."""
    PROGRAMS[train.__name__.strip("_").replace("_", " ")] = train
    return train


def a_model() -> tuple[nn.Sequential, torch.optim.SGD]:
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def update(model: Callable[[Any], Any], optimizer: torch.optim.Optimizer, *, of: Any = None) -> None:
    """One step."""
    optimizer.zero_grad()
    model(torch.randn(4, 16) if of is None else of).square().mean().backward()
    optimizer.step()


@program
def optimizers_that_step_in_hooks_of_the_backward() -> Iterator[Any]:
    model, _ = a_model()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(STEPS):
        model(torch.randn(4, 16)).square().mean().backward()
        yield [*model.parameters()]


@program
def a_profiler_of_its_own() -> Iterator[Any]:
    model, optimizer = a_model()
    ready: list[bool] = []
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=2, warmup=1, active=2, repeat=3),
        on_trace_ready=lambda profiler: ready.append(bool(len(profiler.events()))),
        acc_events=True,
    ) as profiler:
        for _ in range(STEPS):
            update(model, optimizer)
            profiler.step()
            yield [*ready, *model.parameters()]


@program
def a_compiled_optimizer() -> Iterator[Any]:
    model, optimizer = a_model()
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(STEPS):
        model(torch.randn(4, 16)).square().mean().backward()
        step()
        optimizer.zero_grad()
        yield [*model.parameters()]


@program
def a_backward_in_a_compiled_function() -> Iterator[Any]:
    model, optimizer = a_model()

    @torch.compile(backend="eager")
    def backward(x: torch.Tensor) -> None:
        model(x).square().mean().backward()

    for _ in range(STEPS):
        backward(torch.randn(4, 16))
        optimizer.step()
        optimizer.zero_grad()
        yield [*model.parameters()]


@program
def a_number_in_transforms_of_functions() -> Iterator[Any]:
    model, optimizer = a_model()
    weights = dict(model.named_parameters())

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return (functional_call(model, weights, (x * 2.0,)) * 3.0).square().mean()

    for _ in range(STEPS):
        x = torch.randn(1, 16)
        gradients = grad(functionalize(loss))(weights, x)
        curved = (
            hessian(loss, argnums=1)(weights, x).sum() + vjp(lambda x: loss(weights, x), x)[1](torch.tensor(1.0))[0]
        )
        for name, weight in weights.items():
            weight.grad = gradients[name] + 0 * curved.sum().detach()
        optimizer.step()
        yield [*weights.values()]


@program
def a_function_mode_that_counts() -> Iterator[Any]:
    calls: list[str] = []

    class Counting(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            # Those of the profiler's own ranges around its steps come with each profiler.
            if "_record_function" not in getattr(func, "__name__", ""):
                calls.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    model, optimizer = a_model()
    data = [torch.randn(16) for _ in range(4 * STEPS)]
    counting: Any = Counting()
    with counting:
        for x in DataLoader(data, batch_size=4):  # type: ignore[arg-type]
            update(model, optimizer, of=x)
            yield [len(calls), *model.parameters()]


@program
def a_tensor_that_counts_what_is_read_of_it() -> Iterator[Any]:
    calls: list[str] = []

    class Counted(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    model, optimizer = a_model()
    for _ in range(STEPS):
        update(model, optimizer, of=torch.randn(4, 16).as_subclass(Counted))
        yield [len(calls), *model.parameters()]


@program
def a_dispatch_mode_that_refuses_what_it_does_not_know() -> Iterator[Any]:
    known = ("randn", "linear", "addmm", "mm", "t", "relu", "threshold", "pow", "mean", "mul", "div", "expand", "ones")

    class Strict(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = str(func).split(".")[1]
            if not any(one in name for one in (*known, "add", "detach", "view", "sum", "record_function", "zeros")):
                raise RuntimeError(f"{name} is not part of this program")
            return func(*args, **(kwargs or {}))

    model, optimizer = a_model()
    for _ in range(STEPS):
        with Strict():  # type: ignore[no-untyped-call]
            update(model, optimizer)
        yield [*model.parameters()]


@program
def a_trace_of_the_model_in_each_step() -> Iterator[Any]:
    model, optimizer = a_model()
    for _ in range(STEPS):
        traced: Any = torch.jit.trace(model, torch.randn(4, 16))  # type: ignore[no-untyped-call]
        update(traced, optimizer)
        yield [[node.kind() for node in traced.inlined_graph.nodes()], *model.parameters()]


@program
def tensors_without_values() -> Iterator[Any]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():  # type: ignore[no-untyped-call]
        model, optimizer = a_model()
        for _ in range(STEPS):
            update(model, optimizer)
            yield [str(parameter.shape) for parameter in model.parameters()]


class Refusing:
    """Raises at whatever it is asked."""

    def __init__(self, error: type[BaseException]) -> None:
        object.__setattr__(self, "_error", error)

    def __getattribute__(self, name: str) -> Any:
        raise object.__getattribute__(self, "_error")(name)

    def _refuse(self, *_: Any) -> Any:
        raise object.__getattribute__(self, "_error")

    __eq__ = __len__ = __bool__ = __iter__ = __repr__ = __str__ = __call__ = _refuse  # type: ignore[assignment]
    __hash__ = _refuse  # type: ignore[assignment]


class RefusingDict(dict[str, Any]):
    def __iter__(self) -> Any:
        raise RuntimeError

    items = values = keys = __iter__  # type: ignore[assignment]


class WithRefusing(nn.Module):
    """Has, and is called with, objects that refuse."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.inner, _ = a_model()
        self.__dict__.update(refusing=Refusing(error), values=RefusingDict(a=1))

    @property
    def dropout(self) -> Any:
        raise ValueError("not before the model is ready")

    p = device = dropout

    def forward(self, x: torch.Tensor, *others: Any, **named: Any) -> Any:
        return self.inner(x)


def _refusing(error: type[BaseException]) -> Iterator[Any]:
    model = WithRefusing(error)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    refusing, held = Refusing(error), RefusingDict(a=torch.ones(2))

    def call(x: torch.Tensor, one: Any = refusing) -> Any:
        return model(x, one, held, named=refusing)

    for _ in range(STEPS):
        update(call, optimizer)
        yield [*model.parameters()]


@program
def objects_that_raise_whatever_they_are_asked() -> Iterator[Any]:
    return _refusing(RuntimeError)


@program
def objects_that_raise_what_is_no_exception() -> Iterator[Any]:
    class Stop(BaseException):
        pass

    return _refusing(Stop)


@program
def batches_that_have_code_of_their_own() -> Iterator[Any]:
    asked: list[str] = []

    class Lazy(Mapping[str, torch.Tensor]):
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

        def __getitem__(self, key: str) -> torch.Tensor:
            asked.append(key)
            return self.x

        def __iter__(self) -> Iterator[str]:
            asked.append("iter")
            return iter(("x",))

        def __len__(self) -> int:
            return 1

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    class Batch(UserDict[str, torch.Tensor]):
        def values(self) -> Any:
            raise RuntimeError("values")

    kinds: list[Any] = [Lazy, lambda x: Batch(x=x), lambda x: RefusingDict(x=x)]
    model, optimizer = a_model()
    data = [torch.randn(16) for _ in range(4 * STEPS)]
    number = 0

    def collate(samples: list[torch.Tensor]) -> Any:
        return kinds[number % 3](torch.stack(samples))

    for batch in DataLoader(data, batch_size=4, collate_fn=collate):  # type: ignore[arg-type]
        number += 1
        update(model, optimizer, of=batch["x"])
        yield [len(asked), *model.parameters()]


@program
def a_trace_function_of_the_programs_own() -> Iterator[Any]:
    events: list[str] = []
    model, optimizer = a_model()

    def trace(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code is update.__code__:
            events.append(event)
        return trace

    before = sys.gettrace()
    for _ in range(STEPS):
        sys.settrace(trace)
        try:
            update(model, optimizer)
        finally:
            sys.settrace(before)
        yield [len(events), *model.parameters()]


@program
def a_timer_whose_handler_raises() -> Iterator[Any]:
    class Late(Exception):
        pass

    def late(*_: Any) -> None:
        raise Late

    before = signal.signal(signal.SIGVTALRM, late)
    # Python drops what is raised in a callback of the garbage collector, and hypothesis has one in this process.
    gc.disable()
    try:
        model, optimizer = a_model()
        x = torch.randn(4, 16)
        for _ in range(STEPS):
            update(model, optimizer, of=x)
            with contextlib.suppress(Late):
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.005)
                for _ in range(20_000):  # less than 1 s; it ends with the handler's error, whatever runs at the time
                    model(x)
                raise AssertionError("the handler's error did not reach the program")
            yield [*model.parameters()]
    finally:
        gc.enable()
        signal.signal(signal.SIGVTALRM, before)


@program
def a_clock_that_stands_still() -> Iterator[Any]:
    model, optimizer = a_model()
    with mock.patch("time.time", return_value=0.0), mock.patch("time.time_ns", return_value=5):
        for _ in range(STEPS):
            update(model, optimizer)
            yield [*model.parameters()]


@program
def three_threads_that_train() -> Iterator[Any]:
    models = [a_model() for _ in range(3)]
    data = [torch.randn(4, 16) for _ in range(STEPS)]

    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for x in data:
            update(model, optimizer, of=x)

    threads = [threading.Thread(target=train, args=one) for one in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield [one for model, _ in models for one in model.parameters()]


@program
def proxies_of_the_model() -> Iterator[Any]:
    class Lazily:
        """As django.utils.functional.SimpleLazyObject: its class is that of what it stands for."""

        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise RuntimeError("not ready")

    model, optimizer = a_model()
    lazily, proxy = Lazily(), weakref.proxy(model)
    gone = weakref.proxy(Lazily())
    for _ in range(STEPS):
        update(lambda x, *_: proxy(x), optimizer)
        yield [*model.parameters()]
    assert lazily is not gone


@program
def inputs_that_have_no_sizes() -> Iterator[Any]:
    model, table = nn.Linear(8, 4), nn.Embedding(50, 8)
    optimizer = torch.optim.SGD([*model.parameters(), *table.parameters()], lr=0.01)
    for step in range(STEPS):
        # Rows that become longer from step to step, and calls within a step that do.
        rows = [torch.randn(3 + step, 8), torch.randn(5 + step, 8)]
        loss = model(torch.nested.nested_tensor(rows, layout=torch.jagged)).values().square().sum()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that these are a prototype
            loss = loss + torch.nested.to_padded_tensor(model(torch.nested.nested_tensor(rows)), 0.0).square().sum()
        for length in range(2, 14):
            words = [torch.arange(length), torch.arange(length + 1)]
            loss = loss + table(torch.nested.nested_tensor(words, layout=torch.jagged)).values().square().sum()
        loss = loss + model(torch.eye(8).to_sparse()).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield [*model.parameters()]


def digest(values: list[Any]) -> list[Any]:
    return [one.detach().double().flatten().tolist() if isinstance(one, torch.Tensor) else one for one in values]


def trained(train: Program) -> list[Any]:
    torch.manual_seed(0)
    torch._dynamo.reset() if "torch._dynamo" in sys.modules else None  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # torch's own, of torch.jit and of what a program of the list compiles.
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        found = [digest(values) for values in train()]
    gc.collect()
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_trains_to_the_same_bits_and_is_recorded(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = trained(PROGRAMS[name])
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            perfkit.profile(
                tmp_path / "run",
                quiet=True,
                memory=True,
                # A dry run asks for the storages of tensors below the modes of the program.
                detect_syncs=None if "counts" in name else "dry",
                schedule=perfkit.schedule(wait=1, warmup=1, active=1, repeat=1),
            )
        )
        recorded = trained(PROGRAMS[name])

    assert not _get_current_function_mode_stack()
    assert recorded == plain
    assert "training goes on" not in capsys.readouterr().err
    rank = read_run(tmp_path / "run").ranks[0]
    assert rank.steps
    assert rank.rank is not None
    assert not [note for note in rank.rank.notes if "not traced: " in note and "debugger" not in note]
