"""The decorator: the function stays the user's own, whatever listens."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import perfkit
from perfkit.ranges import start_recorder
from perfkit.ranges.recorder import RangeRecorder
from perfkit.run.records import RangeRow

Row = Callable[[RangeRecorder, str], RangeRow]


@perfkit.range("scaled")
def scaled(x: int, /, y: int = 2, *rest: int, z: int = 3, **more: int) -> tuple[Any, ...]:
    """Every kind of parameter."""
    return x, y, rest, z, more


class Base:
    def who(self) -> str:
        return "base"


class Shapes(Base):
    @perfkit.range("who")
    def who(self) -> str:
        return super().who() + __class__.__name__  # type: ignore[name-defined]  # the cell of the class

    @perfkit.range("outside")
    @staticmethod
    def outside(x: int) -> int:
        return x

    @staticmethod
    @perfkit.range("inside")
    def inside(x: int) -> int:
        return x

    @perfkit.range("made")
    @classmethod
    def made(cls, __private: int) -> tuple[str, int]:
        return cls.__name__, __private


def test_a_decorated_function_runs_its_own_code_while_nothing_listens() -> None:
    def double(x: int) -> int:
        return 2 * x

    code = double.__code__
    decorated = perfkit.range(double)

    assert decorated is double
    assert double.__code__ is code


def test_arguments_and_defaults_bind_as_usual_while_the_recorder_listens(recorder: RangeRecorder, row: Row) -> None:
    assert scaled(1) == (1, 2, (), 3, {})
    assert scaled(1, 5, 6, 7, z=8, w=9) == (1, 5, (6, 7), 8, {"w": 9})
    with pytest.raises(TypeError, match=r"scaled\(\) missing 1 required positional argument: 'x'"):
        scaled()  # type: ignore[call-arg]  # that is the test
    assert row(recorder, "scaled").count == 2


def test_methods_of_every_kind_are_recorded_and_keep_their_class_cell(recorder: RangeRecorder) -> None:
    shapes = Shapes()

    assert shapes.who() == "baseShapes"
    assert shapes.outside(1) == Shapes.inside(1) == 1
    assert Shapes.made(4) == ("Shapes", 4)
    assert {row.name: row.count for row in recorder.rows()} == {"who": 1, "outside": 1, "inside": 1, "made": 1}


def test_the_default_name_is_the_qualified_name(recorder: RangeRecorder) -> None:
    class Model:
        @perfkit.range
        def embed(self) -> None: ...

        @perfkit.range(color="red")
        def loss(self) -> None: ...

    Model().embed()
    Model().loss()
    here = "test_the_default_name_is_the_qualified_name.<locals>.Model"

    assert [row.name for row in recorder.rows()] == [f"{here}.embed", f"{here}.loss"]


def test_the_signature_and_the_source_stay_the_users_while_something_listens(recorder: RangeRecorder) -> None:
    assert str(inspect.signature(scaled)).startswith("(x: 'int', /, y: 'int' = 2, *rest: 'int', z: 'int' = 3")
    assert '"""Every kind of parameter."""' in inspect.getsource(scaled)
    assert scaled.__code__.co_name == "scaled"
    assert scaled.__code__.co_filename == __file__


def test_exceptions_pass_through_and_end_the_range(recorder: RangeRecorder, row: Row) -> None:
    @perfkit.range("failing")
    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        fail()

    assert caught.traceback[-1].name == "fail"
    assert row(recorder, "failing").count == 1
    assert recorder.dropped == 0


def test_recursion_counts_each_call_and_self_time_once(recorder: RangeRecorder, row: Row) -> None:
    @perfkit.range("factorial")
    def factorial(n: int) -> int:
        return 1 if n == 0 else n * factorial(n - 1)

    assert factorial(9) == 362880
    found = row(recorder, "factorial")
    assert found.count == 10
    assert found.self_ns == found.max_ns  # the outermost call lasted as long as all of them spent in themselves


def test_a_generator_passes_on_what_is_sent_thrown_and_returned(recorder: RangeRecorder, row: Row) -> None:
    @perfkit.range("generator")
    def echo() -> Iterator[Any]:
        got = yield "first"
        try:
            yield got
        except ValueError:
            yield "caught"
        return "done"

    def outer() -> Iterator[Any]:
        assert (yield from echo()) == "done"

    running: Any = outer()
    assert [next(running), running.send(7), running.throw(ValueError)] == ["first", 7, "caught"]
    assert list(running) == []
    assert row(recorder, "generator").count == 1


def test_a_generator_closed_early_ends_its_range(recorder: RangeRecorder, row: Row) -> None:
    closed = []

    @perfkit.range("early")
    def numbers() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            closed.append(True)

    for number in (running := numbers()):
        if number == 2:
            break
    running.close()  # type: ignore[attr-defined]  # an iterator for the type checker

    assert closed == [True]
    assert row(recorder, "early").count == 1


def test_coroutines_that_interleave_keep_their_own_times(recorder: RangeRecorder) -> None:
    order = []

    @perfkit.range("slow")
    async def slow(turn: asyncio.Event) -> int:
        order.append("slow begins")
        await turn.wait()
        order.append("slow ends")
        return 1

    @perfkit.range("fast")
    async def fast(turn: asyncio.Event) -> int:
        order.append("fast begins")
        turn.set()
        return 2

    async def both() -> list[int]:
        turn = asyncio.Event()
        return await asyncio.gather(slow(turn), fast(turn))

    assert inspect.iscoroutinefunction(slow)
    assert asyncio.run(both()) == [1, 2]
    assert order == ["slow begins", "fast begins", "slow ends"]
    rows = {row.name: row for row in recorder.rows()}
    assert rows["slow"].total_ns > rows["fast"].total_ns
    assert recorder.dropped == 0


def test_an_async_generator_passes_on_what_is_sent_and_thrown_and_closes(recorder: RangeRecorder, row: Row) -> None:
    events: list[Any] = []

    @perfkit.range("async generator")
    async def echo() -> AsyncIterator[Any]:
        try:
            events.append((yield "first"))
            try:
                yield "second"
            except ValueError:
                yield "caught"
            yield "never reached"
        finally:
            events.append("closed")

    async def use() -> None:
        running: Any = echo()
        events.append(await running.__anext__())
        events.append(await running.asend("sent"))
        events.append(await running.athrow(ValueError))
        await running.aclose()
        events.append([value async for value in echo()])

    asyncio.run(use())

    assert events == [
        "first",
        "sent",
        "second",
        "caught",
        "closed",
        None,
        "closed",
        ["first", "second", "never reached"],
    ]
    assert inspect.isasyncgenfunction(echo)
    assert row(recorder, "async generator").count == 2


def test_builtins_partials_and_callable_objects_are_wrapped(recorder: RangeRecorder) -> None:
    class Loss:
        def __call__(self, x: int) -> int:
            return x + 1

    total = perfkit.range(sum)
    power = perfkit.range("power")(functools.partial(pow, 2))
    loss = perfkit.range("loss")(Loss())
    bound = perfkit.range("bound")([1, 2].index)

    assert (total([1, 2]), power(3), loss(1), bound(2)) == (3, 8, 2, 1)
    assert {row.name for row in recorder.rows()} == {"sum", "power", "loss", "bound"}


def test_a_bound_method_is_decorated_for_its_object_only(recorder: RangeRecorder, row: Row) -> None:
    base = Base()
    base.who = perfkit.range("bound")(base.who)  # type: ignore[method-assign]  # that is what users do

    assert base.who() == Base().who() == "base"
    assert row(recorder, "bound").count == 1


def test_two_decorators_give_two_ranges_one_inside_the_other(recorder: RangeRecorder, row: Row) -> None:
    @perfkit.range("outer")
    @perfkit.range("inner")
    def twice() -> int:
        return 2

    assert twice() == 2
    assert row(recorder, "outer").total_ns > row(recorder, "inner").total_ns
    assert row(recorder, "outer").self_ns + row(recorder, "inner").self_ns == row(recorder, "outer").total_ns


def test_wrappers_made_with_functools_wraps_do_not_become_ranges(recorder: RangeRecorder, row: Row) -> None:
    @functools.wraps(scaled)
    def wrapper(*args: Any) -> Any:
        return "wrapped", scaled(*args)

    assert wrapper(1)[0] == "wrapped"
    assert row(recorder, "scaled").count == 1
    assert not [name for name in vars(wrapper) if "dynamo" in name]


def test_switching_while_calls_run_keeps_every_pair_together() -> None:
    recorders = []

    @perfkit.range("toggling")
    def toggle(deep: int) -> None:
        if deep:
            recorders.append(start_recorder())
            toggle(deep - 1)
            recorders[-1].stop()
            recorders.pop().rows()
            toggle(0)

    toggle(1)
    recorder = start_recorder()
    toggle(0)
    recorder.stop()
    toggle(0)

    assert [(row.name, row.count) for row in recorder.rows()] == [("toggling", 1)]
    assert recorder.dropped == 0


def test_threads_may_call_while_a_recorder_starts_and_stops() -> None:
    @perfkit.range("hammered")
    def hammered(n: int) -> int:
        with perfkit.range("hammered inside"):
            return n + 1

    stop = threading.Event()
    wrong: list[BaseException] = []

    def hammer() -> None:
        try:
            n = 0
            while not stop.is_set():
                assert hammered(n) == n + 1
                n += 1
        except BaseException as error:  # noqa: BLE001 - handed to the test
            wrong.append(error)

    threads = [threading.Thread(target=hammer) for _ in range(3)]
    for thread in threads:
        thread.start()
    recorders = []
    for _ in range(100):
        recorders.append(start_recorder())
        recorders[-1].drain()
        recorders[-1].stop()
    stop.set()
    for thread in threads:
        thread.join()

    assert wrong == []
    assert all(row.count == sum(row.hist) for recorder in recorders for row in recorder.rows())


def test_decorated_functions_pickle_by_reference_and_copy_as_themselves(recorder: RangeRecorder) -> None:
    assert pickle.loads(pickle.dumps(scaled)) is scaled
    assert copy.deepcopy(scaled) is scaled
    assert pickle.loads(pickle.dumps(Shapes.who)) is Shapes.who


def test_a_closure_that_is_made_again_and_again_leaves_nothing_behind(recorder: RangeRecorder) -> None:
    def make(n: int) -> Callable[[], int]:
        @perfkit.range("closure")
        def add() -> int:
            return n

        return add

    before = len(globals())
    assert [make(n)() for n in range(20)] == list(range(20))
    assert len(globals()) <= before + 1  # perfkit's own module


def test_code_that_is_replaced_becomes_the_functions_own(recorder: RangeRecorder, row: Row) -> None:
    @perfkit.range("reloaded")
    def answer() -> int:
        return 1

    assert answer() == 1
    answer.__code__ = (lambda: 2).__code__
    recorder.stop()
    assert answer() == 2
    again = start_recorder()
    assert answer() == 2
    again.stop()
    assert row(again, "reloaded").count == 1


@pytest.mark.parametrize("target", [3, int, [1], object()])
def test_what_cannot_be_decorated_is_refused_at_once(target: object) -> None:
    with pytest.raises(perfkit.UsageError, match=r"perfkit\.range decorates functions"):
        perfkit.range("x")(target)


@pytest.mark.parametrize(
    "keywords", [{"color": "reddish"}, {"color": 1.5}, {"category": 3}, {"domain": ""}, {"domain": "a\0b"}]
)
def test_a_decorator_with_a_bad_argument_raises_before_the_function_is_seen(keywords: dict[str, Any]) -> None:
    with pytest.raises(perfkit.UsageError, match="of a range must"):
        perfkit.range(**keywords)
