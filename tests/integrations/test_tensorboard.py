"""trace_handler in torch's own profiler loop and in perfkit.profile, read back with TensorBoard's own reader."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader, TensorDataset

import perfkit
from perfkit._location import Location
from perfkit.diagnosis import Diagnosis
from perfkit.integrations.tensorboard import summary, trace_handler
from perfkit.integrations.tensorboard.writers import to_markdown

pytestmark = [
    # torch says once per process that a window's events are cleared at its end, which is what is wanted here.
    pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning"),
    # tensorboard's own use of what numpy and protobuf have deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard.*"),
    # the HTML cleaner inside tensorboard, at its import.
    pytest.mark.filterwarnings("ignore:html5lib's sanitizer is deprecated:DeprecationWarning"),
]

SCHEDULE = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)


def train(profiler: Any, steps: int = 8, handler: Any = None) -> None:
    """Train, and wait until ``handler`` has written what it writes beside training."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profiler:
        for (x,) in DataLoader(TensorDataset(torch.ones(steps, 4))):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            profiler.step()
    if handler is not None:
        handler.wait()


def torch_profiler(handler: Any, schedule: Any = SCHEDULE) -> Any:
    cpu = [torch.profiler.ProfilerActivity.CPU]
    return torch.profiler.profile(activities=cpu, schedule=schedule, on_trace_ready=handler)


def train_with(handler: Any, steps: int = 8) -> None:
    """Torch's own loop: two windows of two steps in eight."""
    train(torch_profiler(handler), steps, handler)


def events(logdir: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(logdir))
    accumulator.Reload()
    return accumulator


def traces(logdir: Path) -> list[Path]:
    return sorted(logdir.glob("*.pt.trace.json.gz"))


def shown(markdown: str) -> str:
    """The HTML that TensorBoard makes of a text."""
    from tensorboard.plugin_util import markdown_to_safe_html  # warns at import, which only a test can filter

    return str(markdown_to_safe_html(markdown))


def test_each_window_of_torchs_own_loop_is_one_trace_that_perfkit_reads(tmp_path: Path) -> None:
    train_with(trace_handler(tmp_path / "tb"))

    found = traces(tmp_path / "tb")
    assert len(found) == 2
    for path in found:
        assert re.fullmatch(r"rank0_.+_\d+\.\d{19}\.pt\.trace\.json\.gz", path.name)
        assert perfkit.diagnose(path).step.steps == 2
        assert json.loads(gzip.decompress(path.read_bytes()))["distributedInfo"]["rank"] == 0
    assert len(list((tmp_path / "tb").iterdir())) == 3  # and one event file, nothing half-written


def test_the_summary_stands_at_the_last_step_of_its_window(tmp_path: Path) -> None:
    train_with(trace_handler(tmp_path))

    read = events(tmp_path)
    assert [event.step for event in read.Scalars("perfkit/step_ms")] == [3, 7]
    assert [event.step for event in read.Tensors("perfkit/verdict/text_summary")] == [3, 7]


def test_scalars_are_the_step_and_its_phases_and_sum_up(tmp_path: Path) -> None:
    train_with(trace_handler(tmp_path))

    read = events(tmp_path)
    last = {name: read.Scalars(name)[-1].value for name in read.Tags()["scalars"] if name.endswith("_ms")}
    step = last.pop("perfkit/step_ms")
    assert {"perfkit/data_ms", "perfkit/forward_ms", "perfkit/backward_ms", "perfkit/optimizer_ms"} <= set(last)
    assert sum(last.values()) == pytest.approx(step, rel=0.01)


def test_the_text_is_the_verdict_of_the_trace(tmp_path: Path) -> None:
    train_with(trace_handler(tmp_path), steps=4)

    text = events(tmp_path).Tensors("perfkit/verdict/text_summary")[0].tensor_proto.string_val[0].decode()
    diagnosis = perfkit.diagnose(traces(tmp_path)[0])
    assert text == to_markdown(diagnosis)
    assert diagnosis.verdict.split(" (")[0] in shown(text)


def test_it_is_a_handler_of_perfkits_windows_too(tmp_path: Path) -> None:
    schedule = perfkit.schedule(wait=2, warmup=1, active=2, repeat=1)
    handler = trace_handler(tmp_path / "tb", worker_name="trainer")

    train(perfkit.profile(tmp_path / "run", schedule=schedule, handlers=[handler], quiet=True), handler=handler)

    assert [path.name.split(".")[0] for path in traces(tmp_path / "tb")] == ["trainer"]
    assert [event.step for event in events(tmp_path / "tb").Scalars("perfkit/step_ms")] == [4]
    assert (tmp_path / "run" / "rank-0" / "window-0.pt.trace.json.gz").is_file()


