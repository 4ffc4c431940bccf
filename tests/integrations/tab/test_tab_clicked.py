"""The tab perfkit in a real TensorBoard, clicked through in Chromium."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STAND_IN = """<!doctype html><title>Perfetto</title><script>
addEventListener("message", (event) => {
  if (event.data === "PING") event.source.postMessage("PONG", event.origin);
  else if (event.data.perfetto) window.got = event.data.perfetto;
});
</script>"""


@pytest.mark.slow
@pytest.mark.parametrize("fast", ["true", "false"])
def test_a_training_is_seen_with_either_loader_and_without_a_network(
    logs: Path,
    tmp_path: Path,
    open_tab: Callable[[str], Any],
    fast: str,
    tensorboard: Callable[..., Any],
    until: Callable[..., Any],
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
        assert {
            "Verdict",
            "Phases and devices",
            "Where the step goes",
            "Findings",
            "Steps over time",
            "Timeline of the window",
        } <= set(titles)
        key = tab.frame.locator("[data-section=steps] .key").first.inner_text()
        assert {"data", "forward", "backward", "optimizer"} <= set(key.split())
        assert tab.frame.locator("[data-section=steps] svg").first.bounding_box()["height"] > 50
        tab.look(f"one-{fast}")
        assert (tab.wrong, tab.foreign()) == ([], [])


@pytest.mark.slow
def test_dark_mode_follows_tensorboard(url: str, open_tab: Callable[[str], Any]) -> None:
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
def test_a_link_to_a_section_stays_in_the_tab(url: str, open_tab: Callable[[str], Any]) -> None:
    tab = open_tab(url)
    tab.drawn()

    tab.frame.click("nav >> text=Timeline of the window")

    tab.frame.wait_for_function(
        "document.querySelector('[data-section=timeline]').getBoundingClientRect().top < innerHeight / 2"
    )
    assert "plugin_entry.html" in tab.frame.url
    assert tab.wrong == []


@pytest.mark.slow
def test_only_a_click_passes_a_trace_to_perfetto(url: str, logs: Path, open_tab: Callable[[str], Any]) -> None:
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
def test_an_empty_log_directory_explains_itself_and_shows_a_new_run(
    logs: Path, tmp_path: Path, open_tab: Callable[[str], Any], tensorboard: Callable[..., Any]
) -> None:
    with tensorboard(tmp_path / "later", tmp_path / "tb") as url:
        tab = open_tab(url)
        tab.frame.wait_for_selector(".empty", timeout=60_000)
        assert "does not exist yet" in tab.frame.inner_text(".notes")
        assert "perfkit.profile(" in tab.frame.inner_text(".empty")

        shutil.copytree(logs / "before", tmp_path / "later" / "before", symlinks=True)

        tab.drawn()
        assert (tab.wrong, tab.foreign()) == ([], [])
