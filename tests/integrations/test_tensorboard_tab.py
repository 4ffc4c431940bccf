"""The tab perfkit in a real TensorBoard, on what real trainings left: asked by HTTP, clicked through in Chromium."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

CHROMIUM = shutil.which("chromium")
SECRET = "the text of a file outside"

TRAINING = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter
import perfkit
from perfkit.integrations.tensorboard import log_scalars, trace_handler

def train(name):
    loader = DataLoader(TensorDataset(torch.randn(320, 64)), batch_size=8)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    writer = SummaryWriter(f"logs/{name}/tb")
    handler = trace_handler(f"logs/{name}/tb", "worker", writer=writer)
    schedule = perfkit.schedule(wait=3, warmup=1, active=2, repeat=1)
    profile = perfkit.profile(f"logs/{name}", schedule=schedule, handlers=[handler], detect_syncs="dry", quiet=True)
    with log_scalars(profile, writer) as prof:
        for (x,) in prof.steps(loader):
            with perfkit.range("loss"):
                loss = model(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            prof.tell(samples=8, loss=loss.item())

train("before")
train("after")
"""

#: Texts that would do something if they were taken for markup, code, a template, a path or a key.
HOSTILE = [
    "<script>top.hit=1</script>",
    "</script><script>top.hit=1</script>",
    "<img src=x onerror=top.hit=1>",
    "\"><svg onload=top.hit=1>",
    "'><svg/onload=top.hit=1>",
    "' onmouseover='top.hit=1",
    "\" autofocus onfocus=\"top.hit=1",
    "<details open ontoggle=top.hit=1>",
    "<iframe srcdoc='<script>top.hit=1</script>'>",
    "<iframe src=javascript:top.hit=1>",
    "<object data=http://evil.example/x>",
    "<embed src=http://evil.example/x>",
    "<a href=javascript:top.hit=1>x</a>",
    "<base href=http://evil.example/>",
    "<link rel=stylesheet href=http://evil.example/x.css>",
    "<meta http-equiv=refresh content='0;url=http://evil.example/'>",
    "<style>@import 'http://evil.example/x.css';</style>",
    "<form action=http://evil.example><button>x</button></form>",
    "<math><mtext><img src=x onerror=top.hit=1>",
    "<svg><use href='http://evil.example/x#y'/></svg>",
    "<video src=http://evil.example/x>",
    "url(http://evil.example/x)",
    "javascript:top.hit=1",
    "data:text/html,<script>top.hit=1</script>",
    "{{constructor.constructor('top.hit=1')()}}",
    "${top.hit=1}",
    "`${top.hit=1}`",
    "%3Cscript%3Etop.hit=1%3C/script%3E",
    "&lt;script&gt;top.hit=1&lt;/script&gt;",
    "&#60;script&#62;top.hit=1",
    "<!--", "-->", "]]>", "<![CDATA[", "</style>", "</textarea>", "</title>",
    "__proto__", "constructor", "toString", "hasOwnProperty",
    "\u202egpj.exe", "a\u2066b\u2069", "\u200bhidden", "\x07bell", "\ufeffmark", "é漢字🙂", "line\u2028separator",
]  # fmt: skip

#: Names of runs and traces, as somebody may ask for them, that lead out of the log directory, or nowhere.
ASKED = [
    "..", "../", "../outside", "../outside/secret.pt.trace.json", "../../../../../../../../etc/passwd", "/etc/passwd",
    "link", "link/secret.pt.trace.json", "before/../../outside", "before/..", "./before", "before/", "before//",
    "//before", "before/link.pt.trace.json", "link.pt.trace.json", "rank-0/link.pt.trace.json",
    "before\0", "before\0.pt.trace.json", "..\\outside", "..\\..\\outside", "%2e%2e/outside", "..%2foutside",
    "%252e%252e%252foutside", "..%c0%afoutside", "....//outside", "..;/outside", "file:///etc/passwd", "memory://x",
    "http://127.0.0.1/", "C:\\Windows\\win.ini", "\\\\host\\share", "~", "~root", "$HOME", "`id`", "$(id)", "before;id",
    "before|id", "--help", "-", "before\n", "\uffff", "a" * 20_000, "'", "\"", "*", "?", "[a-z]*", "before*",
    "{before,after}", "run.json", "before/run.json", "rank-0/rank.json", "diagnosis.json", "tb", "events.out.tfevents",
    "None", "null", "0",
    *HOSTILE,
]  # fmt: skip


