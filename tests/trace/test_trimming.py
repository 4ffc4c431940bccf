from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfkit.errors import PerfkitError, TraceError, UsageError
from perfkit.trace import Kind, Trace, read_trace
from perfkit.trace.columns import DEVICE_KINDS, HOST_KINDS
from perfkit.trace.kineto._trim_selection import LAUNCH_FLOWS
from perfkit.trace.kineto.trimming import TrimResult, trim_trace

Events = list[dict[str, Any]]


def launch(at: float, correlation: int, start: float, stream: int = 7, **more: Any) -> Events:
    """A launch with its kernel and the flow between them."""
    flow = {"cat": "ac2g", "name": "ac2g", "id": correlation}
    args = {"correlation": correlation}
    return [
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 1,
            "tid": 1,
            "ts": at,
            "dur": 1,
            "args": args,
        },
        {"ph": "s", **flow, "pid": 1, "tid": 1, "ts": at},
        {
            **{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": stream, "ts": start, "dur": 5},
            "args": {**args, "device": 0, "stream": stream, **more},
        },
        {"ph": "f", **flow, "pid": 0, "tid": stream, "ts": start, "bp": "e"},
    ]


def step(number: int, start: float, end: float) -> dict[str, Any]:
    name = f"ProfilerStep#{number}"
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": end - start}


def op(name: str, start: float, duration: float, tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": start, "dur": duration}


#: Three steps of 100 us; the kernel of step 1 runs in the time of step 2, that of step 0 in the time of step 1.
THREE_STEPS: Events = [
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}},
    step(0, 100, 200),
    step(1, 200, 300),
    step(2, 300, 400),
    op("aten::a", 110, 10),
    op("aten::b", 210, 10),
    op("aten::c", 310, 10),
    op("long backward", 190, 20, tid=2),
    *launch(150, 10, 220),
    *launch(250, 11, 350),
    *launch(350, 12, 360),
    {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": 215, "args": {"Bytes": 8}},
    {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 10**9},
    {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "id": 1, "pid": 1, "tid": 1, "ts": 211},
    {"ph": "f", "cat": "fwdbwd", "name": "fwdbwd", "id": 1, "pid": 1, "tid": 2, "ts": 280, "bp": "e"},
    {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "id": 2, "pid": 1, "tid": 1, "ts": 212},
    {"ph": "f", "cat": "fwdbwd", "name": "fwdbwd", "id": 2, "pid": 1, "tid": 2, "ts": 310, "bp": "e"},
]


def write(path: Path, events: Events, **around: Any) -> Path:
    text = json.dumps(
        {"schemaVersion": 1, "record_shapes": 1, **around, "traceEvents": events, "traceName": "x"}
    ).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def read_json(path: Path) -> Any:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return json.load(file)


def names(path: Path) -> list[str]:
    return [event["name"] for event in read_json(path)["traceEvents"]]


def test_a_step_keeps_what_it_launched_wherever_that_ran(tmp_path: Path) -> None:
    source = write(tmp_path / "t.json", THREE_STEPS)
    out = tmp_path / "out.json"

    done = trim_trace(source, out, steps=(1, 2))

    trimmed = read_json(out)
    assert [event["name"] for event in trimmed["traceEvents"] if event["ph"] == "X"] == [
        *("ProfilerStep#1", "aten::b", "long backward", "cudaLaunchKernel", "gemm"),
    ]
    assert [event["ts"] for event in trimmed["traceEvents"] if event.get("cat") == "kernel"] == [350]
    assert Counter((event["ph"], event["id"]) for event in trimmed["traceEvents"] if event["ph"] in "sf") == {
        ("s", 11): 1,
        ("f", 11): 1,
        ("s", 1): 1,
        ("f", 1): 1,
    }
    assert "thread_name" in names(out)
    assert "Record Window End" not in names(out)
    assert (trimmed["schemaVersion"], trimmed["traceName"]) == (1, "x")
    assert (done.steps, done.events, done.kept) == ((1,), len(THREE_STEPS), len(trimmed["traceEvents"]))


