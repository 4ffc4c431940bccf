"""The timeline of the HTML page: zoomed, moved and read, by mouse and by keys, however long its trace is."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfkit.diagnosis import diagnose
from perfkit.reports.figures import figures_of
from perfkit.reports.html import write_html

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
with_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="shared traces are not next to the checkout")


def test_the_timeline_zooms_moves_and_tells_by_keys_alone(run: Path, opened: Callable[..., Any]) -> None:
    seen = opened(run / "report.html")
    page = seen.page
    status = seen.section("timeline").locator(".tools .status")
    before = status.inner_text()

    def tab_to(attribute: str, value: str) -> None:
        for _ in range(20):
            page.keyboard.press("Tab")
            if page.evaluate("name => document.activeElement.getAttribute(name)", attribute) == value:
                return
        raise AssertionError(f"no Tab reaches {value}")

    link = page.get_by_role("link", name="Timeline of the window").get_attribute("href")
    tab_to("href", link)  # it can be reached without a mouse, however many rows the sections above have
    page.keyboard.press("Enter")
    tab_to("aria-roledescription", "timeline")
    page.keyboard.press("+")
    page.wait_for_function("text => document.querySelector('.tools .status').textContent !== text", arg=before)
    zoomed = status.inner_text()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("text => document.querySelector('.tools .status').textContent !== text", arg=zoomed)
    page.keyboard.press("0")
    page.wait_for_function("text => document.querySelector('.tools .status').textContent === text", arg=before)


def test_the_timeline_is_moved_by_dragging(run: Path, opened: Callable[..., Any]) -> None:
    seen = opened(run / "report.html")
    page = seen.page
    timeline, status = page.locator(".timeline svg"), seen.section("timeline").locator(".tools .status")
    page.get_by_role("button", name="Zoom in").click()
    timeline.scroll_into_view_if_needed()
    page.wait_for_function("() => !document.querySelector('.tools .status').textContent.startsWith('0 to')")
    before, box = status.inner_text(), timeline.bounding_box()
    assert box is not None

    page.mouse.move(box["x"] + 400, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 600, box["y"] + 60, steps=4)
    page.mouse.up()

    page.wait_for_function("text => document.querySelector('.tools .status').textContent !== text", arg=before)


@with_traces
def test_the_timeline_of_a_gpu_trace_tells_kernels_and_the_longest_idle_times(
    tmp_path: Path, opened: Callable[..., Any]
) -> None:
    data = figures_of(diagnose(TRACES / "a100-2ranks-nccl.json.gz"))
    page = opened(write_html(data, tmp_path / "page.html")).page
    timeline, chosen = page.locator(".timeline svg"), page.locator(".chosen")

    page.get_by_role("button", name="Next longest idle time").click()
    assert (chosen.text_content() or "").startswith("idle: ")
    page.get_by_role("button", name="Show the whole window").click()
    timeline.scroll_into_view_if_needed()
    box, lane = timeline.bounding_box(), timeline.get_by_text("stream 7", exact=True).bounding_box()
    assert box is not None
    assert lane is not None
    told = set()
    for part in range(30):  # some of it is idle
        page.mouse.click(box["x"] + box["width"] * (0.25 + part / 50), lane["y"] + lane["height"] - 3)
        told.add((chosen.text_content() or "").split(" · ")[-1])
    assert "device 0, stream 7" in told
    timeline.hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    page.wait_for_function("() => !document.querySelector('.tools .status').textContent.startsWith('0 to 667')")


def test_a_click_on_a_kernel_shows_the_call_the_op_and_the_line_that_launched_it(
    tmp_path: Path, opened: Callable[..., Any]
) -> None:
    events = [
        {"cat": "python_function", "name": "train.py(7): train", "tid": 1, "ts": 0, "dur": 1000, "args": {}},
        {"cat": "cpu_op", "name": "aten::mm", "tid": 1, "ts": 10, "dur": 100, "args": {}},
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, "ts": 20, "dur": 5, "args": {"correlation": 3}},
        {"cat": "kernel", "name": "gemm", "tid": 7, "ts": 50, "dur": 900,
         "args": {"correlation": 3, "device": 0, "stream": 7}},
    ]  # fmt: skip
    file = tmp_path / "t.json"
    file.write_text(json.dumps({"traceEvents": [{"ph": "X", "pid": 1, **event} for event in events]}))
    page = opened(write_html(figures_of(diagnose(file)), tmp_path / "page.html")).page
    timeline = page.locator(".timeline svg")
    timeline.scroll_into_view_if_needed()
    box, lane = timeline.bounding_box(), timeline.get_by_text("device 0: stream 7", exact=True).bounding_box()
    assert box is not None
    assert lane is not None

    page.mouse.click(box["x"] + box["width"] * 0.6, lane["y"] + lane["height"] - 3)

    shown = page.locator(".chosen").text_content() or ""
    assert shown.startswith("gemm · ")
    assert "launched by cudaLaunchKernel in aten::mm at train.py: train" in shown
    page.get_by_role("tab", name="Kernels", exact=True).click()
    assert "train.py: train" in page.locator("table[data-table=kernels]").inner_text()


def write_long_trace(path: Path, launches: int, steps: int = 20) -> None:
    """Steps that launch small kernels: 4 events for each, one in 10,000 slow."""
    dice = random.Random(0)
    host = device = 0.0

    def event(cat: str, name: str, at: float, length: float, where: str = '"pid":1,"tid":1', args: str = "{}") -> str:
        return f'{{"ph":"X","cat":"{cat}","name":"{name}",{where},"ts":{at:.3f},"dur":{length:.3f},"args":{args}}},\n'

    with path.open("w") as file:
        file.write('{"schemaVersion":1,"deviceProperties":[{"id":0,"name":"NVIDIA H100"}],"traceEvents":[\n')
        for step in range(steps):
            begin = host
            for link in range(step * (launches // steps) + 1, (step + 1) * (launches // steps) + 1):
                length = dice.uniform(4, 12) + (2_000 if dice.random() < 1e-4 else 0)
                device = max(device, host + 4)
                kernel = dice.uniform(1, 9)
                of_device = f'{{"correlation":{link},"device":0,"stream":7}}'
                file.write(event("cpu_op", f"aten::op_{link % 60}", host, length))
                file.write(event("cpu_op", "aten::empty", host + 0.5, 1))
                launch = f'{{"correlation":{link}}}'
                file.write(event("cuda_runtime", "cudaLaunchKernel", host + 2, 1.5, args=launch))
                file.write(event("kernel", f"kernel_{link % 80}<float>", device, kernel, '"pid":0,"tid":7', of_device))
                device += kernel
                host += length + 0.3
            file.write(event("user_annotation", f"ProfilerStep#{step}", begin, host - begin))
        file.write('{"ph":"M","name":"end","pid":1,"tid":1}]}')


def click_answers_within_a_second(page: Any) -> None:
    """The longest of some clicks and zooms, by the page's own clock, from the input to the next picture."""
    page.evaluate(
        """window.answers = [];
        const answered = (event) => window.answers.push(performance.now() - event.timeStamp);
        for (const kind of ['pointerup', 'keydown', 'click']) {
          addEventListener(kind, (event) => requestAnimationFrame(
            () => requestAnimationFrame(() => answered(event))), true);
        }"""
    )
    timeline = page.locator(".timeline svg")
    timeline.scroll_into_view_if_needed()
    box = timeline.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    for key in ("+", "+", "ArrowRight", "-", "0", "n", "n"):
        page.keyboard.press(key)
    page.get_by_role("tab").last.click()
    page.wait_for_function("() => window.answers.length >= 9")
    assert page.evaluate("Math.max(...window.answers)") < 1_000