@contextmanager
def tensorboard(logdir: str | Path, place: Path, *flags: str, broken: str | None = None) -> Iterator[str]:
    """A TensorBoard on ``logdir``, with the tab's entry point installed; its URL. ``broken`` is a module without which
    the tab cannot be."""
    place.mkdir(parents=True, exist_ok=True)
    about = place / "perfkit_tab-0.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: perfkit-tab\nVersion: 0\n")
    entry = "[tensorboard_plugins]\nperfkit = perfkit.integrations.tensorboard.plugin:Loader\n"
    (about / "entry_points.txt").write_text(entry)
    if broken is not None:
        (place / "sitecustomize.py").write_text(f"import sys\nsys.modules[{broken!r}] = None\n")
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--port", "0", "--host", "127.0.0.1"]
    said = place / "tensorboard.log"
    with said.open("w") as log:
        server = subprocess.Popen(
            [*command, *flags], cwd=place, stdout=log, stderr=log,
            env={**os.environ, "PYTHONPATH": str(place), "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    try:
        url = None
        while url is None and server.poll() is None:
            url = re.search(r"http://127\.0\.0\.1:\d+", said.read_text())
            time.sleep(0.1)
        assert url is not None, said.read_text()
        yield url[0]
        assert server.poll() is None, said.read_text()
    finally:
        server.terminate()
        server.wait(30)


def get(url: str, path: str, method: str = "GET") -> tuple[int, bytes, dict[str, str]]:
    """The answer to a request whose path is sent as it is."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
    # Not the checked way: a path may hold anything.
    connection._validate_path = lambda url: None  # type: ignore[attr-defined]  # nothing else sends such paths
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def ask(url: str, route: str, **query: str) -> tuple[int, Any]:
    asked = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
    status, body, _ = get(url, f"/data/plugin/perfkit/{route}?{asked}")
    return status, json.loads(body)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log directory of two trainings, with links out of it."""
    place = tmp_path_factory.mktemp("training")
    (place / "train.py").write_text(TRAINING)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "train.py"], cwd=place, env=env, check=True, timeout=240)
    outside = place / "outside"
    outside.mkdir()
    secret = outside / "secret.pt.trace.json"
    secret.write_text(SECRET)
    (place / "logs" / "link").symlink_to(outside)
    (place / "logs" / "after" / "tb" / "link.pt.trace.json").symlink_to(secret)
    return place / "logs"


