"""`detect_syncs`: events by line, counts per step, budgets, filters, actions, and wrong arguments."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from rich.console import Console

import perfkit
from perfkit._patches import installed
from perfkit.run.records import SyncEvent, Syncs
from perfkit.syncs import detect_syncs

LOOP = """\
for step in range(4):
    loss = model(batch).square().mean()
    loss.backward()
    loss = loss.detach()
    if step == 3:
        print(loss.item())
    total += float(loss)
    syncs.step()
"""


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Linear(3, 3)


@pytest.fixture
def four_steps(model: torch.nn.Module, run_program: Callable[..., Any]) -> Any:
    with detect_syncs("dry", device_of=[model]) as syncs:
        run_program(LOOP, model=model, batch=torch.ones(2, 3), total=0.0, syncs=syncs)
    return syncs


def test_an_event_names_the_line_what_synced_and_what_to_change(four_steps: Any) -> None:
    event = four_steps.events[0]

    assert (event.kind, event.op, event.owner) == ("read", "float(tensor)", "user")
    assert (event.line, event.function) == (7, "<module>")
    assert (event.count, event.blocked_ns, event.via, event.thread) == (4, None, None, "MainThread")
    assert event.file.endswith("program0.py")
    assert "every N steps" in event.advice


def test_one_sync_in_four_steps_is_not_reported_as_one_per_step(four_steps: Any) -> None:
    assert [(event.op, event.per_step) for event in four_steps.events] == [("float(tensor)", 1.0), ("item", 0.25)]
    assert [(event.count, event.in_steps) for event in four_steps.events] == [(4, 4), (1, 1)]
    assert "1 in 4 steps" in repr(four_steps)
    assert "5 syncs on 2 lines in 4 steps (dry run)" in repr(four_steps)


def test_the_table_shows_each_line_with_its_advice(four_steps: Any) -> None:
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(four_steps.table())

    text = console.export_text()
    assert "program0.py:7" in text
    assert "1 per step" in text
    assert "accumulate it" in text


def test_a_notebook_shows_a_table_in_which_everything_is_escaped(
    model: torch.nn.Module, run_program: Callable[..., Any]
) -> None:
    program = "def step(w):\n    return w.sum().item()\nstep(w)"
    with detect_syncs("dry", device_of=model, on_sync="record") as syncs, perfkit.allow_sync("<b>"):
        run_program(program, w=model.weight)
    with detect_syncs("dry", device_of=model) as counted:
        run_program(program, w=model.weight)

    assert "&lt;b&gt;" in syncs._repr_html_()
    html = counted._repr_html_()
    left = 'style="text-align: left"'
    assert html.startswith(f"<p><b>1 sync on 1 line (dry run)</b></p><table><thead><tr><th {left}>line</th>")
    assert f"<td {left}>item</td><td {left}>1x</td>" in html
    assert html.count("<tr>") == html.count("</tr>") == 2


def test_the_record_survives_json(four_steps: Any) -> None:
    record = msgspec.json.decode(four_steps.to_json(), type=Syncs)

    assert record == four_steps.to_record()
    assert (record.mode, record.observed, record.steps, len(record.events)) == ("dry", True, 4, 2)


def test_without_steps_an_event_has_no_number_per_step(model: torch.nn.Module) -> None:
    with detect_syncs("dry", device_of=model) as syncs:
        model.weight.sum().item()

    assert syncs.events[0].per_step is None
    assert syncs.to_record().steps is None


def test_assert_max_names_the_lines(four_steps: Any) -> None:
    four_steps.assert_max(5)
    with pytest.raises(
        perfkit.SyncBudgetExceeded, match=r"at most 4 syncs, found 5:\n.*program0.py:7.*float\(tensor\), 4x"
    ):
        four_steps.assert_max(4)


def test_a_budget_is_checked_at_the_end(model: torch.nn.Module) -> None:
    with (
        pytest.raises(perfkit.SyncBudgetExceeded, match="at most 0 syncs, found 1"),
        detect_syncs("dry", device_of=model, max_syncs=0),
    ):
        model.weight.sum().item()
    with detect_syncs("dry", device_of=model, max_syncs=1):
        model.weight.sum().item()


def test_an_error_of_the_program_passes_through_and_the_budget_is_not_checked(
    model: torch.nn.Module, run_program: Callable[..., Any]
) -> None:
    syncs = detect_syncs("dry", device_of=model, max_syncs=0)
    with pytest.raises(ZeroDivisionError), syncs:
        run_program("w.sum().item()\n1 / 0", w=model.weight)

    assert len(syncs.events) == 1
    assert installed() == []


def test_a_dry_run_without_device_tensors_does_not_pass() -> None:
    with detect_syncs("dry") as syncs:
        torch.ones(3).sum().item()

    assert not syncs.observed
    assert syncs.to_record().note is not None
    assert "device_of=" in repr(syncs)
    assert "device_of=[model]" in str(syncs.table().caption)
    with pytest.raises(perfkit.SyncBudgetExceeded, match=r"nothing was checked.*device_of="):
        syncs.assert_max(100)
    with pytest.raises(perfkit.SyncBudgetExceeded, match="nothing was checked"), detect_syncs("dry", max_syncs=100):
        pass


def test_a_step_without_syncs_passes(model: torch.nn.Module) -> None:
    with detect_syncs("dry", device_of=model, max_syncs=0) as syncs:
        model(torch.ones(2, 3)).sum().backward()

    assert syncs.observed
    assert syncs.events == ()
    assert "no syncs" in repr(syncs)


def test_an_inner_detection_is_not_observed_by_what_the_outer_one_saw(model: torch.nn.Module) -> None:
    with detect_syncs("dry", device_of=model) as outer:
        model(torch.ones(2, 3))
        with detect_syncs("dry") as inner:
            torch.ones(3).sum()

    assert (outer.observed, inner.observed) == (True, False)


def test_naming_a_model_that_is_not_used_does_not_pass(model: torch.nn.Module) -> None:
    with detect_syncs("dry", device_of=model) as syncs:
        torch.ones(3).sum().item()

    assert not syncs.observed
    assert "no operation in this thread used" in repr(syncs)


@pytest.mark.parametrize(
    ("arguments", "counted"),
    [
        ({"kinds": ["copy-d2h"]}, ["cpu"]),
        ({"implicit_only": True}, ["item"]),
        ({"ignore": ["fn:save"]}, ["item"]),
        ({"ignore": ["**/program0.py"]}, []),
        ({"ignore": "program*.py"}, []),
    ],
)
def test_filters_exclude_syncs(
    arguments: dict[str, Any], counted: list[str], model: torch.nn.Module, run_program: Callable[..., Any]
) -> None:
    with detect_syncs("dry", device_of=model, **arguments) as syncs:
        run_program("def save():\n    w.cpu()\nsave()\nw.sum().item()", w=model.weight)

    assert [event.op for event in syncs.events] == counted


def test_an_ignore_pattern_that_matches_nothing_causes_a_warning(model: torch.nn.Module) -> None:
    with (
        pytest.warns(perfkit.PerfkitWarning, match=r"matched no sync: 'fn:sav'") as caught,
        detect_syncs("dry", device_of=model, ignore=["fn:sav"]),
    ):
        model.weight.sum().item()

    assert caught[0].filename == __file__


def test_may_is_not_counted_unless_requested(model: torch.nn.Module) -> None:
    def may_sync() -> None:
        model.weight.detach()[torch.ones(3, dtype=torch.bool)]

    with detect_syncs("dry", device_of=model) as certain:
        may_sync()
    with detect_syncs("dry", device_of=model, certainty="may") as possible:
        may_sync()

    assert certain.events == ()
    assert [(event.certainty, "mask on the host" in event.reason) for event in possible.events] == [("may", True)]


def test_warn_warns_at_the_users_line(model: torch.nn.Module, run_program: Callable[..., Any]) -> None:
    text = r"program0.py:2: the host waits for the device: item"
    with (
        pytest.warns(perfkit.PerfkitWarning, match=text) as caught,
        detect_syncs("dry", device_of=model, on_sync="warn"),
    ):
        run_program("total = w.sum()\ntotal.item()", w=model.weight)

    assert caught[0].filename.endswith("program0.py")
    assert caught[0].lineno == 2


def test_raise_raises_at_the_line_and_nothing_stays_installed(
    model: torch.nn.Module, run_program: Callable[..., Any]
) -> None:
    syncs = detect_syncs("dry", device_of=model, on_sync="raise")
    with pytest.raises(perfkit.SyncError, match=r"program0.py:2.*bool\(tensor\).*allow_sync"), syncs:
        run_program("some = w.any()\nif some: pass\nw.sum().item()", w=model.weight)

    assert len(syncs.events) == 1
    assert installed() == []


def test_a_function_is_called_with_each_event_and_may_compute_with_tensors(model: torch.nn.Module) -> None:
    seen: list[SyncEvent] = []

    def on_sync(event: SyncEvent) -> None:
        model.weight.sum().item()
        seen.append(event)

    with detect_syncs("dry", device_of=model, on_sync=on_sync) as syncs:
        for _ in range(2):
            model.weight.sum().item()

    assert [event.count for event in seen] == [1, 1]
    assert [event.count for event in syncs.events] == [2]


def test_nested_detections_both_count_and_the_inner_one_acts(model: torch.nn.Module) -> None:
    seen: list[str] = []
    with detect_syncs("dry", device_of=model, on_sync=lambda event: seen.append("outer")) as outer:
        with detect_syncs("dry", device_of=model, on_sync=lambda event: seen.append("inner")) as inner:
            model.weight.sum().item()
        model.weight.sum().item()

    assert seen == ["inner", "outer"]
    assert sum(event.count for event in outer.events) == 2
    assert sum(event.count for event in inner.events) == 1


def test_a_decorated_function_is_watched_in_each_call(model: torch.nn.Module) -> None:
    @detect_syncs("dry", device_of=model)
    def step(times: int) -> float:
        """Reads a value."""
        return sum(model.weight.sum().item() for _ in range(times))

    step(1)
    first = step.syncs  # type: ignore[attr-defined]
    step(3)

    assert step.__doc__ == "Reads a value."
    assert [first.events[0].count, step.syncs.events[0].count] == [1, 3]  # type: ignore[attr-defined]


def test_a_decorator_may_name_the_parameters_by_their_iterator(model: torch.nn.Module) -> None:
    step = detect_syncs("dry", device_of=model.parameters())(lambda: model.weight.sum().item())
    for _ in range(2):
        step()

    assert len(step.syncs.events) == 1  # type: ignore[attr-defined]


def test_a_tensor_that_is_not_on_the_cpu_cannot_be_followed() -> None:
    with pytest.raises(perfkit.UsageError, match='got one on meta: use mode="cuda"'):
        detect_syncs("dry", device_of=torch.ones(2, device="meta"))


def test_generators_and_coroutines_cannot_be_decorated() -> None:
    def batches() -> Any:
        yield 1

    async def fetch() -> None: ...

    for function in (batches, fetch):
        with pytest.raises(perfkit.UsageError, match="plain functions"):
            detect_syncs("dry")(function)


def test_start_and_stop_work_between_two_steps_with_other_modes_still_open(model: torch.nn.Module) -> None:
    syncs = detect_syncs("dry", simulate=False)
    syncs.start()
    syncs.mark_device(model)
    device = torch.device("cpu")
    device.__enter__()
    model.weight.sum().item()
    syncs.stop()
    model.weight.sum().item()
    device.__exit__(None, None, None)

    assert [event.count for event in syncs.events] == [1]
    assert installed() == []


def test_stopped_in_another_order_than_started_both_count_right(model: torch.nn.Module) -> None:
    first = detect_syncs("dry", device_of=model).start()
    second = detect_syncs("dry", device_of=model).start()
    model.weight.sum().item()
    first.stop()
    model.weight.sum().item()
    second.stop()

    assert (first.events[0].count, sum(event.count for event in second.events)) == (1, 2)


def test_a_stopped_detection_continues_its_counts(model: torch.nn.Module) -> None:
    syncs = detect_syncs("dry", device_of=model)
    for _ in range(2):
        syncs.start()
        model.weight.sum().item()
        syncs.step()
        syncs.stop()

    assert [(event.count, event.per_step) for event in syncs.events] == [(2, 1.0)]


def test_starting_twice_is_refused(model: torch.nn.Module) -> None:
    with detect_syncs("dry", device_of=model) as syncs, pytest.raises(perfkit.UsageError, match="already running"):
        syncs.start()


def test_a_dry_run_cannot_be_stopped_from_another_thread(model: torch.nn.Module) -> None:
    syncs = detect_syncs("dry", device_of=model).start()
    errors: list[BaseException] = []

    def stop() -> None:
        try:
            syncs.stop()
        except perfkit.UsageError as error:
            errors.append(error)

    thread = threading.Thread(target=stop)
    thread.start()
    thread.join()
    syncs.stop()

    assert "in the thread that started it" in str(errors[0])


def test_a_dry_run_leaves_other_threads_alone(model: torch.nn.Module) -> None:
    answers: list[bool] = []
    with detect_syncs("dry") as syncs:
        here = torch.cuda.is_available()
        thread = threading.Thread(target=lambda: answers.append(torch.cuda.is_available()))
        thread.start()
        thread.join()

    assert here
    assert answers == [torch.cuda.is_available()]
    assert not syncs.observed


def test_auto_is_the_dry_run_where_there_is_no_cuda(no_cuda: None) -> None:

    assert detect_syncs().mode == "dry"


def test_an_automatic_dry_run_notes_that_it_sees_only_its_own_thread(model: torch.nn.Module, no_cuda: None) -> None:
    with detect_syncs(device_of=model, threads="all") as syncs:
        model(torch.ones(1, 3))

    assert "sees only its own thread" in repr(syncs)


def test_perfkit_disable_switches_it_off(monkeypatch: pytest.MonkeyPatch, model: torch.nn.Module) -> None:
    monkeypatch.setenv("PERFKIT_DISABLE", "1")
    with detect_syncs("dry", device_of=model, max_syncs=0) as syncs:
        assert installed() == []
        model.weight.sum().item()

    assert "PERFKIT_DISABLE" in repr(syncs)


def test_cuda_without_a_device_suggests_the_dry_run(no_cuda: None) -> None:

    with pytest.raises(perfkit.UsageError, match='mode="dry"'):
        detect_syncs("cuda")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"mode": "gpu"}, "mode=.*must be one of 'auto', 'cuda', 'dry', got 'gpu'"),
        ({"on_sync": "print"}, "on_sync=.*or a function, got 'print'"),
        ({"certainty": "maybe"}, "certainty=.*must be one of"),
        ({"kinds": ["item"]}, "kinds=.*must be one of 'read', 'copy-h2d'"),
        ({"kinds": []}, "at least one kind"),
        ({"ignore": [3]}, "takes patterns"),
        ({"max_syncs": -1}, "max_syncs must be a number of at least 0, got -1"),
        ({"max_blocked_ms": float("nan")}, "max_blocked_ms must be a number"),
        ({"threads": "main"}, "threads=.*must be one of 'current', 'all', got 'main'"),
        ({"mode": "dry", "max_blocked_ms": 5}, "a dry run cannot measure blocked time"),
        ({"mode": "dry", "threads": "all"}, "leave threads= out"),
        ({"simulate": True, "device_of": [torch.ones(1)]}, "give only one"),
        ({"device_of": [3]}, "modules, optimizers, tensors"),
        ({"device_of": "cuda"}, "modules, optimizers, tensors.*got str"),
    ],
)
def test_wrong_arguments_raise_at_once(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(perfkit.UsageError, match=text):
        detect_syncs(**arguments)


def test_cuda_with_the_arguments_of_a_dry_run_is_refused(pretended_cuda: None) -> None:
    with pytest.raises(perfkit.UsageError, match="are for the dry run"):
        detect_syncs("cuda", device_of=[torch.ones(1)])


def test_simulating_inside_a_dry_run_that_follows_a_script_on_the_cpu_is_refused(model: torch.nn.Module) -> None:
    with detect_syncs("dry", device_of=model):
        with pytest.raises(perfkit.UsageError, match="leave simulate= out"):
            detect_syncs("dry", simulate=True).start()
        with detect_syncs("dry") as inner:
            model.weight.sum().item()

    assert len(inner.events) == 1


def test_a_blocked_budget_in_an_automatic_dry_run_causes_a_warning_that_it_was_not_checked(
    model: torch.nn.Module, no_cuda: None
) -> None:
    not_checked = pytest.warns(perfkit.PerfkitWarning, match="max_blocked_ms=5 was not checked")
    with not_checked, detect_syncs(device_of=model, max_blocked_ms=5):
        model.weight.sum().item()


def test_other_warnings_are_not_touched(model: torch.nn.Module) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with detect_syncs("dry", device_of=model):
            warnings.warn("mine", stacklevel=1)

    assert [str(warning.message) for warning in caught] == ["mine"]


def test_without_torch_the_error_contains_the_pip_command() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import perfkit\n"
        "with perfkit.allow_sync('works anyway'): pass\n"
        "try:\n    perfkit.detect_syncs()\n"
        "except perfkit.MissingDependency as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "detect_syncs needs torch: pip install 'perfkit[torch]'\n"


def test_importing_the_package_does_not_load_torch() -> None:
    program = "import sys, perfkit.syncs; print('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"