@pytest.fixture(scope="module")
def long_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a trace of 2 million events."""
    folder = tmp_path_factory.mktemp("long")
    write_long_trace(folder / "trace.json", 500_000)
    data = figures_of(diagnose(folder / "trace.json"))
    (folder / "trace.json").unlink()
    assert data.timeline is not None
    assert data.timeline.events >= 2_000_000
    return write_html(data, folder / "page.html")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_million_events_make_five_megabytes_that_answer_within_a_second(
    long_page: Path, opened: Callable[..., Any]
) -> None:
    assert long_page.stat().st_size <= 5_000_000

    click_answers_within_a_second(opened(long_page).page)


def test_a_window_of_a_hundred_thousand_events_holds_each_of_them(tmp_path: Path) -> None:
    write_long_trace(tmp_path / "trace.json", 25_000)
    timeline = figures_of(diagnose(tmp_path / "trace.json")).timeline

    assert timeline is not None
    assert timeline.shown == timeline.events == 100_020
    assert all(lane.merged is None for lane in timeline.lanes)


@pytest.fixture(scope="module")
def merged_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a trace with more events than stand by themselves."""
    folder = tmp_path_factory.mktemp("merged")
    write_long_trace(folder / "trace.json", 100_000)
    data = figures_of(diagnose(folder / "trace.json"))
    assert data.timeline is not None
    assert data.timeline.shown < data.timeline.events
    return write_html(data, folder / "page.html")


