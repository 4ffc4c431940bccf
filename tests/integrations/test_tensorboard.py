"""trace_handler in torch's own profiler loop and in perfkit.profile, read back with TensorBoard's own reader."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader, TensorDataset

import perfkit
from perfkit.diagnosis import Diagnosis
from perfkit.integrations.tensorboard import trace_handler
from perfkit.integrations.tensorboard.handler import to_markdown

pytestmark = [
    # torch says once per process that a window's events are cleared at its end, which is what is wanted here.
    pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning"),
    # tensorboard's own use of what numpy and protobuf have deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard.*"),
    # the HTML cleaner inside tensorboard, at its import.
    pytest.mark.filterwarnings("ignore:html5lib's sanitizer is deprecated:DeprecationWarning"),
]

SCHEDULE = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)


def train(profiler: Any, steps: int = 8) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profiler:
        for (x,) in DataLoader(TensorDataset(torch.ones(steps, 4))):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            profiler.step()


def torch_profiler(handler: Any) -> Any:
    return torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], schedule=SCHEDULE, on_trace_ready=handler
    )


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
    train(torch_profiler(trace_handler(tmp_path / "tb")))

    found = traces(tmp_path / "tb")
    assert len(found) == 2
    for path in found:
        assert re.fullmatch(r"rank0_.+_\d+\.\d{19}\.pt\.trace\.json\.gz", path.name)
        assert perfkit.diagnose(path).step.steps == 2
        assert json.loads(gzip.decompress(path.read_bytes()))["distributedInfo"]["rank"] == 0
    assert len(list((tmp_path / "tb").iterdir())) == 3  # and one event file, nothing half-written


def test_the_summary_stands_at_the_last_step_of_its_window(tmp_path: Path) -> None:
    train(torch_profiler(trace_handler(tmp_path)))

    read = events(tmp_path)
    assert [event.step for event in read.Scalars("perfkit/step_ms")] == [3, 7]
    assert [event.step for event in read.Tensors("perfkit/verdict/text_summary")] == [3, 7]


def test_scalars_are_the_step_and_its_phases_and_sum_up(tmp_path: Path) -> None:
    train(torch_profiler(trace_handler(tmp_path)))

    read = events(tmp_path)
    last = {name: read.Scalars(name)[-1].value for name in read.Tags()["scalars"]}
    step = last.pop("perfkit/step_ms")
    assert {"perfkit/data_ms", "perfkit/forward_ms", "perfkit/backward_ms", "perfkit/optimizer_ms"} <= set(last)
    assert sum(last.values()) == pytest.approx(step, rel=0.01)


def test_the_text_is_the_verdict_of_the_trace(tmp_path: Path) -> None:
    train(torch_profiler(trace_handler(tmp_path)), steps=4)

    text = events(tmp_path).Tensors("perfkit/verdict/text_summary")[0].tensor_proto.string_val[0].decode()
    diagnosis = perfkit.diagnose(traces(tmp_path)[0])
    assert text == to_markdown(diagnosis)
    assert diagnosis.verdict.split(" (")[0] in shown(text)


def test_it_is_a_handler_of_perfkits_windows_too(tmp_path: Path) -> None:
    schedule = perfkit.schedule(wait=2, warmup=1, active=2, repeat=1)
    handler = trace_handler(tmp_path / "tb", worker_name="trainer")

    train(perfkit.profile(tmp_path / "run", schedule=schedule, handlers=[handler], quiet=True))

    assert [path.name.split(".")[0] for path in traces(tmp_path / "tb")] == ["trainer"]
    assert [event.step for event in events(tmp_path / "tb").Scalars("perfkit/step_ms")] == [4]
    assert (tmp_path / "run" / "rank-0" / "window-0.pt.trace.json.gz").is_file()


def test_text_from_a_trace_cannot_be_markup() -> None:
    hostile = "<img src=x onerror=alert(1)> | [click](http://evil) **x** `y`\n\n# title"
    finding = perfkit.Finding(
        rule="input-bound", severity="warning", message=hostile, advice="a", confidence="high", file="|", line=1
    )

    html = shown(to_markdown(Diagnosis(source="s", verdict=hostile, findings=(finding,))))

    assert not re.search(r"<(img|a|h1|code)\b", html)
    assert html.count("<tr>") == 2  # the head and one row
    assert html.count("<td") == 5  # no cell split by a bar
    assert "[click](http://evil) **x** `y` # title" in html


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


def test_a_folder_that_cannot_be_written_ends_no_training_and_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", perfkit.PerfkitWarning)
        train(torch_profiler(trace_handler(tmp_path / "file" / "tb")))

    assert [w.category for w in told if "could not be written" in str(w.message)] == [perfkit.PerfkitWarning]


def test_what_cannot_work_is_told_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    for logdir, name in ((tmp_path / "file", None), ("s3://bucket/tb", None), (tmp_path, "a/b"), (tmp_path, "")):
        with pytest.raises(perfkit.UsageError):
            trace_handler(logdir, name)


def test_a_handler_that_has_written_can_be_pickled(tmp_path: Path) -> None:
    handler = trace_handler(tmp_path)
    train(torch_profiler(handler), steps=4)

    train(torch_profiler(pickle.loads(pickle.dumps(handler))), steps=4)

    assert len(traces(tmp_path)) == 2


def test_importing_the_package_loads_neither_torch_nor_tensorboard() -> None:
    script = (
        "import sys, perfkit.integrations.tensorboard\n"
        "print([name for name in ('torch', 'tensorboard', 'numpy') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
