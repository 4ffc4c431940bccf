"""What a sampled stack shows is found once, and never mixed up with that of another stack."""

from __future__ import annotations

from pathlib import Path
from types import CodeType

import pytest
import torch

from perfkit._code_owner import own_work
from perfkit.record.samplers import call_path_tree, sampled_stacks
from perfkit.record.samplers.sampled_stacks import SampledStacks, find_line


def code(name: str, file: str = "train.py") -> CodeType:
    """The code of a function of this name."""
    module = compile(f"def {name}(): pass", file, "exec")
    return next(one for one in module.co_consts if isinstance(one, CodeType))


MAIN, STEP = code("main"), code("step")


def test_line_and_path_are_those_of_the_stack_and_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stacks, asked = SampledStacks(), []
    found = sampled_stacks.find_line
    monkeypatch.setattr(sampled_stacks, "find_line", lambda stack: asked.append(stack) or found(stack))  # type: ignore[func-returns-value]

    first = stacks.of("forward", [(STEP, 7), (MAIN, 20)])
    again = stacks.of("forward", [(STEP, 7), (MAIN, 20)])
    others = [
        stacks.of("backward", [(STEP, 7), (MAIN, 20)]),
        stacks.of("forward", [(STEP, 8), (MAIN, 20)]),
        stacks.of("forward", [(STEP, 7), (MAIN, 21)]),
    ]

    assert first == again
    assert len(asked) == 4
    line, _ = first
    assert line is not None
    assert line.called_from is not None
    assert (line.line, line.function, line.called_from.line) == (7, "step", 20)
    assert len({node for _, node in (first, *others)}) == 4


def test_a_code_object_that_is_gone_has_left_its_stack_to_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_path_tree, "_MAX_NODES", 0)  # it keeps the code of its nodes
    stacks = SampledStacks()
    for number in range(50):
        line, _ = stacks.of("forward", [(code(f"f{number}"), 1)])
        assert line is not None
        assert line.function == f"f{number}"


def test_beyond_the_number_that_is_kept_stacks_are_still_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_stacks, "_MAX_STACKS", 2)
    stacks = SampledStacks()

    shown = [stacks.of("forward", [(MAIN, number % 4)])[0] for number in range(12)]

    assert [line.line for line in shown if line is not None] == [0, 1, 2, 3] * 3
    assert len(stacks._known) <= 2

    stacks.of("forward", [(STEP, number) for number in range(500)])
    assert len(stacks._known) <= 2


def test_what_perfkit_does_is_no_line_s() -> None:
    @own_work
    def read() -> None: ...

    assert SampledStacks().of("forward", [(read.__code__, 1), (MAIN, 2)]) == (None, None)


def method(of_class: str, name: str, library: str) -> CodeType:
    """The code of a method of a library's class."""
    file = f"/env/site-packages/{library}.py"
    module = compile(f"class {of_class}:\n    def {name}(self): pass", file, "exec")
    [body] = (one for one in module.co_consts if isinstance(one, CodeType))
    return next(one for one in body.co_consts if isinstance(one, CodeType))


FETCH = code("fetch", str(Path(torch.utils.data.__file__).parent / "_utils" / "fetch.py"))
DATASET, LIST = method("Molecules", "__getitem__", "graphs"), method("Compose", "__call__", "graphs")
ENCODING = method("WalkEncoding", "forward", "graphs")


def test_where_a_loader_fetches_the_classes_of_the_library_are_kept_outermost_first() -> None:
    line = find_line([(ENCODING, 3), (LIST, 3), (DATASET, 3), (FETCH, 50), (MAIN, 20)])

    assert line is not None
    assert (line.line, line.objects) == (20, ("Molecules", "Compose", "WalkEncoding"))


def test_a_method_of_the_users_that_a_library_calls_in_a_fetch_is_known_by_its_class() -> None:
    own = method("OwnEncoding", "forward", "graphs").replace(co_filename="train.py")
    computes = code("diagonal", str(Path(torch.__file__).parent / "functional.py"))

    called = find_line([(computes, 2), (own, 7), (LIST, 3), (DATASET, 3), (FETCH, 50), (MAIN, 20)])
    fetched = find_line([(own, 7), (FETCH, 50), (MAIN, 20)])

    assert called is not None
    assert fetched is not None
    # What the loader itself calls is the dataset or its collate function.
    assert (called.line, called.objects, fetched.objects) == (7, ("OwnEncoding",), ())


def test_no_classes_are_kept_where_a_line_of_the_users_runs_in_the_fetch_or_none_does() -> None:
    own = find_line([(ENCODING, 3), (code("__getitem__"), 7), (FETCH, 50), (MAIN, 20)])
    outside = find_line([(ENCODING, 3), (MAIN, 20)])

    assert own is not None
    assert outside is not None
    assert (own.line, own.objects, outside.objects) == (7, (), ())
