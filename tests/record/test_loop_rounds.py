"""Rounds of a script's loops stand for steps where nothing else shows any; time is a fake clock that the loop moves."""

from __future__ import annotations

import pickle
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch

from perfkit.record.hooks import boundaries, loop_rounds
from perfkit.record.hooks.loop_rounds import CountedLoop, with_counted_loops

pytestmark = pytest.mark.usefixtures("nothing_compiled")

SCRIPT = """
    import threading

    @torch.compile
    def compiled():
        for _ in range(2):
            pass

    @guvectorize([])
    def rewritten():
        for _ in range(2):
            pass

    @jitclass
    class Rewritten:
        def solve_all(self):
            for _ in self:
                pass

    @torch.no_grad()
    def predict():
        for step in range(9):
            pass

    def helper(values):
        for value in values:
            yield value

    def thread():
        while True:
            break

    def often():
        for _ in range(2):
            pass

    class Solver:
        def solve(self):
            while self:
                for _ in self:
                    for _ in self:
                        pass

        def forward(self):
            for _ in self:
                pass

    def main(solver):
        if solver:
            for day in range(3):
                often()
        solver.solve()
        solver.forward()
        compiled()
        rewritten()
        Rewritten().solve_all()
        predict()
        threading.Thread(target=thread)
        list(helper([1]))

    for name in "ab":
        print(name)

    if __name__ == "__main__":
        main(Solver())
"""


@pytest.fixture(autouse=True)
def no_loops_left() -> Iterator[None]:
    yield
    loop_rounds._loops.clear()


@pytest.fixture(autouse=True)
def no_optimizers_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundaries, "has_optimizer", lambda: False)


def loops_of(source: str) -> dict[int, CountedLoop]:
    """The counted loops by their lines; the first line of ``source`` is 1."""
    named = with_counted_loops(textwrap.dedent(source).lstrip().encode(), "script.py")[1]
    return {loop.at.line or 0: loop for loop in named.values()}


def run(source: str, **names: Any) -> dict[str, Any]:
    """Run a script as `perfkit run` does."""
    tree, loops = with_counted_loops(textwrap.dedent(source).lstrip().encode(), "script.py")
    names = {"__name__": "__main__", **names, **loops}
    return run_code(tree, names)


def run_code(tree: Any, names: dict[str, Any]) -> dict[str, Any]:
    exec(compile(tree, "script.py", "exec", dont_inherit=True), names)
    return names


def recording_of(recorded: Any, source: str, **names: Any) -> Any:
    tree, loops = with_counted_loops(textwrap.dedent(source).lstrip().encode(), "script.py")
    with recorded() as recording, torch.no_grad():
        run_code(tree, {"__name__": "__main__", "torch": torch, **names, **loops})
    return recording


def test_loops_are_counted_that_the_script_begins_and_none_that_runs_in_a_loop_or_is_compiled() -> None:
    lines = textwrap.dedent(SCRIPT).lstrip().splitlines()
    loops = loops_of(SCRIPT)

    assert [(lines[line - 1].strip(), loops[line].at.function) for line in sorted(loops)] == [
        ("for step in range(9):", "predict"),
        ("while self:", "solve"),
        ("for _ in self:", "solve"),
        ("for day in range(3):", "main"),
        ('for name in "ab":', None),
    ]
    of_solver = [loops[line] for line in sorted(loops) if loops[line].at.function == "solve"]
    assert [loop.outer for loop in of_solver] == [None, of_solver[0]]


def test_the_script_runs_the_same_lines_as_often() -> None:
    source = """
        total = 0
        for i in range(3):
            if i == 1:
                continue
            total += i
            while True: total += 1; break
        else:
            total *= 2
        for j in range(2): total += j
    """

    def lines_of(execute: Callable[[], Any]) -> tuple[Any, list[int]]:
        lines: list[int] = []

        def trace(frame: FrameType, event: str, arg: Any) -> Any:
            if frame.f_code.co_filename != "script.py":
                return None
            if event == "line":
                lines.append(frame.f_lineno)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            total = execute()["total"]
        finally:
            sys.settrace(before)
        return total, lines

    text = textwrap.dedent(source).lstrip()
    plain = lines_of(lambda: run_code(text, {}))
    assert lines_of(lambda: run(source)) == plain
    assert plain[0] == 9


def test_a_docstring_a_future_import_and_an_error_s_line_stay() -> None:
    source = '''
        """What it does."""
        from __future__ import annotations

        for i in range(3):
            value: Missing = 1 / (1 - i)
    '''
    with pytest.raises(ZeroDivisionError) as raised:
        run(source)
    names = run('"""What it does."""\nfor i in range(3): pass')

    assert raised.traceback[-1].lineno == 4
    assert names["__doc__"] == "What it does."


def test_a_round_is_a_step_after_a_second_of_them(clock: Any, recorded: Any) -> None:
    recording = recording_of(
        recorded,
        """
        for day in range(100):
            clock.pass_ms(50)
        """,
        clock=clock,
    )

    assert recording.counted_by == "round"
    assert recording.hooks.boundary.called_at.line == 1
    assert recording.walls_ms == [50] * 79
    assert {step.mode for step in recording.closed} == {"predict"}


def test_of_two_loops_the_outer_one_has_the_steps_unless_its_rounds_take_seconds(clock: Any, recorded: Any) -> None:
    source = """
        for epoch in range(20):
            for batch in range(10):
                clock.pass_ms(each)
    """
    outer = recording_of(recorded, source, clock=clock, each=20)
    inner = recording_of(recorded, source, clock=clock, each=200)

    assert (outer.hooks.boundary.called_at.line, set(outer.walls_ms)) == (1, {200})
    assert (inner.hooks.boundary.called_at.line, set(inner.walls_ms)) == (2, {200})


