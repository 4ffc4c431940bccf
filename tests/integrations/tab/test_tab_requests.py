"""The tab perfkit in a real TensorBoard, asked by HTTP: what it answers, and what it leaves alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest


def test_the_tab_is_there_and_lists_the_runs(url: str, get: Callable[..., Any], ask: Callable[..., Any]) -> None:
    tabs = json.loads(get(url, "/data/plugins_listing")[1])
    assert (tabs["perfkit"]["enabled"], tabs["perfkit"]["tab_name"]) == (True, "perfkit")

    _, listing = ask(url, "runs")
    assert {run["name"]: run["kind"] for run in listing["runs"]} == {
        "after": "run", "after/tb": "traces", "before": "run", "before/tb": "traces",
    }  # fmt: skip
    assert listing["notes"] == []


def test_figures_are_those_of_the_run(url: str, logs: Path, ask: Callable[..., Any]) -> None:
    status, drawn = ask(url, "figures", run="before")

    assert (status, drawn["per"]) == (200, "step")
    assert drawn["verdict"] == json.loads((logs / "before" / "diagnosis.json").read_text())["verdict"]
    assert sum(drawn["steps"]["steps"]) == 40


def test_a_trace_comes_as_it_lies_there_and_is_nothing_that_a_browser_runs(
    url: str, logs: Path, get: Callable[..., Any]
) -> None:
    name = "rank-0/window-0.pt.trace.json.gz"

    status, body, headers = get(url, f"/data/plugin/perfkit/trace?run=before&trace={quote(name)}")

    assert (status, body) == (200, (logs / "before" / name).read_bytes())
    assert headers["content-disposition"].startswith("attachment")
    assert (headers["content-type"], headers["x-content-type-options"]) == ("application/gzip", "nosniff")
    assert "content-encoding" not in headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_the_tab_can_only_be_read(url: str, method: str, get: Callable[..., Any]) -> None:
    assert get(url, "/data/plugin/perfkit/runs", method)[0] == 405


def test_a_run_that_is_being_written_is_drawn(
    url: str, logs: Path, ask: Callable[..., Any], until: Callable[..., Any]
) -> None:
    running = logs / "running"
    shutil.copytree(logs / "before", running, ignore=shutil.ignore_patterns("tb", "diagnosis.json", "figures.json"))
    rows = (running / "rank-0" / "steps.jsonl").read_bytes()
    (running / "rank-0" / "steps.jsonl").write_bytes(rows[: len(rows) // 2])  # ends inside a row
    try:
        drawn = until(lambda: ask(url, "figures", run="running")[1], lambda answer: "verdict" in answer)
        assert 10 < sum(drawn["steps"]["steps"]) < 40
    finally:
        shutil.rmtree(running)


def test_a_run_with_links_in_it_is_not_read(
    url: str, logs: Path, ask: Callable[..., Any], until: Callable[..., Any]
) -> None:
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


def test_looking_leaves_the_log_directory_as_it_was(url: str, logs: Path, ask: Callable[..., Any]) -> None:
    def tree() -> dict[str, int]:
        return {str(path): path.lstat().st_mtime_ns for path in logs.rglob("*")}

    before = tree()
    for run in ("before", "after"):
        assert ask(url, "figures", run=run, trace="rank-0/window-0.pt.trace.json.gz")[0] == 200

    assert tree() == before


def test_a_log_directory_that_cannot_be_written_is_shown_like_any_other(
    logs: Path, tmp_path: Path, tensorboard: Callable[..., Any], get: Callable[..., Any], ask: Callable[..., Any]
) -> None:
    # Root writes where nobody may, unless it starts without that power.
    through = ["setpriv", "--bounding-set", "-dac_override"] if os.geteuid() == 0 else []
    locked = shutil.copytree(logs / "before", tmp_path / "locked" / "before").parent
    for path in (locked, *locked.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert subprocess.run([*through, "touch", str(locked / "new")], capture_output=True, check=False).returncode != 0

    trace = "rank-0/window-0.pt.trace.json.gz"
    with tensorboard(locked, tmp_path / "place", through=through) as url:
        assert [run["name"] for run in ask(url, "runs")[1]["runs"]] == ["before", "before/tb"]
        assert ask(url, "figures", run="before")[1]["steps"]["wall_ns"]
        assert ask(url, "figures", run="before", trace=trace)[1]["timeline"]["lanes"]
        served = get(url, f"/data/plugin/perfkit/trace?run=before&trace={quote(trace)}")[1]
    assert served == (logs / "before" / trace).read_bytes()


def test_what_the_tab_cannot_import_leaves_tensorboard_running(
    logs: Path, tmp_path: Path, tensorboard: Callable[..., Any], get: Callable[..., Any]
) -> None:
    with tensorboard(logs, tmp_path, broken="perfkit.integrations.tensorboard.log_directory") as url:
        tabs = json.loads(get(url, "/data/plugins_listing")[1])

    assert "perfkit" not in tabs
    assert tabs["scalars"]["enabled"]
    assert "The tab perfkit could not be loaded (ModuleNotFoundError" in (tmp_path / "tensorboard.log").read_text()


def test_a_tensorboard_without_what_the_tab_needs_goes_on_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.plugins import base_plugin

    from perfkit.integrations.tensorboard.plugin import TabLoader

    monkeypatch.delattr(base_plugin, "FrontendMetadata")

    assert TabLoader().load(base_plugin.TBContext(logdir="logs")) is None


def test_a_second_installation_of_the_tab_is_left_out() -> None:
    from tensorboard.plugins import base_plugin

    from perfkit.integrations.tensorboard.plugin import TabLoader

    assert TabLoader().load(base_plugin.TBContext(logdir="logs")).plugin_name == "perfkit"
    assert TabLoader().load(base_plugin.TBContext(logdir="logs", plugin_name_to_instance={"perfkit": None})) is None
