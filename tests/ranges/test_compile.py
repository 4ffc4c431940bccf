"""torch.compile, torch.export and torch.jit.script see nothing of a range, on or off, and never recompile for it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import perfkit
from perfkit.ranges import start_recorder


@perfkit.range("compiled helper")
def helper(x: torch.Tensor) -> torch.Tensor:
    return x * 2


traces_a_decorated_function = pytest.mark.since_torch((2, 6), "no recompile for a decorated function that is a global")
exports_with_listeners = pytest.mark.since_torch((2, 10), "a strict export while ranges are on")
takes_existing_ranges = pytest.mark.since_torch((2, 13), "a range that existed before its compiled function")

without_gradients = torch.no_grad()(helper)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    @perfkit.range("net")
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with perfkit.range("by name", payload=3):
            x = self.linear(x)
        perfkit.mark("instant")
        return self.method(helper(x)) + without_gradients(x)

    @perfkit.range
    def method(self, x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        return x * factor


@perfkit.range("root")
def root(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net(x)


@contextlib.contextmanager
def listening(*who: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if "recorder" in who:
            stack.callback(start_recorder().stop)
        if "profiler" in who:
            stack.enter_context(profile(activities=[ProfilerActivity.CPU]))
        yield


MODES: list[tuple[str, ...]] = [(), ("recorder",), ("profiler",), ("recorder", "profiler")]


class Graphs:
    """A backend that counts the graphs it is given."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: Any, example: Any) -> Any:
        self.count += 1
        return graph


@pytest.fixture(autouse=True)
def _no_compiled_code() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@traces_a_decorated_function
@pytest.mark.parametrize("first", MODES)
def test_one_graph_without_breaks_and_no_recompile_whatever_is_switched(first: tuple[str, ...]) -> None:
    net, x, graphs = Net(), torch.ones(2, 4), Graphs()
    expected = root(net, x)
    compiled = torch.compile(root, backend=graphs, fullgraph=True)

    for mode in (first, *MODES, first):
        with listening(*mode):
            assert torch.equal(compiled(net, x), expected)
    assert graphs.count == 1


@takes_existing_ranges
@pytest.mark.parametrize("mode", MODES)
def test_a_range_that_is_kept_by_a_module_breaks_no_graph(mode: tuple[str, ...]) -> None:
    net = Net()
    net.kept = perfkit.range("kept in the module")

    def call(x: torch.Tensor) -> torch.Tensor:
        with net.kept:
            return net(x)

    with listening(*mode):
        torch.compile(call, backend="eager", fullgraph=True)(torch.ones(2, 4))


def test_a_compiled_function_keeps_the_range_around_it() -> None:
    compiled = torch.compile(root, backend="eager", fullgraph=True)
    net, x = Net(), torch.ones(2, 4)
    compiled(net, x)
    recorder = start_recorder()
    compiled(net, x)
    recorder.stop()

    assert [(row.name, row.count) for row in recorder.rows()] == [("root", 1)]


def test_what_a_decorated_function_captures_is_still_guarded() -> None:
    factor = 2.0

    @perfkit.range
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    def outer(x: torch.Tensor) -> torch.Tensor:
        return scale(x) + 1

    compiled = torch.compile(outer, backend="eager", fullgraph=True)
    assert compiled(torch.ones(1)).item() == 3
    factor = 5.0
    assert compiled(torch.ones(1)).item() == 6


def test_a_wrapper_around_a_decorated_function_is_traced_itself() -> None:
    def outer(x: torch.Tensor) -> torch.Tensor:
        return without_gradients(x) + 1

    x = torch.ones(2, requires_grad=True)
    compiled = torch.compile(lambda x: without_gradients(x), backend="eager", fullgraph=True)

    assert compiled(x).requires_grad is outer(x).requires_grad is False