def test_short_rounds_are_no_steps_and_their_loop_is_soon_left_alone(clock: Any, recorded: Any) -> None:
    tree, loops = with_counted_loops(b"for i in range(5000): clock.pass_ms(0.5)", "script.py")
    [loop] = loops.values()
    with recorded() as recording:
        run_code(tree, {"clock": clock, **loops})

        assert loop.on_round is None
    assert recording.counted_by is None
    assert loop.rounds == 1000


def test_the_next_loop_takes_the_steps_once_the_first_one_is_over(clock: Any, recorded: Any) -> None:
    recording = recording_of(
        recorded,
        """
        for day in range(40):
            clock.pass_ms(50)
        for night in range(40):
            clock.pass_ms(100)
        """,
        clock=clock,
    )

    # The steps are rounds of two loops.
    assert (recording.counted_by, recording.hooks.boundary.called_at) == ("round", None)
    assert recording.walls_ms[:19] == [50] * 19
    assert recording.walls_ms[-19:] == [100] * 19
    assert max(recording.walls_ms) == 100


def test_a_long_pause_between_two_epochs_does_not_make_the_epochs_the_steps(clock: Any, recorded: Any) -> None:
    recording = recording_of(
        recorded,
        """
        for epoch in range(8):
            for batch in range(10):
                clock.pass_ms(200)
            clock.pass_ms(1500)
        """,
        clock=clock,
    )

    assert recording.hooks.boundary.called_at.line == 2
    assert recording.walls_ms.count(200) == 8 * 9 - 5
    assert set(recording.walls_ms) == {200, 1700}


def test_rounds_on_another_thread_are_no_steps(clock: Any, recorded: Any) -> None:
    recording = recording_of(
        recorded,
        """
        def main():
            for day in range(100):
                clock.pass_ms(50)
        import concurrent.futures
        with concurrent.futures.ThreadPoolExecutor() as pool:
            pool.submit(lambda: main()).result()
        """,
        clock=clock,
    )

    assert recording.closed == []


def test_a_loop_that_is_over_gives_way_to_calls_of_a_model(clock: Any, recorded: Any) -> None:
    source = """
        model = torch.nn.Linear(3, 3)
        for day in range(30):
            clock.pass_ms(50)
        for _ in range(calls):
            model(torch.ones(3))
    """
    few = recording_of(recorded, source, clock=clock, calls=40)
    many = recording_of(recorded, source, clock=clock, calls=90)

    assert (few.counted_by, many.counted_by) == ("round", "module")


def test_an_asynchronous_main_has_its_loop_counted() -> None:
    loops = loops_of(
        """
        import asyncio
        async def main():
            for day in range(3):
                await asyncio.sleep(0)
        asyncio.run(main())
        """
    )

    assert [(line, loop.at.function) for line, loop in loops.items()] == [(3, "main")]


def test_a_main_function_of_hydra_or_click_has_its_loop_counted() -> None:
    loops = loops_of(
        """
        import click, hydra
        @hydra.main(config_path=None)
        def main(config):
            for day in range(3):
                pass
        @click.command()
        def tell():
            for night in range(3):
                pass
        main()
        tell()
        """
    )

    assert [(line, loops[line].at.function) for line in sorted(loops)] == [(4, "main"), (8, "tell")]


def test_a_program_that_marks_its_steps_has_no_other_ones(clock: Any, recorded: Any) -> None:
    tree, loops = with_counted_loops(b"for day in range(100): clock.pass_ms(50)", "script.py")
    with recorded() as recording:
        recording.hooks.leave_boundaries()
        run_code(tree, {"clock": clock, **loops})

    assert recording.closed == []
    assert [loop.on_round for loop in loops.values()] == [None]


def test_a_program_that_holds_an_optimizer_has_no_rounds_as_steps(
    clock: Any, recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boundaries, "has_optimizer", lambda: True)

    recording = recording_of(recorded, "for day in range(100): clock.pass_ms(50)", clock=clock)

    assert (recording.counted_by, recording.closed) == (None, [])


def test_calls_of_a_model_are_steps_before_rounds_are(clock: Any, recorded: Any) -> None:
    recording = recording_of(
        recorded,
        """
        model = torch.nn.Linear(3, 3)
        for day in range(40):
            model(torch.ones(3))
            clock.pass_ms(50)
        """,
        clock=clock,
    )

    assert recording.counted_by == "module"


def test_steps_are_updates_once_the_program_trains(clock: Any, recorded: Any) -> None:
    with recorded() as recording:
        run(
            """
            for page in range(40):
                clock.pass_ms(50)
            weight = torch.ones(3, requires_grad=True)
            optimizer = torch.optim.SGD([weight], lr=0.1)
            for step in range(20):
                weight.sum().backward()
                clock.pass_ms(7)
                optimizer.step()
            """,
            clock=clock,
            torch=torch,
        )

    assert recording.counted_by == "optimizer"
    assert [(step.mode, step.wall_ns / 1e6) for step in recording.closed][-15:] == [("train", 7)] * 15
    assert all(loop.on_round is None for loop in loop_rounds._loops)


def test_a_loop_that_goes_to_another_machine_does_nothing_there_and_needs_no_perfkit() -> None:
    [loop] = loops_of("for i in range(3): pass").values()
    loop.on_round = lambda one: pytest.fail("it was called")

    pickled = pickle.dumps(loop)
    assert b"perfkit" not in pickled
    pickle.loads(pickled)()