@pytest.fixture(scope="module")
def url(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with tensorboard(logs, tmp_path_factory.mktemp("tensorboard")) as url:
        yield url


# -- asked by HTTP


def test_the_tab_is_there_and_lists_the_runs(url: str) -> None:
    tabs = json.loads(get(url, "/data/plugins_listing")[1])
    assert (tabs["perfkit"]["enabled"], tabs["perfkit"]["tab_name"]) == (True, "perfkit")

    _, listing = ask(url, "runs")
    assert {run["name"]: run["kind"] for run in listing["runs"]} == {
        "after": "run", "after/tb": "traces", "before": "run", "before/tb": "traces",
    }  # fmt: skip
    assert listing["notes"] == []


def test_figures_are_those_of_the_run(url: str, logs: Path) -> None:
    status, drawn = ask(url, "figures", run="before")

    assert (status, drawn["per"]) == (200, "step")
    assert drawn["verdict"] == json.loads((logs / "before" / "diagnosis.json").read_text())["verdict"]
    assert sum(drawn["steps"]["steps"]) == 40


def test_a_trace_comes_as_it_lies_there_and_is_nothing_that_a_browser_runs(url: str, logs: Path) -> None:
    name = "rank-0/window-0.pt.trace.json.gz"

    status, body, headers = get(url, f"/data/plugin/perfkit/trace?run=before&trace={quote(name)}")

    assert (status, body) == (200, (logs / "before" / name).read_bytes())
    assert headers["content-disposition"].startswith("attachment")
    assert (headers["content-type"], headers["x-content-type-options"]) == ("application/gzip", "nosniff")
    assert "content-encoding" not in headers


def test_no_hostile_name_gets_anything(url: str) -> None:
    asked = [
        f"/data/plugin/perfkit/{route}?{query}"
        for text in ASKED
        for name in [quote(text, safe="")]
        for route, query in (
            ("figures", f"run={name}"),
            ("figures", f"run=before&trace={name}"),
            ("trace", f"run={name}&trace={name}"),
            ("trace", f"run=before&trace={name}"),
        )
    ]
    assert len(asked) > 400

    for path in asked:
        status, body, headers = get(url, path)
        assert 400 <= status < 500, path
        assert SECRET.encode() not in body, path
        assert b"root:" not in body, path
        assert "html" not in headers.get("content-type", ""), path


@pytest.mark.parametrize(
    "path",
    [
        "..", "../", "../../../../../../etc/passwd", "%2e%2e/%2e%2e/%2e%2e/etc/passwd", "..%2f..%2f..%2fetc%2fpasswd",
        "static/index.js", "tab.py", "index.js/../tab.py", "index.js%00.py", "//etc/passwd", "\\..\\tab.py",
        "index.js/",
        "perfkit.js.map", "INDEX.JS", "runs/..", "trace/../../../etc/passwd", "trace/before/run.json", "figures/",
        ".", "static/..%5c..%5ctab.py", "page.html", "~root", "?../tab.py", "#x", "%", "%zz",
    ],
)  # fmt: skip
def test_no_hostile_route_is_answered(url: str, path: str) -> None:
    status, body, _ = get(url, f"/data/plugin/perfkit/{path}")

    assert status >= 400 or b"TensorBoard" in body  # TensorBoard's own start page
    assert b"class Tab" not in body
    assert b"root:" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_the_tab_can_only_be_read(url: str, method: str) -> None:
    assert get(url, "/data/plugin/perfkit/runs", method)[0] == 405


def test_a_run_that_is_being_written_is_drawn(url: str, logs: Path) -> None:
    running = logs / "running"
    shutil.copytree(logs / "before", running, ignore=shutil.ignore_patterns("tb", "diagnosis.json", "figures.json"))
    rows = (running / "rank-0" / "steps.jsonl").read_bytes()
    (running / "rank-0" / "steps.jsonl").write_bytes(rows[: len(rows) // 2])  # ends inside a row
    try:
        drawn = until(lambda: ask(url, "figures", run="running")[1], lambda answer: "verdict" in answer)
        assert 10 < sum(drawn["steps"]["steps"]) < 40
    finally:
        shutil.rmtree(running)


def test_a_run_with_links_in_it_is_not_read(url: str, logs: Path) -> None:
    run = logs / "linked"
    shutil.copytree(logs / "before" / "rank-0", run / "rank-0")
    (run / "rank-0" / "syncs.json").unlink()
    (run / "rank-0" / "syncs.json").symlink_to(logs.parent / "outside" / "secret.pt.trace.json")
    try:
        answer = until(
            lambda: ask(url, "figures", run="linked")[1], lambda answer: "no such run" not in answer["error"]
        )
        assert "symbolic links (rank-0/syncs.json)" in answer["error"]
    finally:
        shutil.rmtree(run)


def until(look: Callable[[], Any], good: Callable[[Any], bool]) -> Any:
    """What ``look`` gives once it is good: the tab looks at the log directory every two seconds."""
    for _ in range(100):
        if good(seen := look()):
            return seen
        time.sleep(0.1)
    raise AssertionError(seen)


def test_looking_leaves_the_log_directory_as_it_was(url: str, logs: Path) -> None:
    def tree() -> dict[str, int]:
        return {str(path): path.lstat().st_mtime_ns for path in logs.rglob("*")}

    before = tree()
    for run in ("before", "after"):
        assert ask(url, "figures", run=run, trace="rank-0/window-0.pt.trace.json.gz")[0] == 200

    assert tree() == before


def test_what_the_tab_cannot_import_leaves_tensorboard_running(logs: Path, tmp_path: Path) -> None:
    with tensorboard(logs, tmp_path, broken="perfkit.integrations.tensorboard.log_directory") as url:
        tabs = json.loads(get(url, "/data/plugins_listing")[1])

    assert "perfkit" not in tabs
    assert tabs["scalars"]["enabled"]
    assert "The tab perfkit is left out (ModuleNotFoundError" in (tmp_path / "tensorboard.log").read_text()


def test_a_tensorboard_without_what_the_tab_needs_goes_on_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.plugins import base_plugin

    from perfkit.integrations.tensorboard.plugin import Loader

    monkeypatch.delattr(base_plugin, "FrontendMetadata")

    assert Loader().load(base_plugin.TBContext(logdir="logs")) is None


def test_a_second_installation_of_the_tab_is_left_out() -> None:
    from tensorboard.plugins import base_plugin

    from perfkit.integrations.tensorboard.plugin import Loader

    assert Loader().load(base_plugin.TBContext(logdir="logs")).plugin_name == "perfkit"
    assert Loader().load(base_plugin.TBContext(logdir="logs", plugin_name_to_instance={"perfkit": None})) is None


# -- clicked through

STAND_IN = """<!doctype html><title>Perfetto</title><script>
addEventListener("message", (event) => {
  if (event.data === "PING") event.source.postMessage("PONG", event.origin);
  else if (event.data.perfetto) window.got = event.data.perfetto;
});
</script>"""


class Tab:
    """The tab, open in a browser; what the page asked for, and what went wrong in it."""

    def __init__(self, context: Any, url: str) -> None:
        self.context, self.url = context, url
        self.requests: list[str] = []
        self.wrong: list[str] = []
        context.on("request", lambda request: self.requests.append(request.url))
        self.page = context.new_page()
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.wrong.append(dialog.message), dialog.dismiss()))
        self.page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)
        self.page.goto(f"{url}/#perfkit")
        self.page.wait_for_selector("iframe[src*='name=perfkit']", timeout=60_000)
        self.frame = self.page.frame(url=re.compile("plugin_entry.html.name=perfkit"))

    def drawn(self, runs: int = 1) -> None:
        self.frame.wait_for_selector(f"main[data-drawn='{runs}']", timeout=120_000)

    def choose(self, name: str) -> None:
        self.frame.locator(".runs label", has=self.frame.get_by_text(name, exact=True)).locator("input").click()

    def foreign(self) -> list[str]:
        return [asked for asked in self.requests if not asked.startswith((self.url, "data:", "blob:"))]

    def look(self, name: str) -> None:
        """Keep a picture, where a person asks for one."""
        if "PERFKIT_PICTURES" in os.environ:
            self.page.screenshot(path=Path(os.environ["PERFKIT_PICTURES"], f"{name}.png"))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        flags = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def open_tab(chromium: Any) -> Iterator[Callable[[str], Tab]]:
    context = chromium.new_context(viewport={"width": 1500, "height": 1000}, accept_downloads=True)
    yield lambda url: Tab(context, url)
    context.close()