def test_a_graph_break_inside_a_range_keeps_the_result_and_the_rows_balanced() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        with perfkit.range("around a break"):
            x = helper(x)
            torch._dynamo.graph_break()
            with perfkit.range("after a break"):
                return helper(x) + 1

    compiled = torch.compile(broken, backend="eager")
    for mode in MODES:
        with listening(*mode):
            assert compiled(torch.ones(1)).item() == 5


@pytest.mark.parametrize("mode", MODES)
def test_forward_and_backward_compile_with_aot_autograd(mode: tuple[str, ...]) -> None:
    net, x = Net(), torch.ones(2, 4)
    with listening(*mode):
        torch.compile(net, backend="aot_eager", fullgraph=True)(x).sum().backward()
    assert net.linear.weight.grad is not None


@pytest.mark.parametrize(
    ("mode", "strict"),
    [
        *((mode, False) for mode in MODES),
        ((), True),
        *(pytest.param(mode, True, marks=exports_with_listeners) for mode in MODES[1:]),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.export's own
def test_a_module_with_ranges_exports(mode: tuple[str, ...], strict: bool) -> None:
    net, x = Net(), torch.ones(2, 4)
    with listening(*mode):
        exported = torch.export.export(net, (x,), strict=strict)
    assert torch.allclose(exported.module()(x), net(x))


@pytest.mark.parametrize("mode", MODES)
# torch.jit.script says that it is on its way out, since torch 2.15 in another class.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_decorated_function_can_be_scripted(mode: tuple[str, ...]) -> None:
    with listening(*mode):
        assert torch.jit.script(helper)(torch.ones(1)).item() == 2


@traces_a_decorated_function
@pytest.mark.parametrize("kept", ["nullcontext()", pytest.param('perfkit.range("kept")', marks=takes_existing_ranges)])
def test_ranges_made_before_torch_is_imported_compile_too(kept: str, run_python: Callable[..., object]) -> None:
    run_python(
        f"""
        import sys, perfkit
        from contextlib import nullcontext
        kept = {kept}
        @perfkit.range("early")
        def early(x): return x + 1
        assert "torch" not in sys.modules
        from perfkit.ranges import start_recorder, installed
        assert installed() == ["permanent: sys.meta_path: waiting for torch"]
        first = start_recorder()
        early(1)
        import torch
        def outer(x):
            with kept:
                return early(x)
        graphs = []
        compiled = torch.compile(outer, backend=lambda graph, example: graphs.append(1) or graph, fullgraph=True)
        compiled(torch.ones(1))
        torch.compile(early, backend="eager", fullgraph=True)(torch.ones(1))
        first.stop()
        compiled(torch.ones(1))
        assert graphs == [1], graphs
        assert {{row.name: row.count for row in first.rows()}} == {{"early": 2}}, first.rows()
        """
    )


@traces_a_decorated_function
def test_switching_counts_no_recompile_and_no_graph_break_in_torchs_own_counters() -> None:
    counters = torch._dynamo.utils.counters
    counters.clear()
    net, x = Net(), torch.ones(2, 4)
    compiled = torch.compile(root, backend="eager", fullgraph=True)
    compiled(net, x)
    unique = counters["stats"]["unique_graphs"]

    with torch._dynamo.config.patch(error_on_recompile=True):
        for mode in (*MODES, *reversed(MODES)):
            with listening(*mode):
                compiled(net, x)
    assert unique == counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Skipping serialization")  # Inductor's own
@traces_a_decorated_function
def test_inductor_compiles_a_training_step_once_whatever_is_switched() -> None:
    net, x = Net(), torch.ones(2, 4)
    plain = root(net, x)
    compiled = torch.compile(root, fullgraph=True)
    compiled(net, x).sum().backward()

    with torch._dynamo.config.patch(error_on_recompile=True):
        for mode in MODES:
            with listening(*mode):
                result = compiled(net, x)
                result.sum().backward()
            assert torch.allclose(result, plain)
