"""What older versions of torch lack has a fallback; the stand-ins lack it too."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import perfkit
from perfkit import _torch_versions
from perfkit.commands import doctor
from perfkit.ranges import dynamo
from perfkit.record.samplers.line_tracer import LineTracer
from perfkit.run.reading import read_run
from perfkit.syncs.dry_run import op_table
from perfkit.syncs.dry_run.op_table import borrowed_table


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


def test_before_torch_2_9_the_switch_for_tf32_is_a_truth() -> None:
    old = SimpleNamespace(backends=SimpleNamespace(cudnn=SimpleNamespace(allow_tf32=True)))
    new = SimpleNamespace(backends=SimpleNamespace(cudnn=SimpleNamespace(conv=SimpleNamespace(fp32_precision="ieee"))))

    assert _torch_versions.allows_tf32(_torch_versions.convolution_precision(old))
    assert not _torch_versions.allows_tf32(_torch_versions.convolution_precision(new))
    assert not _torch_versions.allows_tf32(torch.backends.cuda.matmul)


def test_an_op_writes_into_what_its_schema_says() -> None:
    into, other, _ = torch.ops.aten.add_.Tensor._schema.arguments

    assert (_torch_versions.writes(into), _torch_versions.writes(other)) == (True, False)


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


def test_before_torch_2_7_dynamo_leaves_alone_all_that_is_perfkits_and_nothing_of_torchs() -> None:
    files = {code.co_filename for code in dynamo._own_functions()}
    package = str(Path(perfkit.__file__).parent)

    assert {file for file in files if not file.startswith(package)} == set()
    assert {f"{package}/ranges/listeners.py", f"{package}/run/reading.py"} <= files


def test_before_torch_2_7_lines_are_not_traced_where_something_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C._dynamo.eval_frame, "set_code_exec_strategy", raising=False)
    monkeypatch.setattr(torch._dynamo.eval_frame, "cached_backends", {1: None})
    assert not dynamo.compiles_tracing()
    monkeypatch.setattr(torch._dynamo.eval_frame, "cached_backends", {1: print})
    tracer = LineTracer(lambda: "other")
    tracer.start()
    tracer.stop()

    assert tracer.refused is not None
    assert "2.4 to 2.6" in tracer.refused


def test_a_window_starts_without_torchs_warning_that_it_keeps_one_cycle(tmp_path: Path) -> None:
    kineto = torch.profiler.profiler
    getattr(kineto, "_WARNINGS_SHOWN", set()).clear()
    warn_once = getattr(kineto, "_warn_once", None)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with perfkit.profile(
            tmp_path / "x", quiet=True, report=False, schedule=perfkit.schedule(wait=1, warmup=1, active=1)
        ) as prof:
            for _ in prof.steps(range(6)):
                torch.ones(2) + 1

    assert list((tmp_path / "x").rglob("*.pt.trace.json*"))
    assert not [one for one in warned if "clears events" in str(one.message)]
    assert getattr(kineto, "_warn_once", None) is warn_once


@pytest.mark.parametrize(("version", "used"), [("2.4.1", "2.13.0"), ("2.13.1", None), ("2.15.0", "2.14.1")])
def test_a_torch_without_a_table_of_waiting_ops_says_whose_is_used(version: str, used: str | None) -> None:
    said = f"torch {version} has no table of the ops that wait: the dry run used that of torch {used}"
    assert borrowed_table(version) == (said if used else None)


def test_a_dry_run_with_another_versions_table_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_table, "borrowed_table", lambda: "that of another")
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with perfkit.profile(tmp_path / "x", quiet=True, report=False, detect_syncs="dry") as prof:
        for _ in prof.steps(range(60)):
            weight.sum().backward()
            optimizer.step()

    rank = read_run(tmp_path / "x").ranks[0].rank
    assert rank is not None
    assert "that of another" in rank.notes