@pytest.mark.slow
@pytest.mark.parametrize("fast", ["true", "false"])
def test_a_training_is_seen_with_either_loader_and_without_a_network(
    logs: Path, tmp_path: Path, open_tab: Callable[[str], Tab], fast: str
) -> None:
    with tensorboard(logs, tmp_path, f"--load_fast={fast}") as url:
        tab = open_tab(url)
        tab.drawn()
        tab.choose("before")
        tab.drawn(2)
        tab.look(f"compared-{fast}")

        assert tab.frame.locator("[data-table=comparison] tbody tr").count() == 2
        row = tab.frame.locator("[data-table=comparison] tbody tr").first
        whole = row.inner_text()
        tab.frame.locator(".card select").first.select_option("rank-0/window-0.pt.trace.json.gz")
        until(row.inner_text, lambda text: text != whole)
        tab.choose("after")
        tab.drawn()
        shown = tab.frame.inner_text("main")
        verdict = json.loads((logs / "before" / "diagnosis.json").read_text())["verdict"]
        assert verdict in shown
        titles = tab.frame.locator("main h2").all_inner_texts()
        assert {"Verdict", "Where a step goes", "Findings", "Steps over time", "Timeline of the window"} <= set(titles)
        key = tab.frame.locator("[data-section=steps] .key").first.inner_text()
        assert {"data", "forward", "backward", "optimizer"} <= set(key.split())
        assert tab.frame.locator("[data-section=steps] svg").first.bounding_box()["height"] > 50
        tab.look(f"one-{fast}")
        assert (tab.wrong, tab.foreign()) == ([], [])


