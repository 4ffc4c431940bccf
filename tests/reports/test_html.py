"""The HTML page in a real browser: what it shows, what it answers, and that nothing it holds can act."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from playwright.sync_api import Browser, Locator, Page, sync_playwright
from torch.utils.data import DataLoader, Dataset

import perfkit
from perfkit.commands import main
from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.findings import Evidence, Finding
from perfkit.reports.figures import FigureData, figures_of, read_figures
from perfkit.reports.figures.cleaning import clean
from perfkit.reports.html import render_html, write_html

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

in_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
with_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="shared traces are not beside the checkout")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The system's browser, one for all tests of this file."""
    with sync_playwright() as playwright:
        # As root there is no sandbox, and what the tests open is their own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Seen(NamedTuple):
    """A page and what the browser told of it."""

    page: Page
    requests: list[str]
    complaints: list[str]


@pytest.fixture
def opened(chromium: Browser) -> Iterator[Callable[..., Seen]]:
    """Open a file; afterwards nothing but this file was asked for, and the browser complained of nothing."""
    seen: list[tuple[Path, Seen]] = []

    def open_file(file: Path, **options: Any) -> Seen:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        page = context.new_page()
        one = Seen(page, [], [])
        seen.append((file, one))
        page.on("request", lambda request: one.requests.append(request.url))
        page.on("console", lambda message: one.complaints.append(message.text))
        page.on("pageerror", lambda error: one.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (one.complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.add_init_script(
            "window.refused = []; document.addEventListener('securitypolicyviolation',"
            " event => window.refused.push(event.violatedDirective + ' ' + event.blockedURI))"
        )
        page.goto(file.as_uri())
        if options.get("java_script_enabled", True):
            page.wait_for_function("document.documentElement.dataset.drawn === 'yes'")
        return one

    yield open_file
    for file, one in seen:
        assert one.requests == [file.as_uri()]
        assert one.complaints == []
        assert one.page.evaluate("window.refused || []") == []
        one.page.context.close()


def section(page: Page, id: str) -> Locator:
    return page.locator(f"section[data-section={id}]")


# -- a small recorded run


class Numbers(Dataset[torch.Tensor]):
    """Takes its time for each item."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        end = time.perf_counter() + 0.003
        while time.perf_counter() < end:
            pass
        return torch.randn(16)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small real training, recorded with its page."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = perfkit.schedule(wait=4, warmup=1, active=3, repeat=1)
    with perfkit.profile(folder, schedule=schedule, quiet=True, report=True, profile_memory=True) as prof:
        for batch in prof.steps(DataLoader(Numbers(), batch_size=2)):
            optimizer.zero_grad()
            model(batch).pow(2).mean().backward()
            optimizer.step()
    return folder


@in_browser
def test_the_page_of_a_run_shows_its_verdict_steps_findings_timeline_and_lines(
    run: Path, opened: Callable[..., Seen]
) -> None:
    page = opened(run / "report.html").page
    answer = Diagnosis.from_json((run / "diagnosis.json").read_bytes())

    assert page.locator(".verdict").text_content() == answer.verdict
    shown = page.locator("section[data-section]").evaluate_all("all => all.map(one => one.dataset.section)")
    assert {"verdict", "where", "findings", "steps", "timeline", "tables", "memory", "flame", "ranks"} <= set(shown)
    rules = page.locator(".finding .rule").all_text_contents()
    assert rules == [finding.rule for finding in answer.findings if finding.caused_by is None]
    assert "input-bound" in rules
    assert section(page, "steps").locator("path.k-data").count() == 1
    assert section(page, "steps").locator("rect.state").count() >= 3
    assert "data" in section(page, "where").locator(".key").first.inner_text()


@in_browser
def test_a_click_on_a_findings_place_folds_its_source_with_the_line_marked(
    run: Path, opened: Callable[..., Seen]
) -> None:
    page = opened(run / "report.html").page
    finding = page.locator(".finding", has=page.get_by_text("input-bound", exact=True)).first
    place, excerpt = finding.locator("button.place"), finding.locator(".excerpt")

    marked = excerpt.locator(".marked .text").text_content()
    assert marked is not None
    line = int(excerpt.locator(".marked .lineno").inner_text())
    assert Path(__file__).read_text().splitlines()[line - 1] == marked
    assert excerpt.is_visible()
    place.click()
    assert not excerpt.is_visible()
    assert place.get_attribute("aria-expanded") == "false"


@in_browser
def test_a_click_on_a_column_sorts_a_table_and_another_turns_it(run: Path, opened: Callable[..., Seen]) -> None:
    page = opened(run / "report.html").page
    page.get_by_role("tab", name="Ops").click()
    table = page.locator("table[data-table=ops]")

    def counts() -> list[int]:
        return [int(text.replace(",", "")) for text in table.locator("tbody tr td:nth-child(2)").all_text_contents()]

    table.get_by_role("button", name="count").click()
    assert counts() == sorted(counts(), reverse=True)
    assert table.locator("th[aria-sort=descending]").inner_text().startswith("count")
    table.get_by_role("button", name="count").click()
    assert counts() == sorted(counts())


@in_browser
def test_the_timeline_zooms_moves_and_tells_by_keys_alone(run: Path, opened: Callable[..., Seen]) -> None:
    page = opened(run / "report.html").page
    status = section(page, "timeline").locator(".tools .status")
    before = status.inner_text()

    for _ in range(60):  # it can be reached without a mouse
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('aria-roledescription')") == "timeline":
            break
    page.keyboard.press("+")
    page.wait_for_function("text => document.querySelector('.tools .status').textContent !== text", arg=before)
    zoomed = status.inner_text()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("text => document.querySelector('.tools .status').textContent !== text", arg=zoomed)
    page.keyboard.press("0")
    page.wait_for_function("text => document.querySelector('.tools .status').textContent === text", arg=before)


@in_browser
def test_the_flame_graph_goes_into_a_path_and_back(run: Path, opened: Callable[..., Seen]) -> None:
    page = opened(run / "report.html").page
    flame = section(page, "flame")
    box = flame.locator("g[role=button]").nth(1)
    box.scroll_into_view_if_needed()

    box.focus()
    page.keyboard.press("Enter")
    assert "of host time" in flame.locator(".status").inner_text()
    flame.get_by_role("button", name="Show all").click()
    assert flame.locator(".status").inner_text() == ""


@in_browser
def test_colours_follow_the_system_and_the_button(run: Path, opened: Callable[..., Seen]) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = opened(run / "report.html", color_scheme="light").page
    dark = opened(run / "report.html", color_scheme="dark").page

    assert light.evaluate(background) != dark.evaluate(background)
    light.get_by_role("button", name="Dark colours").click()
    assert light.evaluate(background) == dark.evaluate(background)


@in_browser
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_is_never_wider_than_the_screen(run: Path, opened: Callable[..., Seen], width: int) -> None:
    page = opened(run / "report.html", viewport={"width": width, "height": 800}).page

    assert page.evaluate("document.documentElement.scrollWidth") <= width


@in_browser
def test_every_control_has_a_name_and_every_drawing_says_what_it_is(run: Path, opened: Callable[..., Seen]) -> None:
    page = opened(run / "report.html").page

    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, [role=button], [role=tab], [tabindex=\"0\"]')]"
        ".filter(one => !(one.textContent.trim() || one.getAttribute('aria-label'))).map(one => one.outerHTML)"
    )
    silent = page.evaluate(
        "[...document.querySelectorAll('svg')].filter(one => one.getAttribute('aria-hidden') !== 'true'"
        " && !(one.getAttribute('role') && one.getAttribute('aria-label'))).map(one => one.outerHTML.slice(0, 100))"
    )
    assert (unnamed, silent) == ([], [])
    heads = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(one => Number(one.tagName[1]))")
    assert heads[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(heads))


@in_browser
def test_without_its_script_the_page_still_tells_the_verdict(run: Path, opened: Callable[..., Seen]) -> None:
    page = opened(run / "report.html", java_script_enabled=False).page

    assert Diagnosis.from_json((run / "diagnosis.json").read_bytes()).verdict in page.inner_text("main")


@in_browser
def test_the_timeline_is_moved_by_dragging(run: Path, opened: Callable[..., Seen]) -> None:
    page = opened(run / "report.html").page
    timeline, status = page.locator(".timeline svg"), section(page, "timeline").locator(".tools .status")
    page.get_by_role("button", name="Zoom in").click()
    timeline.scroll_into_view_if_needed()
    page.wait_for_function("!document.querySelector('.tools .status').textContent.startsWith('0 ns')")
    before, box = status.inner_text(), timeline.bounding_box()
    assert box is not None

    page.mouse.move(box["x"] + 400, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 600, box["y"] + 60, steps=4)
    page.mouse.up()

    page.wait_for_function("text => document.querySelector('.tools .status').textContent !== text", arg=before)


@in_browser
@pytest.mark.slow
def test_the_page_of_the_demo_shows_its_marked_mistakes(tmp_path: Path, opened: Callable[..., Seen]) -> None:
    script = Path(perfkit.__file__).parent / "demo" / "train.py"
    shutil.copy(script, tmp_path / "train.py")
    command = [sys.executable, "-m", "perfkit", "run", "--out", "run", "train.py", "--steps", "40"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert main(["diagnose", str(tmp_path / "run"), "--html"]) == 0

    page = opened(tmp_path / "run" / "report.html").page

    shown = page.locator(".excerpt").all_text_contents()
    assert any("# mistake: input-bound" in text for text in shown)
    assert any("# mistake: many-small-ops" in text for text in shown)
    assert section(page, "flame").get_by_text("train.py").count() > 0


# -- traces of GPUs, and long ones


@in_browser
@with_traces
def test_the_timeline_of_a_gpu_trace_tells_kernels_and_the_longest_idle_times(
    tmp_path: Path, opened: Callable[..., Seen]
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
    page.wait_for_function("!document.querySelector('.tools .status').textContent.startsWith('0 ns to 667')")


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


def click_answers_within_a_second(page: Page) -> None:
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
    page.wait_for_function("window.answers.length >= 9")
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


@in_browser
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_million_events_make_five_megabytes_that_answer_within_a_second(
    long_page: Path, opened: Callable[..., Seen]
) -> None:
    assert long_page.stat().st_size <= 5_000_000

    click_answers_within_a_second(opened(long_page).page)


@in_browser
def test_a_trace_that_is_merged_answers_within_a_second(tmp_path: Path, opened: Callable[..., Seen]) -> None:
    write_long_trace(tmp_path / "trace.json", 25_000)
    data = figures_of(diagnose(tmp_path / "trace.json"))
    assert data.timeline is not None
    assert data.timeline.shown < data.timeline.events

    click_answers_within_a_second(opened(write_html(data, tmp_path / "page.html")).page)


# -- names that want to act

HOSTILE = (
    "<script>window.hacked=1</script>",
    "</script><script>window.hacked=1</script>",
    "</ScRiPt ><script>window.hacked=1</script>",
    "<!--<script>",
    "--><script>window.hacked=1</script>",
    "]]><script>window.hacked=1</script>",
    '"><img src=x onerror=window.hacked=1>',
    "'><img src=x onerror=window.hacked=1>",
    "<img src=http://example.com/x.png>",
    "<svg onload=window.hacked=1>",
    "<svg><script>window.hacked=1</script></svg>",
    "<iframe src=javascript:window.hacked=1></iframe>",
    "<a href=javascript:window.hacked=1>x</a>",
    "<style>*{display:none}</style>",
    "<link rel=stylesheet href=http://example.com/x.css>",
    "<base href=http://example.com/>",
    "<meta http-equiv=refresh content='0;url=http://example.com/'>",
    "<form action=http://example.com><input autofocus onfocus=window.hacked=1>",
    "<details open ontoggle=window.hacked=1>",
    "<object data=http://example.com/x>",
    "<template><img src=x onerror=window.hacked=1></template>",
    "<math><mtext></form><form><mglyph><style></math><img src=x onerror=window.hacked=1>",
    "javascript:window.hacked=1",
    "JaVaScRiPt:window.hacked=1",
    "data:text/html,<script>window.hacked=1</script>",
    "vbscript:msgbox(1)",
    "../../../../etc/passwd",
    "/etc/passwd",
    "file:///etc/passwd",
    "..\\..\\windows\\system32",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "train.py\0.png",
    "{{7*7}}",
    "{% include '/etc/passwd' %}",
    "${window.hacked=1}",
    "`${window.hacked=1}`",
    "#{7*7}",
    "%s%s%s%n",
    "&lt;script&gt;window.hacked=1&lt;/script&gt;",
    "&#60;script&#62;",
    "\\u003cscript\\u003ewindow.hacked=1\\u003c/script\\u003e",
    "\\x3cscript\\x3e",
    "';window.hacked=1;//",
    '";window.hacked=1;//',
    "\\';window.hacked=1;//",
    "*/window.hacked=1/*",
    "x onmouseover=window.hacked=1 y=",
    "expression(window.hacked=1)",
    "url(http://example.com/x)",
    "@import 'http://example.com/x.css';",
    "\u202etxt.exe",
    "\u2066abc\u2069",
    "\u200b\u200d\ufeff",
    "\u2028\u2029",
    "\x1b[31mred\x1b]8;;http://example.com\x07",
    "\x00\x01\x02",
    "\x7f\x85\x9f",
    "\r\n\r\nHTTP/1.1 200 OK",
    "e\u0301\u0301\u0301" * 40,
    "\U0001f4a3" * 50,
    "＜script＞window.hacked=1＜/script＞",
    "\u00ad<scr\u00adipt>",
    "a" * 5_000,
    "<" * 2_000,
    "__proto__",
    "constructor",
    "toString",
    "hasOwnProperty",
    "prototype",
    "__defineGetter__",
    "perfkit-data",
    "perfkit-root",
    "k-data k-idle",
    "-1",
    "NaN",
    "null",
    "undefined",
    " ",
    "\t",
    "<b>bold</b>",
    "<plaintext>",
    "<textarea>",
    "<title></title><script>window.hacked=1</script>",
    "<noscript><p title='</noscript><img src=x onerror=window.hacked=1>'>",
    "<select><option>",
    "<table><tr><td>",
    "<video><source onerror=window.hacked=1>",
    "<body onload=window.hacked=1>",
    "<marquee onstart=window.hacked=1>",
    "<isindex action=javascript:window.hacked=1>",
    "<input type=image src=x onerror=window.hacked=1>",
    "<x contenteditable onblur=window.hacked=1>",
    "<!ENTITY x SYSTEM 'file:///etc/passwd'>",
    "<?xml version='1.0'?>",
    "<%= 7*7 %>",
    "<xss style=animation-name:x onanimationstart=window.hacked=1>",
    "[x](javascript:window.hacked=1)",
    "![x](http://example.com/x.png)",
    "=cmd|'/c calc'!A0",
    "'; DROP TABLE StringIds; --",
    "$(reboot)",
    "`reboot`",
    "ｊavascript:window.hacked=1",
    "//example.com/x",
    "http://example.com/x",
    "blob:http://example.com/x",
)

#: What must be true of the page whatever it was given: elements and attributes that only markup could have made.
INTRUDERS = """(() => {
  const tags = ['IMG', 'IFRAME', 'OBJECT', 'EMBED', 'FORM', 'INPUT', 'BASE', 'LINK', 'VIDEO', 'AUDIO', 'TEXTAREA',
    'SELECT', 'TEMPLATE', 'PLAINTEXT', 'MARQUEE', 'B', 'MATH', 'XSS', 'X'];
  const acts = (attribute, of) => attribute.name.startsWith('on')
    || (attribute.name === 'href' && !attribute.value.startsWith('#'))
    || (['src', 'srcdoc', 'action', 'formaction', 'style'].includes(attribute.name) && !of.classList.contains('tip'));
  const found = [...document.querySelectorAll('*')]
    .filter(one => tags.includes(one.tagName.toUpperCase()) || [...one.attributes].some(a => acts(a, one)))
    .map(one => one.outerHTML.slice(0, 200));
  if (document.scripts.length !== 2) found.push('scripts');
  if (document.styleSheets.length !== 1) found.push('style sheets');
  if (window.hacked) found.push('hacked');
  return found;
})()"""


def filled(value: Any, text: Callable[[], str]) -> Any:
    """Plain data with every text replaced; what only says of which kind something is stays."""
    if isinstance(value, dict):
        return {key: item if key in ("unit", "role", "per") else filled(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, text) for item in value]
    return text() if isinstance(value, str) else value


def test_there_are_a_hundred_hostile_inputs() -> None:
    assert len(set(HOSTILE)) >= 100


@in_browser
def test_hostile_names_in_a_trace_are_shown_as_they_are_and_do_nothing(
    tmp_path: Path, opened: Callable[..., Seen]
) -> None:
    events: list[dict[str, Any]] = []
    for i, name in enumerate(HOSTILE):
        at = {"ph": "X", "pid": 1, "tid": 1}
        events += [
            {**at, "cat": "user_annotation", "name": name, "ts": 1000 * i, "dur": 900},
            {**at, "cat": "cpu_op", "name": name, "ts": 1000 * i + 10, "dur": 700},
            {**at, "cat": "cuda_runtime", "name": name, "ts": 1000 * i + 20, "dur": 20, "args": {"correlation": i + 1}},
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1000 * i + 50, "dur": 400,
             "args": {"device": 0, "stream": 7, "correlation": i + 1}},
        ]  # fmt: skip
    (tmp_path / "trace.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    data = figures_of(diagnose(tmp_path / "trace.json"))
    page = opened(write_html(data, tmp_path / "page.html")).page

    assert data.timeline is not None
    assert {clean(name) for name in HOSTILE} <= set(data.timeline.names)
    assert page.evaluate(INTRUDERS) == []
    timeline = page.locator(".timeline svg")
    timeline.scroll_into_view_if_needed()
    box = timeline.bounding_box()
    assert box is not None
    for part in range(40):  # what a click and a pointer tell is made of the names too
        page.mouse.click(box["x"] + 180 + (box["width"] - 190) * part / 40, box["y"] + 60 + 18 * (part % 4))
    assert page.evaluate(INTRUDERS) == []


@in_browser
@pytest.mark.parametrize("part", range(4))
def test_hostile_text_in_every_field_is_shown_as_it_is_and_does_nothing(
    tmp_path: Path, run: Path, diagnosis: Diagnosis, opened: Callable[..., Seen], part: int
) -> None:
    mine = HOSTILE[part::4]
    finding = Finding(
        rule="x", severity="critical", message="m", advice="a", confidence="high", file=__file__, line=3, function="f",
        lost_ns=5, evidence=(Evidence("n", "v", "u", "s"),),
    )  # fmt: skip
    answer = msgspec.structs.replace(
        Diagnosis.from_json((run / "diagnosis.json").read_bytes()), findings=(finding,) * 10, missing=mine
    )
    texts = iter(mine * 500)
    data = msgspec.convert(filled(msgspec.to_builtins(figures_of(answer, run)), lambda: next(texts)), FigureData)

    page = opened(write_html(data, tmp_path / "page.html")).page

    assert page.evaluate(INTRUDERS) == []
    told = page.locator("section[data-section=missing] li").evaluate_all("all => all.map(one => one.textContent)")
    assert [text.replace("\r\n", "\n").replace("\r", "\n") for text in told] == [
        text.replace("\r\n", "\n").replace("\r", "\n") for text in data.missing
    ]
    page.evaluate(
        "document.querySelectorAll('button, g[role=button]').forEach(one => one.dispatchEvent(new Event('click')))"
    )
    assert page.evaluate(INTRUDERS) == []


def test_the_page_stays_one_block_whatever_its_texts_are(run: Path) -> None:
    data = msgspec.structs.replace(read_figures(run), verdict="".join(HOSTILE), source="".join(HOSTILE))

    text = render_html(data)

    assert text.count("<script") == text.count("</script>") == 2
    assert "example.com" in text
    assert "default-src 'none'" in text.replace("&#x27;", "'")
    assert "unsafe" not in text.split("</head>")[0]


@in_browser
def test_figures_of_a_newer_perfkit_are_not_drawn_and_the_page_says_so(
    run: Path, tmp_path: Path, opened: Callable[..., Seen]
) -> None:
    newer = msgspec.structs.replace(read_figures(run), schema=99)

    page = opened(write_html(newer, tmp_path / "page.html")).page

    assert "schema 99" in page.get_by_role("alert").inner_text()


# -- the command line, and notebooks


def test_diagnose_html_writes_the_page_into_a_run_folder_and_a_trace_s_page_here(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(run, folder)
    (folder / "report.html").unlink()
    monkeypatch.chdir(tmp_path)

    assert main(["diagnose", str(folder), "--html"]) == 0
    assert main(["diagnose", str(folder / "rank-0" / "window-0.pt.trace.json.gz"), "--html"]) == 0
    assert main(["diagnose", str(folder), "--html", "elsewhere.html"]) == 0

    assert [(tmp_path / name).is_file() for name in ("copy/report.html", "window-0.html", "elsewhere.html")] == [
        True
    ] * 3
    assert sorted(file.name for file in (folder / "rank-0").iterdir()) == sorted(
        file.name for file in (run / "rank-0").iterdir()
    )
    assert "page" in capsys.readouterr().err


def test_open_gives_the_page_to_the_browser(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("webbrowser.open", asked.append)

    assert main(["diagnose", str(run), "--open", str(tmp_path / "page.html")]) == 0

    assert asked == [(tmp_path / "page.html").as_uri()]


def test_a_page_that_cannot_be_written_is_bad_input(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(run), "--html", os.devnull + "/page.html"]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert main(["diagnose", str(run), "page.html"]) == 2
    assert "add --html" in capsys.readouterr().err


def test_notebooks_show_a_diagnosis_and_a_comparison_as_escaped_tables(diagnosis: Diagnosis) -> None:
    hostile = msgspec.structs.replace(
        diagnosis, verdict=HOSTILE[0], source=HOSTILE[1], missing=HOSTILE, findings=(
            msgspec.structs.replace(diagnosis.findings[0], message=HOSTILE[6], advice=HOSTILE[12], file=HOSTILE[26]),
        )
    )  # fmt: skip

    for answer in (hostile, perfkit.compare(hostile, diagnosis)):
        shown = answer._repr_html_()
        assert "<table>" in shown
        assert not [tag for tag in ("<script", "<img", "<a ", "<svg", "<iframe", "<style") if tag in shown.lower()]
        assert len(shown) < 100_000
