"""--node-metrics: files of DCGM explain steps that a node slows, and ranks that are late because of their GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfkit.commands import main
from perfkit.measures.ranks.observed_gpus import ObservedGpus, RankPlace
from perfkit.ranks.diagnosing import RanksDiagnosis
from perfkit.run.records import ClockPair, NodeHealth, Phases, Rank, Run, Step, Waits
from perfkit.trace.dcgm import read_node_metrics
from tests.ranks.build import MS, kineto_trace, late_rank_traces
from tests.trace.dcgm_texts import dmon, exposition

START_MS = 1_760_000_000_000
UUID = "8a3c1f2e-0000-0000-0000-000000000001"
COOL = {"SMCLK": 1755, "SMMAX": 1980, "DVCCTR": 0, "TMPTR": 55, "GPUTL": 97}
HOT = COOL | {"SMCLK": 900, "DVCCTR": 0x48, "TMPTR": 91}
FIELDS = {
    "SMCLK": "DCGM_FI_DEV_SM_CLOCK",
    "SMMAX": "DCGM_FI_DEV_MAX_SM_CLOCK",
    "DVCCTR": "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
    "TMPTR": "DCGM_FI_DEV_GPU_TEMP",
    "GPUTL": "DCGM_FI_DEV_GPU_UTIL",
    "XIDER": "DCGM_FI_DEV_XID_ERRORS",
}


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERFKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("perfkit.ranks.mapping.cores", lambda: 1)  # processes take a second each


def named(values: dict[str, Any]) -> dict[str, float]:
    return {FIELDS[name]: value for name, value in values.items()}


def run_of(path: str, forward_ms: list[list[int]], *, uuid: str = "", hosts: tuple[str, ...] = ("node0",)) -> None:
    """A run on GPUs: the forward of each step of each rank; ranks wait for the longest one in their backward."""
    ranks = len(forward_ms)
    Path(path).mkdir()
    run = Run(launch_id="a", command=("train.py",), folder="", world_size=ranks)
    (Path(path) / "run.json").write_bytes(msgspec.json.encode(run))
    for rank, forwards in enumerate(forward_ms):
        folder = Path(path) / f"rank-{rank}"
        folder.mkdir()
        facts = Rank(
            rank=rank,
            launch_id="a",
            host=hosts[rank % len(hosts)],
            pid=7,
            start_ns=0,
            end_ns=1,
            steps=len(forwards),
            devices=("NVIDIA H100 80GB HBM3",),
            clock_pairs=(ClockPair(0, START_MS * MS),),
            node=NodeHealth(uuid=uuid) if uuid else None,
        )
        (folder / "rank.json").write_bytes(msgspec.json.encode(facts))
        rows, at = [], 0
        for step, forward in enumerate(forwards):
            longest = max(each[step] for each in forward_ms)
            rows.append(
                Step(
                    step=step,
                    start_ns=at * MS,
                    wall_ns=(longest + 50) * MS,
                    phases_ns=Phases(forward=forward * MS, backward=(longest - forward + 50) * MS),
                    waited_phases_ns=Waits(backward=(longest - forward) * MS) if ranks > 1 else None,
                )
            )
            at += longest + 50
        (folder / "steps.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(rows))


def diagnosed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["diagnose", *arguments, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def node_finding(found: dict[str, Any]) -> dict[str, Any]:
    return next(dict(one) for one in found["findings"] if one["rule"] == "node-slowed")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    return " ".join(capsys.readouterr().err.split())


def test_scrapes_with_times_show_what_heat_costs_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    run_of("run", [[50] * 300 + [150] * 150], uuid=UUID)  # 30 s cool, 30 s hot
    scrapes = [(START_MS + 1000 * at, {3: named(COOL if at <= 30 else HOT)}) for at in range(1, 60, 2)]
    Path("node.prom").write_text(exposition(scrapes, "a-pod", {3: f"GPU-{UUID}"}))

    found = diagnosed(capsys, "run", "--node-metrics", "node.prom")
    finding = node_finding(found)
    assert "NVIDIA H100 80GB HBM3 of node0 lowers its clocks: hw_thermal_slowdown in 50%" in finding["message"]
    assert "affected steps take 200 ms, others 100 ms" in finding["message"]
    assert finding["cost_ns"] == pytest.approx(100 * MS / 3, rel=0.05)
    assert "DCGM, 30 samples" in str(finding["evidence"])
    # Its UUID is that of the run's device: nothing is assumed.
    assert not any("by number" in sentence for sentence in found["missing"])


def test_times_outside_of_the_run_do_not_count_and_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    run_of("run", [[50] * 100], uuid=UUID)
    Path("node.prom").write_text(exposition([(START_MS + 3_600_000, {0: named(HOT)})], "x", {0: f"GPU-{UUID}"}))
    found = diagnosed(capsys, "run", "--node-metrics", "node.prom")
    assert not [one for one in found["findings"] if one["rule"] == "node-slowed"]
    [sentence] = [one for one in found["missing"] if "was observed from" in one]
    assert "2025-10-09 09:53:20 to 2025-10-09 09:53:20 UTC, not during the steps of rank 0" in sentence


def test_dmon_is_of_the_whole_run_and_its_cost_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    run_of("run", [[50] * 100])
    Path("dcgm.txt").write_text(dmon([("GPU 0", HOT | {"XIDER": 79})] * 20))
    found = diagnosed(capsys, "run", "--node-metrics", "dcgm.txt")
    finding = node_finding(found)
    assert "hw_thermal_slowdown in 100%, hw_slowdown in 100% of 20 samples" in finding["message"]
    assert finding["cost_ns"] is None
    missing = " ".join(found["missing"])
    assert "values of dcgm.txt have no times" in missing
    assert "taken by number: rank 0 GPU 0 of dcgm.txt" in missing
    assert "GPU 0 of dcgm.txt reports XID 79 as its last error" in missing


def test_without_the_option_nothing_of_a_node_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    run_of("run", [[50] * 100], uuid=UUID)
    assert not [one for one in diagnosed(capsys, "run")["findings"] if one["rule"] == "node-slowed"]


def test_a_trace_without_a_run_takes_the_one_gpu_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    kineto_trace(Path("trace.json.gz"), 0)
    Path("dcgm.txt").write_text(dmon([("GPU 5", HOT)] * 20))
    found = diagnosed(capsys, "trace.json.gz", "--node-metrics", "dcgm.txt")
    assert "the GPU lowers its clocks" in node_finding(found)["message"]
    assert any("taken to be GPU 5 of dcgm.txt" in sentence for sentence in found["missing"])
    Path("two.txt").write_text(dmon([("GPU 5", HOT), ("GPU 6", HOT)]))
    assert "two.txt must have the GPU of the trace, which used device 0; it has GPU 5 of two.txt" in refused(
        capsys, "diagnose", "trace.json.gz", "--node-metrics", "two.txt"
    )


def test_a_late_rank_is_late_because_its_gpu_is_hot(capsys: pytest.CaptureFixture[str]) -> None:
    run_of("run", [[50] * 40, [50] * 40, [90] * 40, [50] * 40], hosts=("node0", "node1"))
    Path("nodes").mkdir()
    Path("nodes/node0.txt").write_text(dmon([("GPU 0", COOL), ("GPU 1", HOT)] * 20))
    Path("nodes/node1.txt").write_text(dmon([("GPU 0", COOL), ("GPU 1", COOL)] * 20))

    assert main(["ranks", "run", "--node-metrics", "nodes", "--json"]) == 0
    found = RanksDiagnosis.from_json(capsys.readouterr().out)
    assert (found.findings[0].ranks, found.findings[0].cause) == ((2,), "computing")
    assert found.findings[0].gpu.startswith("the GPU of rank 2 lowers its clocks: hw_thermal_slowdown in 100%")
    assert any("rank 2 GPU 1 of node0" in sentence for sentence in found.missing)

    assert main(["ranks", "run", "--node-metrics", "nodes"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Next: the GPU of rank 2 lowers its clocks" in out
    assert "Have the node's cooling checked" in out

    message = node_finding(diagnosed(capsys, "run", "--node-metrics", "nodes"))["message"]
    assert "(rank 2, for which the others wait) lowers its clocks" in message


def test_a_late_ranks_clock_is_compared_with_those_of_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    run_of("run", [[50] * 40, [90] * 40])
    clocks = {"SMCLK": 1755, "TMPTR": 55}  # the exporter's default counters have no reasons and no maximum
    scrape = {0: named(clocks), 1: named(clocks | {"SMCLK": 1200, "TMPTR": 88})}
    Path("node.prom").write_text(exposition([(None, scrape)] * 5, "node0"))
    assert main(["ranks", "run", "--node-metrics", "node.prom", "--json"]) == 0
    [finding] = RanksDiagnosis.from_json(capsys.readouterr().out).findings
    assert "the GPU of rank 1 runs at 1200 MHz at 88 °C, those of the other ranks at 1755 MHz" in finding.gpu


def test_ranks_of_traces_are_found_by_their_host(capsys: pytest.CaptureFixture[str]) -> None:
    late_rank_traces(Path("traces"))
    Path("node.prom").write_text(exposition([(None, {gpu: named(COOL) for gpu in range(4)})], "node0"))
    assert main(["ranks", "traces", "--node-metrics", "node.prom", "--json"]) == 0
    found = RanksDiagnosis.from_json(capsys.readouterr().out)
    assert any("rank 2 GPU 2 of node0" in sentence for sentence in found.missing)
    assert found.findings[0].gpu == ""  # it waits for its data


def test_ranks_without_a_host_take_the_gpus_of_the_only_host_of_the_file() -> None:
    Path("node.prom").write_text(exposition([(None, {gpu: named(COOL) for gpu in range(2)})], "node7"))
    observed = ObservedGpus(read_node_metrics("node.prom"), [RankPlace(0, ""), RankPlace(1, "")])
    found = observed.gpu_of(1)
    assert found is not None
    assert found.shown == "GPU 1 of node7"


def test_a_late_rank_whose_own_samples_show_heat_needs_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    run_of("run", [[50] * 40, [90] * 40])
    file = Path("run/rank-1/rank.json")
    facts = msgspec.json.decode(file.read_bytes(), type=Rank)
    node = NodeHealth(uuid=UUID, taken=20, reasons={"sw_thermal_slowdown": 15})
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(facts, node=node)))
    assert main(["ranks", "run", "--json"]) == 0
    [finding] = RanksDiagnosis.from_json(capsys.readouterr().out).findings
    assert "the GPU of rank 1 lowers its clocks: sw_thermal_slowdown in 75% of 20 samples" in finding.gpu


@pytest.mark.parametrize("command", ["ranks", "diagnose"])
def test_a_file_without_a_gpu_of_the_run_is_refused_with_what_it_has(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    run_of("run", [[50] * 40, [50] * 40], hosts=("node0", "node1"))
    Path("node9.prom").write_text(exposition([(None, {0: named(COOL)})], "node9"))
    said = refused(capsys, command, "run", "--node-metrics", "node9.prom")
    assert "must have a GPU of the run, whose ranks were on node0, node1; it has GPU 0 of node9 (GPU-0000" in said
    Path("dcgm.txt").write_text(dmon([("GPU 0", COOL)]))
    assert "a folder with one file for each" in refused(capsys, command, "run", "--node-metrics", "dcgm.txt")
    Path("notes.txt").write_text("hello\n")
    assert "notes.txt was not written by DCGM" in refused(capsys, command, "run", "--node-metrics", "notes.txt")
    assert "nowhere does not exist" in refused(capsys, command, "run", "--node-metrics", "nowhere")


def test_a_rank_whose_card_has_another_uuid_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    run_of("run", [[50] * 40], uuid=UUID)
    Path("node0.prom").write_text(exposition([(None, {0: named(HOT)})], "node0"))
    assert "must have a GPU of the run" in refused(capsys, "diagnose", "run", "--node-metrics", "node0.prom")