def test_a_trace_that_is_merged_answers_within_a_second(merged_page: Path, opened: Callable[..., Any]) -> None:
    click_answers_within_a_second(opened(merged_page).page)


def test_clicks_on_events_drawn_together_go_nearer_until_one_stands_alone(
    merged_page: Path, opened: Callable[..., Any]
) -> None:
    seen = opened(merged_page)
    timeline, chosen = seen.page.locator(".timeline svg"), seen.page.locator(".chosen")
    timeline.scroll_into_view_if_needed()
    box, lane = timeline.bounding_box(), timeline.get_by_text("stream 7", exact=True).bounding_box()

    told = []
    for _ in range(12):
        seen.page.mouse.click(box["x"] + box["width"] * 0.6, lane["y"] + lane["height"] - 3)
        told.append(chosen.inner_text())
        if "drawn together" not in told[-1] and "short event" not in told[-1]:
            break

    assert "events drawn together, the longest: · kernel_" in told[0]
    assert told[-1].startswith("kernel_")
    assert len(told) > 2
    assert not seen.section("timeline").locator(".tools .status").inner_text().startswith("0 to")


def test_for_events_that_no_page_can_hold_the_command_that_shows_each_is_named(
    merged_page: Path, opened: Callable[..., Any]
) -> None:
    seen = opened(merged_page)
    chosen = seen.page.locator(".chosen")
    seen.page.locator(".timeline svg").focus()
    for _ in range(3):
        seen.page.keyboard.press("ArrowDown")
    for _ in range(40):
        seen.page.keyboard.press(".")
        if "short events" in chosen.inner_text():
            break

    assert "the longest: kernel_" in chosen.inner_text()
    assert "to see each: perfkit trim trace.json --steps 0" in chosen.inner_text()
    seen.page.keyboard.press("Enter")  # goes nearer
    seen.page.wait_for_function("() => document.querySelector('.tools .status').textContent.includes('µs to')")


def test_rows_and_events_are_gone_through_by_keys(run: Path, opened: Callable[..., Any]) -> None:
    seen = opened(run / "report.html")
    chosen = seen.page.locator(".chosen")
    seen.page.locator(".timeline svg").focus()

    def pressed(key: str) -> str:
        seen.page.keyboard.press(key)
        text: str = chosen.inner_text()
        return text

    first = pressed("ArrowDown")
    assert first.startswith("step ")
    assert pressed(".").startswith("step ")
    assert chosen.inner_text() != first
    assert pressed(",") == first
    assert "level 1" in pressed("ArrowDown")
    assert pressed("ArrowUp").startswith("step ")