def test_a_time_keeps_what_ran_in_it_too(tmp_path: Path) -> None:
    source = write(tmp_path / "t.json", THREE_STEPS)

    trim_trace(source, tmp_path / "out.json", time_ns=(110_000, 145_000))  # 210 to 245 us on the file's clock

    events = read_json(tmp_path / "out.json")["traceEvents"]
    assert {event["name"] for event in events if event["ph"] == "X"} == {"ProfilerStep#1", "aten::b", "gemm"}
    # Its launch was before, so there is nothing for the flow to begin at.
    assert [event for event in events if event["ph"] in "sf"] == []
    assert "[memory]" in names(tmp_path / "out.json")


@pytest.mark.parametrize("text", ["1710000000000000.127", "1710000000000000", "1.50", "7889238000000.001"])
def test_times_keep_every_digit(tmp_path: Path, text: str) -> None:
    event = f'{{"ph":"X",  "cat": "cpu_op", "name": "a\\/b", "pid": 1, "tid": 1, "ts": {text}, "dur": 0.10}}'
    (tmp_path / "t.json").write_text(f"[{event}, {event.replace(text, '9' + text)}]")

    trim_trace(tmp_path / "t.json", tmp_path / "out.json", time_ns=(0, 1_000))

    assert (tmp_path / "out.json").read_text() == f"[\n  {event}\n  ]"


def test_kinds_are_dropped_with_the_flows_that_lose_an_end(tmp_path: Path) -> None:
    source = write(tmp_path / "t.json", THREE_STEPS)

    done = trim_trace(source, tmp_path / "out.json", drop=["Kernel", "memory", "zebra"])

    events = read_json(tmp_path / "out.json")["traceEvents"]
    assert Counter(event.get("cat") for event in events if event["ph"] != "i") == {
        **{None: 1, "user_annotation": 3, "cpu_op": 4, "cuda_runtime": 3, "fwdbwd": 4},
    }
    assert "[memory]" not in names(tmp_path / "out.json")
    assert done.unused == ("zebra",)


def test_kinds_are_kept_alone_with_the_names_of_threads(tmp_path: Path) -> None:
    source = write(tmp_path / "t.json.gz", THREE_STEPS)

    trim_trace(source, tmp_path / "out.json.gz", steps=(None, 2), keep=["kernel", "cuda_runtime"])

    events = read_json(tmp_path / "out.json.gz")["traceEvents"]
    assert Counter(event.get("cat") for event in events) == {None: 1, "cuda_runtime": 2, "kernel": 2, "ac2g": 4}


def test_names_of_threads_that_repeat_stand_once(tmp_path: Path) -> None:
    source = write(tmp_path / "t.json", [*THREE_STEPS[:1] * 50, *THREE_STEPS])

    trim_trace(source, tmp_path / "out.json", steps=(0, 1))

    assert names(tmp_path / "out.json").count("thread_name") == 1


def test_a_cut_file_is_trimmed_up_to_the_cut_and_this_is_reported(tmp_path: Path) -> None:
    whole = gzip.compress(json.dumps({"traceEvents": THREE_STEPS}, indent=1).encode())
    (tmp_path / "t.json.gz").write_bytes(whole[:-60])

    done = trim_trace(tmp_path / "t.json.gz", tmp_path / "out.json", steps=(0, 2))

    assert "aten::a" in names(tmp_path / "out.json")
    assert any("cut" in sentence for sentence in done.lost)


def test_damaged_events_are_repaired_or_skipped_and_the_result_is_json(tmp_path: Path) -> None:
    texts = [json.dumps(event) for event in (op("aten::a", 1, 2), op("aten::b", 4, 2))]
    bad = texts[0].replace('"aten::a"', '"C:\\lib"').replace('"dur": 2', '"dur": 2, "args": {"x": nan}')
    utf8 = texts[1].replace("aten::b", "caf\N{LATIN SMALL LETTER E WITH ACUTE}").encode("latin-1")
    (tmp_path / "t.json").write_bytes(
        b'{"traceEvents": [' + f'{texts[0]}, {bad}, {{"ph": X}}, '.encode() + utf8 + b"]}"
    )

    done = trim_trace(tmp_path / "t.json", tmp_path / "out.json", drop=["kernel"])

    assert names(tmp_path / "out.json") == ["aten::a", "C:\\lib", "caf\N{REPLACEMENT CHARACTER}"]
    assert any("damaged" in sentence for sentence in done.lost)


