"""A real TensorBoard on what real trainings left, asked by HTTP and seen in Chromium."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

#: What lies outside the log directory, and must not come out.
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
            prof.log(samples=8, loss=loss.item())

train("before")
train("after")
"""


@pytest.fixture(scope="session")
def hostile() -> list[str]:
    """Texts that would do something if they were taken for markup, code, a template, a path or a key."""
    texts: list[str] = json.loads((Path(__file__).parents[2] / "hostile.json").read_text())
    return texts


@contextmanager
def serving(
    logdir: str | Path, place: Path, *flags: str, broken: str | None = None, through: Sequence[str] = ()
) -> Iterator[str]:
    """A TensorBoard on ``logdir``, with the tab's entry point installed; its URL. ``broken`` is a module without which
    the tab cannot be, ``through`` a command that starts it."""
    place.mkdir(parents=True, exist_ok=True)
    about = place / "perfkit_tab-0.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: perfkit-tab\nVersion: 0\n")
    entry = "[tensorboard_plugins]\nperfkit = perfkit.integrations.tensorboard.plugin:TabLoader\n"
    (about / "entry_points.txt").write_text(entry)
    if broken is not None:
        (place / "sitecustomize.py").write_text(f"import sys\nsys.modules[{broken!r}] = None\n")
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--port", "0", "--host", "127.0.0.1"]
    said = place / "tensorboard.log"
    with said.open("w") as log:
        server = subprocess.Popen(
            [*through, *command, *flags], cwd=place, stdout=log, stderr=log,
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


@pytest.fixture(scope="session")
def tensorboard() -> Callable[..., Any]:
    """Starts a TensorBoard; a context that gives its URL."""
    return serving


def answer_to(url: str, path: str, method: str = "GET") -> tuple[int, bytes, dict[str, str]]:
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


@pytest.fixture(scope="session")
def get() -> Callable[..., tuple[int, bytes, dict[str, str]]]:
    """Asks for a path as it is: status, body and headers."""
    return answer_to


@pytest.fixture(scope="session")
def ask() -> Callable[..., tuple[int, Any]]:
    """Asks a route of the tab: status, and the JSON that it answers."""

    def asked(url: str, route: str, **query: str) -> tuple[int, Any]:
        words = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        status, body, _ = answer_to(url, f"/data/plugin/perfkit/{route}?{words}")
        return status, json.loads(body)

    return asked


@pytest.fixture(scope="session")
def until() -> Callable[..., Any]:
    """What ``look`` gives once it is good: the tab looks at the log directory every two seconds."""

    def seen(look: Callable[[], Any], good: Callable[[Any], bool]) -> Any:
        for _ in range(100):
            if good(found := look()):
                return found
            time.sleep(0.1)
        raise AssertionError(found)

    return seen


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def url(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(logs, tmp_path_factory.mktemp("tensorboard")) as url:
        yield url


# -- the browser


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
        # By its element: a frame has its address only once its page begins to load, which may be later.
        self.frame = self.page.wait_for_selector("iframe[src*='name=perfkit']", timeout=60_000).content_frame()

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
    """The system's browser, which reaches this machine only."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        found = None  # what drives it comes with the development dependencies
    if found is None:
        pytest.skip("chromium is not installed")
    with sync_playwright() as driver:
        flags = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        browser = driver.chromium.launch(executable_path=found, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def open_tab(chromium: Any) -> Iterator[Callable[[str], Tab]]:
    context = chromium.new_context(viewport={"width": 1500, "height": 1000}, accept_downloads=True)
    yield lambda url: Tab(context, url)
    context.close()
