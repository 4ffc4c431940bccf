"""Files of node metrics and of ranks that want to harm their reader: none takes long or much, or is elsewhere."""

from __future__ import annotations

import os
import time
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from perfkit.errors import RunError, TraceError
from perfkit.ranks.mapping import map_rank
from perfkit.ranks.rank_columns import RankColumns
from perfkit.ranks.rank_sources import find_ranks
from perfkit.run.records.rank import MAX_RANKS
from perfkit.trace.dcgm import node_metrics, read_node_metrics
from tests.ranks.build import kineto_trace, rank_columns, run_folder
from tests.trace.dcgm_texts import dmon

HEAD = "#Entity         SMCLK      TMPTR\nID                         C\n"
SAMPLE = 'DCGM_FI_DEV_SM_CLOCK{gpu="0",Hostname="node0"} 1755\n'
#: Lines of the longest length that is read; at one of them the time was that of the square of it, 36 s, at another of
#: its product with the rows after it, more than 60 s.
LONG_LINES = {
    "spaces": SAMPLE + "DCGM_A" + " " * 60_000 + "x y z\n",
    "braces": SAMPLE + "DCGM_A{" + "} " * 30_000 + "x y z\n",
    "labels": SAMPLE + "DCGM_FI_DEV_SM_CLOCK{" + 'a="",' * 6_000 + " " * 30_000 + "} 5\n",
    "quotes": SAMPLE + "DCGM_FI_DEV_SM_CLOCK{" + 'a="' * 20_000 + "} 5\n",
    "columns": HEAD + "GPU 0 1755 60\n" + "#Entity " + "A " * 30_000 + "\n" + "GPU 0 5\n" * 3_000,
    "values": HEAD + "GPU 0 1755 60\n" + "GPU 0 " + "5 " * 29_000 + "\n",
}


@pytest.mark.parametrize("name", LONG_LINES)
def test_a_long_line_takes_no_longer_than_its_length(name: str, tmp_path: Path) -> None:
    file = tmp_path / "node0.txt"
    file.write_text(LONG_LINES[name])
    began = time.process_time()

    metrics = read_node_metrics(file)

    assert time.process_time() - began < 5
    assert metrics.gpus[0].readings[0].values["sm_mhz"] == 1755


def test_names_that_are_not_read_take_no_memory(tmp_path: Path) -> None:
    file = tmp_path / "node0.txt"
    names = [f"X{n}" for n in range(100_000)]
    heads = ["#Entity " + " ".join(names[at : at + 500]) + "\n" for at in range(0, len(names), 500)]
    file.write_text(HEAD + "GPU 0 1755 60\n" + "".join(heads))
    tracemalloc.start()

    metrics = read_node_metrics(file)

    assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    tracemalloc.stop()
    assert "were skipped: X0, X1, X10," in metrics.notes[0]


def test_of_many_gpus_each_keeps_some_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_metrics, "MAX_FILE_READINGS", 1_000)
    monkeypatch.setattr(node_metrics, "_MAX_GPUS", 200)
    file = tmp_path / "node0.txt"
    file.write_text(dmon([(f"GPU {n % 250}", {"SMCLK": 1000 + n // 250}) for n in range(250 * 40)]))

    metrics = read_node_metrics(file)

    kept = [len(gpu.readings) for gpu in metrics.gpus]
    assert len(kept) == 200
    assert min(kept) > 1
    assert sum(kept) <= 1_000
    assert "2,000 values were skipped, because the file has too many times or GPUs" in " ".join(metrics.notes)


@pytest.mark.parametrize(
    "damage",
    [
        f'DCGM_FI_DEV_SM_CLOCK{{gpu="1",UUID="{"x" * 501}"}} 900',
        'DCGM_FI_DEV_SM_CLOCK{gpu="1",Hostname="node0"} 900 9999999999999.5',  # seconds: after the year 300,000
    ],
)
def test_a_name_or_a_time_that_no_node_has_is_damage(damage: str, tmp_path: Path) -> None:
    file = tmp_path / "node0.prom"
    file.write_text(SAMPLE + damage + "\n")

    metrics = read_node_metrics(file)

    assert [gpu.name.number for gpu in metrics.gpus] == [0]
    assert "node0.prom: 1 damaged lines or values were skipped" in metrics.notes


def test_a_link_out_of_the_folder_of_nodes_is_not_followed(tmp_path: Path) -> None:
    outside, nodes = tmp_path / "secret.txt", tmp_path / "nodes"
    outside.write_text(dmon([("GPU 0", {"SMCLK": 1234})]))
    nodes.mkdir()
    (nodes / "node0.txt").write_text(dmon([("GPU 0", {"SMCLK": 1755})]))
    (nodes / "node1.txt").symlink_to(outside)

    metrics = read_node_metrics(nodes)

    assert [gpu.name.host for gpu in metrics.gpus] == ["node0"]
    assert any("node1.txt cannot be read: a link leads out of the folder" in note for note in metrics.notes)
    assert read_node_metrics(outside).gpus  # a file that the user names is read


def test_a_folder_of_nodes_that_cannot_be_listed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", denied)

    with pytest.raises(TraceError, match="cannot be read: Permission denied"):
        read_node_metrics(tmp_path)


@pytest.mark.parametrize("claimed", [-1, MAX_RANKS + 1, 2**63, 10**30])
def test_a_rank_that_no_job_has_is_that_of_the_files_name(claimed: int, tmp_path: Path) -> None:
    kineto_trace(tmp_path / "rank-0.json.gz", 0, 2)
    kineto_trace(tmp_path / "rank-1.json.gz", claimed, 2)

    found = find_ranks(tmp_path)

    assert found.ranks == (0, 1)
    assert [map_rank(source).rank for source in found.traces] == [0, 1]


@pytest.mark.parametrize("field", ["rank", "world_size"])
@pytest.mark.parametrize("claimed", [-1, MAX_RANKS + 1, 2**63])
def test_columns_of_a_rank_that_no_job_has_are_refused(field: str, claimed: int) -> None:
    file = msgspec.msgpack.decode(rank_columns().to_bytes())
    file["facts"][field] = claimed

    with pytest.raises(RunError, match="the columns of a rank are damaged"):
        RankColumns.from_bytes(msgspec.msgpack.encode(file))


def test_a_run_record_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    os.truncate(run / "run.json", 10**12)  # it takes no room on the disk

    found = find_ranks(run)

    assert found.ranks == (0, 1)
    assert found.world_size is None


def test_a_run_record_with_more_ranks_than_a_job_can_have_counts_for_none(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace('"world_size":2', f'"world_size":{10**15}'))

    found = find_ranks(run)

    assert found.world_size is None
    assert [map_rank(source).world_size for source in found.rows] == [None, None]