PIECES = [b'"', b"}", b"{", b"]", b",", b"\\", b"NaN", b"\xff", b"9" * 30, b'"ph": "f"', b"[[[", b"\n", b""]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 30), st.sampled_from(PIECES)), min_size=1, max_size=4))
def test_whatever_is_damaged_the_result_is_json_or_there_is_none(
    tmp_path: Path, damages: list[tuple[float, int, bytes]]
) -> None:
    text = json.dumps({"schemaVersion": 1, "traceEvents": THREE_STEPS, "traceName": "x"}).encode()
    for where, length, instead in damages:
        at = int(where * len(text))
        text = text[:at] + instead + text[at + length :]
    out = tmp_path / "out.json"
    out.unlink(missing_ok=True)
    (tmp_path / "t.json").write_bytes(text)

    try:
        trim_trace(tmp_path / "t.json", out, steps=(0, 2))
    except PerfkitError:
        assert not out.exists()
    else:
        assert isinstance(read_json(out), dict | list)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"steps": (7, 9)}, "has steps 0 to 2"),
        ({"time_ns": (10**9, None)}, "nothing in the requested time"),
        ({"steps": (0, 1), "time_ns": (0, 1)}, "not by both"),
        ({"drop": ["kernel"], "keep": ["kernel"]}, "not both"),
        ({"keep": ["zebra"], "drop": []}, "none of the requested events"),
    ],
)
def test_what_cannot_work_is_refused_and_leaves_nothing_behind(tmp_path: Path, how: dict[str, Any], words: str) -> None:
    source = write(tmp_path / "t.json", THREE_STEPS[1:])

    with pytest.raises(UsageError, match=words):
        trim_trace(source, tmp_path / "out.json", **how)

    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


def test_the_trace_itself_is_never_overwritten(tmp_path: Path) -> None:
    source = write(tmp_path / "t.json", THREE_STEPS)
    before = source.read_bytes()
    (tmp_path / "link.json").symlink_to(source)

    for out in (source, tmp_path / "link.json"):
        with pytest.raises(UsageError, match="never overwritten"):
            trim_trace(source, out, steps=(0, 1))

    assert source.read_bytes() == before


def test_a_trace_without_steps_and_a_file_that_is_no_trace_say_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no steps"):
        trim_trace(write(tmp_path / "t.json", [op("aten::a", 1, 2)]), tmp_path / "out.json", steps=(0, 1))
    (tmp_path / "x.json").write_text("hello")
    for missing in ("x.json", "none.json"):
        with pytest.raises(TraceError):
            trim_trace(tmp_path / missing, tmp_path / "out.json", steps=(0, 1))


def _columns(trace: Trace, rows: Any) -> list[tuple[Any, ...]]:
    """What the rows are, without codes that depend on the file."""
    return [
        (
            *(trace.names[trace.name[row]], trace.tracks[trace.track[row]]),
            *(int(column[row]) for column in (trace.start_ns, trace.end_ns, trace.kind, trace.correlation)),
            *(int(column[row]) for column in (trace.device, trace.stream, trace.bytes, trace.sequence)),
        )
        for row in rows.tolist()
    ]


def _trim_real(source: Path, out: Path, **how: Any) -> tuple[Trace, Trace, TrimResult]:
    done = trim_trace(source, out, **how)
    return read_trace(source), read_trace(out), done


REAL = [
    "a100-2ranks-nccl.json.gz",
    "a100-8ranks-training.json.gz",
    "v100-2ranks-training.json.gz",
    "mi250-rocm.json.gz",
    "h100-inference-image.json.gz",
]