@pytest.mark.slow
def test_dark_mode_is_tensorboards(url: str, open_tab: Callable[[str], Tab]) -> None:
    tab = open_tab(url)
    tab.drawn()

    def paper() -> list[int]:
        colour = tab.frame.evaluate("getComputedStyle(document.querySelector('.tab')).backgroundColor")
        return [int(part) for part in re.findall(r"\d+", colour)[:3]]

    assert min(paper()) > 200
    tab.page.evaluate("document.body.classList.add('dark-mode')")
    tab.frame.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    assert max(paper()) < 60
    tab.look("dark")


@pytest.mark.slow
def test_a_section_is_gone_to_without_leaving_the_tab(url: str, open_tab: Callable[[str], Tab]) -> None:
    tab = open_tab(url)
    tab.drawn()

    tab.frame.click("nav >> text=Timeline of the window")

    tab.frame.wait_for_function(
        "document.querySelector('[data-section=timeline]').getBoundingClientRect().top < innerHeight / 2"
    )
    assert "plugin_entry.html" in tab.frame.url
    assert tab.wrong == []


@pytest.mark.slow
def test_a_trace_is_handed_to_perfetto_in_the_browser_on_a_click_only(
    url: str, logs: Path, open_tab: Callable[[str], Tab]
) -> None:
    tab = open_tab(url)
    tab.context.route(
        "https://ui.perfetto.dev/**", lambda route: route.fulfill(body=STAND_IN, content_type="text/html")
    )
    tab.drawn()
    tab.frame.click("details.traces summary")
    assert tab.foreign() == []

    entry = tab.frame.locator(".traces li", has_text="window-0")
    with tab.page.expect_popup() as opened:
        entry.get_by_role("button", name="Open in Perfetto").click()
    opened.value.wait_for_function("window.got", timeout=60_000)

    got = opened.value.evaluate("Array.from(new Uint8Array(window.got.buffer))")
    run = tab.frame.inner_text(".card h1")
    assert bytes(got) == (logs / run / "rank-0" / "window-0.pt.trace.json.gz").read_bytes()
    assert opened.value.evaluate("window.got.title") == f"window-0.pt.trace.json.gz ({run})"
    assert tab.foreign() == ["https://ui.perfetto.dev/"]
    with tab.page.expect_download() as saved:
        entry.get_by_role("link", name="Download").click()
    assert saved.value.suggested_filename == "window-0.pt.trace.json.gz"
    assert Path(saved.value.path()).read_bytes() == bytes(got)


