"""What older versions of torch lack has a fallback; the stand-ins lack it too."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from perfkit import _torch_versions
from perfkit.commands import doctor


def test_a_torch_before_2_6_has_no_accelerator() -> None:
    assert _torch_versions.accelerator(SimpleNamespace()) is None
    assert _torch_versions.accelerator(torch) is getattr(torch, "accelerator", None)


def test_before_torch_2_6_no_call_of_a_compiled_function_compiles_until_it_is_put_back() -> None:
    given: list[object] = []
    dynamo = SimpleNamespace(set_eval_frame=given.append)
    old = SimpleNamespace(compiler=SimpleNamespace(), _dynamo=SimpleNamespace(eval_frame=dynamo))
    put_back = _torch_versions.compile_nothing(old)
    dynamo.set_eval_frame("compiler")
    put_back()
    dynamo.set_eval_frame("compiler")

    assert given == [None, "compiler"]


def test_a_compiled_function_runs_as_it_was_written_until_that_is_put_back() -> None:
    graphs: list[object] = []
    compiled = torch.compile(lambda x: x + 1, backend=lambda graph, example: graphs.append(graph) or graph)
    put_back = _torch_versions.compile_nothing(torch)
    compiled(torch.ones(1))
    assert graphs == []
    put_back()
    compiled(torch.ones(1))
    assert len(graphs) == 1


def test_doctor_says_that_a_name_is_missing_where_looking_at_its_class_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(type):
        def __getattribute__(cls, name: str) -> object:
            raise ImportError("needs a newer torch")

    monkeypatch.setattr(torch, "Refused", Refusing("Refused", (), {}), raising=False)

    assert not doctor._exists("torch", "Refused.name")