@pytest.mark.parametrize("name", REAL)
def test_steps_of_a_real_trace_are_the_selection_of_its_columns(shared_traces: Path, tmp_path: Path, name: str) -> None:
    source = shared_traces / name
    steps = read_trace(source).steps
    first = int(steps.number[(steps.number.size - 1) // 2])

    trace, trimmed, done = _trim_real(source, tmp_path / "out.json.gz", steps=(first, first + 2))

    chosen = (steps.number >= first) & (steps.number < first + 2)
    low, high = steps.start_ns[chosen].min(), steps.end_ns[chosen].max()
    inside = (trace.start_ns < high) & ((trace.end_ns > low) | (trace.start_ns >= low))
    of_host = trace.is_kind(*HOST_KINDS, Kind.MEMORY) & inside
    of_device = trace.is_kind(*DEVICE_KINDS) & np.where(trace.launch >= 0, of_host[trace.launch], inside)
    kinds = (*HOST_KINDS, *DEVICE_KINDS, Kind.MEMORY)
    assert of_device.any()
    assert _columns(trimmed, np.flatnonzero(trimmed.is_kind(*kinds))) == _columns(
        trace, np.flatnonzero(of_host | of_device)
    )
    assert done.steps == tuple(sorted(set(steps.number[chosen].tolist())))
    _check_flows(read_json(tmp_path / "out.json.gz")["traceEvents"])


def _check_flows(events: Events) -> None:
    """Each flow has both ends, and each flow from a launch a launch and work that it launched."""
    ends: dict[tuple[str, int], set[str]] = {}
    for event in events:
        if event["ph"] in "sf":
            ends.setdefault((event["cat"], event["id"]), set()).add(event["ph"])
    assert all(found == {"s", "f"} for found in ends.values())
    linked = Counter(
        event["args"].get("correlation")
        for event in events
        if event["ph"] == "X"
        and event["cat"].lower() in ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver")
    )
    flows = [number for cat, number in ends if cat in LAUNCH_FLOWS]
    assert flows
    assert all(linked[number] >= 2 for number in flows)


@pytest.mark.parametrize(
    "name", ["resnet50-workers-4.pt.trace.json.gz", "cpu-only-rank34.json.gz", "a100-alexnet-cuda-sync-events.json.gz"]
)
def test_time_of_a_real_trace_is_the_selection_of_its_columns(shared_traces: Path, tmp_path: Path, name: str) -> None:
    source = shared_traces / name
    whole = read_trace(source)
    rows = np.concatenate((whole.host_rows, whole.device_rows))
    origin, length = int(whole.start_ns[rows].min()), int(whole.end_ns[rows].max() - whole.start_ns[rows].min())
    low, high = length // 3, length // 2

    trace, trimmed, _ = _trim_real(source, tmp_path / "out.json", time_ns=(low, high))

    inside = trace.start_ns < origin + high
    inside &= (trace.end_ns > origin + low) | (trace.start_ns >= origin + low)
    wanted = trace.is_kind(*HOST_KINDS) & inside
    wanted |= trace.is_kind(*DEVICE_KINDS) & (inside | ((trace.launch >= 0) & wanted[trace.launch]))
    assert _columns(trimmed, np.flatnonzero(trimmed.is_kind(*HOST_KINDS, *DEVICE_KINDS))) == _columns(
        trace, np.flatnonzero(wanted)
    )


@pytest.mark.parametrize("name", ["h100-inference-image.json.gz", "mi250-rocm.json.gz"])
def test_a_trace_of_which_nothing_is_cut_reads_the_same(shared_traces: Path, tmp_path: Path, name: str) -> None:
    trace, trimmed, done = _trim_real(shared_traces / name, tmp_path / "out.json.gz", drop=["zebra"])

    assert _columns(trimmed, np.arange(len(trimmed))) == _columns(trace, np.arange(len(trace)))
    assert trimmed.metadata == trace.metadata
    assert done.unused == ("zebra",)