@pytest.mark.slow
def test_an_empty_log_directory_says_what_belongs_there_and_shows_a_run_when_it_comes(
    logs: Path, tmp_path: Path, open_tab: Callable[[str], Tab]
) -> None:
    with tensorboard(tmp_path / "later", tmp_path / "tb") as url:
        tab = open_tab(url)
        tab.frame.wait_for_selector(".empty", timeout=60_000)
        assert "is not there yet" in tab.frame.inner_text(".notes")
        assert "perfkit.profile(" in tab.frame.inner_text(".empty")

        shutil.copytree(logs / "before", tmp_path / "later" / "before", symlinks=True)

        tab.drawn()
        assert (tab.wrong, tab.foreign()) == ([], [])


def hostile_logs(folder: Path) -> Path:
    """Runs and traces with hostile names, and a diagnosis and a trace full of hostile texts."""
    names = [text.replace("/", "") for text in HOSTILE]
    for name in names:
        made = folder / name
        made.mkdir(parents=True)
        (made / f"{name}.pt.trace.json").write_text("{}")
    finding = {"severity": "warning", "confidence": "high", "line": 1, "lost_ns": 5_000}
    findings = [
        {**finding, "rule": text, "message": text, "advice": text, "file": text, "function": text, "range": text}
        for text in HOSTILE
    ]
    ops = [{"name": text, "count": 1, "total_ns": 5, "self_ns": 5} for text in HOSTILE]
    ranges = [{"name": text, "count": 1, "host_ns": 5, "source": text} for text in HOSTILE]
    all_of_it = {
        "schema": 1, "source": HOSTILE[0], "verdict": " ".join(HOSTILE), "findings": findings, "missing": HOSTILE,
        "figures": {"wall_ns": 1_000_000, "ops": ops, "ranges": ranges},
    }  # fmt: skip
    (folder / "0-diagnosis").mkdir()
    (folder / "0-diagnosis" / "diagnosis.json").write_text(json.dumps(all_of_it))
    event = {"ph": "X", "pid": 1, "tid": 1, "dur": 5}
    events = [
        {**event, "cat": "cpu_op", "name": text, "ts": 10 * i, "args": {"x": text}} for i, text in enumerate(HOSTILE)
    ]
    events.append({**event, "cat": "user_annotation", "name": "ProfilerStep#0", "ts": 0, "dur": 10 * len(HOSTILE)})
    trace = {"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}
    (folder / "1-trace").mkdir()
    (folder / "1-trace" / "x.pt.trace.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))
    return folder


@pytest.mark.slow
def test_no_hostile_text_becomes_anything_but_text(tmp_path: Path, open_tab: Callable[[str], Tab]) -> None:
    with tensorboard(hostile_logs(tmp_path / "logs"), tmp_path / "tb") as url:
        tab = open_tab(url)
        tab.drawn()
        tab.look("hostile-diagnosis")
        tab.choose("1-trace")
        tab.drawn(2)
        tab.choose("0-diagnosis")
        tab.drawn()
        tab.look("hostile-trace")
        assert "<script>top.hit=1</script>" in tab.frame.inner_text("main")
        tab.choose("0-diagnosis")
        tab.drawn(2)

        assert tab.frame.locator(".runs li").count() == len(HOSTILE) + 2
        assert tab.page.evaluate("window.hit") is None
        made = tab.frame.evaluate("[...document.querySelectorAll('*')].map((one) => one.localName)")
        assert not set(made) & {"iframe", "object", "embed", "img", "form", "meta", "math", "video", "style", "use"}
        assert (made.count("script"), made.count("base"), made.count("link")) == (1, 1, 2)
        links = tab.frame.evaluate("[...document.links].map((one) => one.protocol)")
        assert set(links) <= {"http:"}
        attributes = tab.frame.evaluate("[...document.querySelectorAll('*')].flatMap((one) => one.getAttributeNames())")
        assert not [name for name in attributes if name.startswith("on")]
        assert (tab.wrong, tab.foreign()) == ([], [])
