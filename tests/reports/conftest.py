"""A diagnosis like the demo's, a console that writes into a string, a recorded run, and a browser for pages."""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from rich.console import Console
from torch.utils.data import DataLoader, Dataset

import perfkit
from perfkit._location import Location
from perfkit.diagnosis import Diagnosis, Figures
from perfkit.findings import Evidence, Finding
from perfkit.ledger.ledger import Claim, ClaimedLedger, Ledger
from perfkit.ledger.rows import LedgerRow
from perfkit.measures.results.steps import TypicalStep
from perfkit.run.records import Phases

MS = 1_000_000


@pytest.fixture
def written() -> Callable[..., str]:
    """Call a reporter with a console of this width; what it wrote."""

    def write(reporter: Any, answer: Any, width: int = 80, **options: Any) -> str:
        file = io.StringIO()
        reporter(answer, Console(file=file, width=width), **options)
        return file.getvalue()

    return write


@pytest.fixture
def diagnosis() -> Diagnosis:
    step = TypicalStep(
        steps=40,
        wall_ns=80 * MS,
        median_ns=80 * MS,
        p10_ns=78 * MS,
        p90_ns=83 * MS,
        phases_ns=Phases(data=45 * MS, forward=20 * MS, backward=12 * MS, optimizer=3 * MS),
        source="steps.jsonl, 40 steps",
    )
    waiting = Finding(
        rule="input-bound",
        severity="critical",
        message="Waiting for data takes 45.0 ms of the 80.0 ms step: Reviews.__getitem__ runs in the training process.",
        advice="Do the work of Reviews.__getitem__ once, ahead of training, or beside it: DataLoader(num_workers=4).",
        confidence="high",
        evidence=(Evidence("waiting for data", 45.0, "ms", "steps.jsonl, 40 steps"),),
        spent=Location(file="train.py", line=31, function="Reviews.__getitem__"),
        cost_ns=45 * MS,
        saving_low_ns=20 * MS,
        saving_high_ns=45 * MS,
    )
    loop = Finding(
        rule="many-small-ops",
        severity="warning",
        message="A loop runs 100 times per step over 3 small ops (select mul add): 12.0 ms, backward included.",
        advice="Replace the loop by one call over the whole tensor (batched matmul, reduction with dim=, cumsum).",
        confidence="medium",
        spent=Location(file="model.py", line=11, function="mix"),
        cost_ns=12 * MS,
        saving_low_ns=0,
        saving_high_ns=12 * MS,
    )
    sync = Finding(
        rule="sync-in-step",
        severity="warning",
        message="item() waits for the device once per step.",
        advice="Keep the value on the device and read it rarely.",
        confidence="high",
        evidence=(Evidence("blocked time", None, "ms", "on a CPU there is no device to wait for"),),
        spent=Location(file="train.py", line=60, function="train"),
    )
    return Diagnosis(
        source="runs/train",
        verdict="A step takes 80.0 ms, most of it waiting for data (56%).",
        step=step,
        phases=step.phases_ns,
        findings=(waiting, loop, sync),
        figures=Figures(wall_ns=80 * MS),
        missing=("no window was recorded",),
    )


@pytest.fixture
def accounted(diagnosis: Diagnosis) -> Diagnosis:
    """The same with its ledger: of 80 ms 31.6 at the limit, 38 claimed by two findings, 10.4 unexplained."""
    rows = (
        LedgerRow(owner="data", name="data", ns=40 * MS, phase="data", at=Location(file="train.py", line=31)),
        LedgerRow(
            owner="computing", name="aten::mm", ns=30 * MS, phase="forward", at=Location(file="model.py", line=9),
            limit_ns=24 * MS, bound="arithmetic", count=12.0,
        ),
        LedgerRow(
            owner="computing", name="aten::sort", ns=9 * MS, phase="forward",
            at=Location(file="packages/of/the/research/group/experiments/model.py", line=11), limit_ns=MS,
            bound="memory",
        ),
        LedgerRow(owner="python", name="outside ops", ns=600_000, phase="other"),
        LedgerRow(owner="idle", name="sync", ns=400_000),
    )  # fmt: skip
    ledger = Ledger(wall_ns=80 * MS, per="step", basis="training thread", rows=rows, limits="measured on a CPU")
    claims = (Claim(0, "input-bound", 36 * MS), Claim(2, "many-small-ops", 2 * MS))
    return msgspec.structs.replace(diagnosis, outcome="findings", ledger=ClaimedLedger(ledger=ledger, claims=claims))


@pytest.fixture(scope="session")
def hostile() -> list[str]:
    """Texts that would do something if they were taken for markup, code, a template, a path or a key."""
    texts: list[str] = json.loads((Path(__file__).parents[1] / "hostile.json").read_text())
    return texts


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


@pytest.fixture(scope="session")
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


# -- the browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The system's browser, one for all tests of a file."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        found = None  # what drives it comes with the development dependencies
    if found is None:
        pytest.skip("chromium is not installed")
    with sync_playwright() as playwright:
        # As root there is no sandbox, and what the tests open is their own.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


class Seen:
    """A page and what the browser told of it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))

    def section(self, name: str) -> Any:
        """A section of the page, by its name in the script."""
        return self.page.locator(f"section[data-section={name}]")


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[..., Seen]]:
    """Open a file; afterwards nothing but this file was asked for, and the browser complained of nothing."""
    seen: list[tuple[Path, Seen]] = []

    def open_file(file: Path, **options: Any) -> Seen:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        one = Seen(context.new_page())
        seen.append((file, one))
        one.page.add_init_script(
            "window.refused = []; document.addEventListener('securitypolicyviolation',"
            " event => window.refused.push(event.violatedDirective + ' ' + event.blockedURI))"
        )
        one.page.goto(file.as_uri())
        if options.get("java_script_enabled", True):
            # A function: an expression is evaluated anew each time, which the page's policy refuses from the second on.
            one.page.wait_for_function("() => document.documentElement.dataset.drawn === 'yes'")
        return one

    yield open_file
    for file, one in seen:
        assert one.requests == [file.as_uri()]
        assert one.complaints == []
        assert one.page.evaluate("window.refused || []") == []
        one.page.context.close()