def test_text_from_a_trace_cannot_be_markup() -> None:
    hostile = "<img src=x onerror=alert(1)> | [click](http://evil) **x** `y`\n\n# title"
    finding = perfkit.Finding(
        rule="input-bound", severity="warning", message=hostile, advice="a", spent=Location(file="|", line=1)
    )

    html = shown(to_markdown(Diagnosis(source="s", verdict=hostile, findings=(finding,))))

    assert not re.search(r"<(img|a|h1|code)\b", html)
    assert html.count("<tr>") == 2  # the head and one row
    assert html.count("<td") == 5  # no cell split by a bar
    assert "[click](http://evil) **x** `y` # title" in html


class Waiting:
    """A SummaryWriter that writes nothing until it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.texts: list[int] = []

    def add_text(self, tag: str, text: str, step: int) -> None:
        assert self.may.wait(120)
        self.texts.append(step)

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        assert type(value) is float

    def flush(self) -> None:
        pass


def test_training_goes_on_while_a_window_is_diagnosed(tmp_path: Path) -> None:
    writer = Waiting()
    handler = trace_handler(tmp_path, writer=writer)

    train(torch_profiler(handler))  # comes to its end, although no window's summary could be written
    assert writer.texts == []
    writer.may.set()
    handler.wait()

    assert writer.texts == [3, 7]
    assert len(traces(tmp_path)) == 2


def test_windows_that_come_too_fast_keep_their_traces_and_the_last_its_summary(tmp_path: Path) -> None:
    writer = Waiting()
    handler = trace_handler(tmp_path, writer=writer)
    every_other = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=8)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", perfkit.PerfkitWarning)
        train(torch_profiler(handler, every_other), steps=16)
        writer.may.set()
        handler.wait()

    assert len(traces(tmp_path)) == 8
    assert 1 < len(writer.texts) < 8
    assert writer.texts[-1] == 15
    assert ["faster than they can be diagnosed" in str(one.message) for one in told] == [True]


def test_a_lightning_logger_may_take_the_summary(tmp_path: Path) -> None:
    class Logger:
        def __init__(self) -> None:
            self.metrics: dict[int, dict[str, float]] = {}

        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            self.metrics[step] = metrics

    logger = Logger()
    train_with(trace_handler(tmp_path, writer=logger))

    assert list(logger.metrics) == [3, 7]
    assert logger.metrics[3]["perfkit/step_ms"] > 0


# -- what fails


BLOCKED = """
import sys, warnings
sys.modules["tensorboard"] = None
import torch
from perfkit.integrations.tensorboard import trace_handler
warnings.simplefilter("ignore"); warnings.simplefilter("always", __import__("perfkit").PerfkitWarning)
schedule = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=2)
with torch.profiler.profile(schedule=schedule, on_trace_ready=trace_handler("tb")) as prof:
    for _ in range(5):
        torch.ones(2) + 1
        prof.step()
"""


def test_without_tensorboard_the_traces_are_written_and_the_pip_line_is_told_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )

    assert [len(traces(tmp_path / "tb")), done.stderr.count("pip install 'perfkit[tensorboard]'")] == [2, 1]


def test_where_no_thread_can_start_any_more_another_process_writes_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(logdir: Path) -> Any:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(summary, "own_writer", refuse)
    train_with(trace_handler(tmp_path))

    found = events(tmp_path)
    assert found.Tags()["tensors"] == ["perfkit/verdict/text_summary"]
    assert "perfkit/step_ms" in found.Tags()["scalars"]


def test_a_folder_that_cannot_be_written_ends_no_training_and_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", perfkit.PerfkitWarning)
        train_with(trace_handler(tmp_path / "file" / "tb"))

    assert [w.category for w in told if "could not be written" in str(w.message)] == [perfkit.PerfkitWarning]


def test_what_cannot_work_is_told_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    for logdir, name in ((tmp_path / "file", None), ("s3://bucket/tb", None), (tmp_path, "a/b"), (tmp_path, "")):
        with pytest.raises(perfkit.UsageError):
            trace_handler(logdir, name)
    with pytest.raises(perfkit.UsageError, match="add_scalar"):
        trace_handler(tmp_path, writer=object())


def test_a_handler_that_has_written_can_be_pickled(tmp_path: Path) -> None:
    handler = trace_handler(tmp_path)
    train_with(handler, steps=4)

    train_with(pickle.loads(pickle.dumps(handler)), steps=4)

    assert len(traces(tmp_path)) == 2


def test_importing_the_package_loads_neither_torch_nor_tensorboard() -> None:
    script = (
        "import sys, perfkit.integrations.tensorboard\n"
        "print([name for name in ('torch', 'tensorboard', 'numpy') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_tensorboards_entry_point_loads_nothing_that_could_fail() -> None:
    script = (
        "import sys, perfkit.integrations.tensorboard.plugin\n"
        "print(sorted(name for name in sys.modules if name.startswith('perfkit') or name in ('torch', 'msgspec')))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    package = "perfkit.integrations.tensorboard"
    assert done.stdout.strip() == str(
        ["perfkit", "perfkit._version", "perfkit.integrations", package, f"{package}.plugin"]
    )
