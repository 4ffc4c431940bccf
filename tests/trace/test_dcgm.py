"""Files of DCGM: what `dcgmi dmon` and dcgm-exporter write is the health of each GPU; what is left out is named."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import pytest

from perfkit.errors import TraceError
from perfkit.run.records import MinMedianMax
from perfkit.trace.dcgm import NodeMetrics, read_node_metrics
from perfkit.trace.dcgm.node_metrics import MAX_READINGS
from tests.trace.dcgm_texts import dmon, exposition

BUSY = {"SMCLK": 1755, "SMMAX": 1980, "DVCCTR": 4, "TMPTR": 61, "POWER": "512.500", "GPUTL": 97, "FBUSD": 1024}
HOT = BUSY | {"SMCLK": 900, "DVCCTR": 0x48, "TMPTR": 90}


def read(tmp_path: Path, text: str, name: str = "node0.txt") -> NodeMetrics:
    file = tmp_path / name
    file.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return read_node_metrics(file)


@pytest.mark.parametrize("name", ["node0.txt", "node0.txt.gz"])
def test_dmon_has_a_sample_of_each_gpu_in_each_row_and_no_times(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, dmon([("GPU 0", BUSY), ("GPU 1", HOT), ("GPU 0", BUSY), ("GPU 1", BUSY)]), name)

    assert [gpu.name.number for gpu in found.gpus] == [0, 1]
    health = found.gpus[1].health()
    assert (health.source, health.taken, health.max_sm_mhz) == ("DCGM", 2, 1980)
    assert health.sm_mhz == MinMedianMax(900, 1755, 1755)
    assert health.power_w == MinMedianMax(512.5, 512.5, 512.5)
    assert health.memory_bytes == MinMedianMax(2**30, 2**30, 2**30)
    assert health.reasons == {"hw_slowdown": 1, "hw_thermal_slowdown": 1, "sw_power_cap": 1}
    assert [(sample.at_ns, sample.sm_mhz, sample.temperature_c) for sample in health.samples] == [
        (None, 900, 90),
        (None, 1755, 61),
    ]
    assert found.notes == (f"the values of {name} have no times and are taken for those of the whole run",)


def test_a_value_that_dmon_does_not_have_is_not_zero_and_columns_keep_their_places(tmp_path: Path) -> None:
    rows = [
        ("GPU 0", {"SMCLK": 1755, "DVCCTR": None, "TMPTR": 61, "DVNAM": "NVIDIA H100 80GB HBM3"}),
        ("GPU 0", {"SMCLK": 1755, "TMPTR": 63, "DVNAM": "NVIDIA H100 80GB HBM3"}),
    ]
    health = read(tmp_path, dmon(rows)).gpus[0].health()

    assert health.temperature_c == MinMedianMax(61, 63, 63)
    assert health.power_w is None
    assert [sample.reasons for sample in health.samples] == [None, None]


def test_the_header_is_repeated_and_blanks_may_have_changed(tmp_path: Path) -> None:
    text = dmon([("GPU 0", BUSY)] * 90)
    assert text.count("#Entity") == 3
    assert read(tmp_path, text).gpus[0].health().taken == 90
    spaced = "\n".join(" ".join(line.split()) for line in text.splitlines())
    assert read(tmp_path, spaced).gpus == read(tmp_path, text).gpus


def test_errors_of_the_card_are_read(tmp_path: Path) -> None:
    health = read(tmp_path, dmon([("GPU 0", BUSY | {"XIDER": 79, "EDVTL": 2})])).gpus[0].health()
    assert (health.xid, health.ecc_errors) == (79, 2)


def test_fields_parts_and_damage_that_are_skipped_are_named(tmp_path: Path) -> None:
    rows = [("GPU 0", BUSY | {"TENSO": "0.250"}), ("GPU-I 0", BUSY), ("GPU 0", BUSY | {"SMCLK": "17x5"})]
    notes = read(tmp_path, dmon(rows)).notes
    assert "node0.txt: fields that perfkit does not read were skipped: TENSO" in notes
    assert "node0.txt: values of parts and of other devices were skipped: GPU-I" in notes
    assert "node0.txt: 1 damaged lines or values were skipped" in notes


def test_the_exporters_text_names_host_card_and_model_and_scrapes_follow_each_other(tmp_path: Path) -> None:
    values = {"DCGM_FI_DEV_SM_CLOCK": 1755.0, "DCGM_FI_DEV_GPU_TEMP": 61.0, "DCGM_FI_DEV_FB_USED": 1024.0}
    hot = values | {"DCGM_FI_DEV_SM_CLOCK": 900.0, "DCGM_FI_DEV_GPU_TEMP": 90.0}
    found = read(tmp_path, exposition([(None, {0: values, 1: values}), (None, {0: values, 1: hot})], "node7"))

    assert [(gpu.name.host, gpu.name.number) for gpu in found.gpus] == [("node7", 0), ("node7", 1)]
    health = found.gpus[1].health()
    assert (health.name, health.taken) == ("NVIDIA H100 80GB HBM3", 2)
    assert health.uuid == "00000001-7e50-af0b-85f9-6d2b8b8d1c11"
    assert [sample.sm_mhz for sample in health.samples] == [1755, 900]
    # The exporter's default counters have no reasons.
    assert any("add 112 to dmon's fields" in note for note in found.notes)


@pytest.mark.parametrize(
    "name",
    [
        ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"),
        ("DCGM_FI_DEV_GPU_TEMP_CELSIUS", "DCGM_FI_DEV_BOARD_POWER_WATTS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"),
    ],
)
def test_names_of_older_and_newer_releases_are_one(tmp_path: Path, name: tuple[str, str, str]) -> None:
    health = read(tmp_path, exposition([(None, {0: {name[0]: 61, name[1]: 300.5, name[2]: 64}})])).gpus[0].health()
    assert health.temperature_c == MinMedianMax(61, 61, 61)
    assert health.power_w == MinMedianMax(300.5, 300.5, 300.5)
    assert health.reasons == {"hw_thermal_slowdown": 1}


def test_values_with_times_may_come_field_by_field_and_in_any_order(tmp_path: Path) -> None:
    clock, heat = "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_TEMP"
    order = [(1_760_000_002_000, clock, 900), (1_760_000_001_000, clock, 1755), (1_760_000_002_000, heat, 90)]
    text = "\n".join(f'{name}{{gpu="0",UUID="GPU-a",Hostname="n"}} {value} {at}' for at, name, value in order)
    [gpu] = read(tmp_path, text).gpus
    assert [(one.unix_ns, one.values) for one in gpu.readings] == [
        (1_760_000_001 * 10**9, {"sm_mhz": 1755}),
        (1_760_000_002 * 10**9, {"sm_mhz": 900, "temperature_c": 90}),
    ]
    assert gpu.has_times
    seconds = text.replace("002000", "002.000").replace("001000", "001.000")  # as OpenMetrics writes them
    assert read(tmp_path, seconds).gpus[0].readings == gpu.readings


def test_values_that_mean_that_there_is_none_are_left_out(tmp_path: Path) -> None:
    values = {"DCGM_FI_DEV_SM_CLOCK": 1755, "DCGM_FI_DEV_XID_ERRORS": 9223372036854775794, "DCGM_FI_DEV_GPU_TEMP": 61}
    text = exposition([(None, {0: values})]) + 'DCGM_FI_DEV_POWER_USAGE{gpu="0"} NaN\n'
    health = read(tmp_path, text).gpus[0].health()
    assert (health.xid, health.power_w) == (None, None)


def test_of_a_long_file_readings_are_kept_evenly(tmp_path: Path) -> None:
    [gpu] = read(tmp_path, dmon([("GPU 0", BUSY | {"TMPTR": at}) for at in range(5 * MAX_READINGS)])).gpus
    heat = [reading.values["temperature_c"] for reading in gpu.readings]
    assert MAX_READINGS / 2 <= len(heat) <= MAX_READINGS
    assert {after - before for before, after in itertools.pairwise(heat)} == {heat[1] - heat[0]}
    assert heat[-1] > 4.9 * MAX_READINGS
    assert len(gpu.health().samples) <= 100


def test_in_a_folder_a_file_without_a_host_is_of_the_host_in_its_name_and_others_are_reported(tmp_path: Path) -> None:
    (tmp_path / "node7.cluster.txt").write_text(dmon([("GPU 0", BUSY)]))
    (tmp_path / "other.prom").write_text(exposition([(None, {0: {"DCGM_FI_DEV_SM_CLOCK": 1}})], "node8"))
    (tmp_path / "README").write_text("nothing of DCGM\n")
    found = read_node_metrics(tmp_path)
    assert [gpu.name.host for gpu in found.gpus] == ["node7.cluster", "node8"]
    assert any("README was not written by DCGM" in note for note in found.notes)
    assert (
        "the values of node7.cluster.txt, other.prom have no times and are taken for those of the whole run"
        in found.notes
    )


@pytest.mark.parametrize(
    "text",
    ["", "# a comment\n", 'node_cpu_seconds_total{cpu="0"} 5\n', '{"traceEvents": []}', "\0\1\2" * 1000],
)
def test_other_files_are_refused_with_what_to_record(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceError, match=r"was not written by DCGM: perfkit reads what `dcgmi dmon -e 100,101,112"):
        read(tmp_path, text)


def test_a_file_without_a_field_that_is_read_names_those_it_has(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="not read: TENSO"):
        read(tmp_path, dmon([("GPU 0", {"TENSO": "0.25"})]))
    with pytest.raises(TraceError, match="does not exist"):
        read_node_metrics(tmp_path / "nowhere")
    with pytest.raises(TraceError, match="no file with values"):
        read_node_metrics(Path(__file__).parent.parent / "questions")


def test_a_file_that_is_cut_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    data = gzip.compress(dmon([("GPU 0", BUSY | {"TMPTR": at % 97}) for at in range(5000)]).encode())
    (tmp_path / "cut.gz").write_bytes(data[: len(data) // 2])
    found = read_node_metrics(tmp_path / "cut.gz")
    assert found.gpus[0].health().taken > 100
    assert any("gzip stream is cut" in note for note in found.notes)


def test_a_long_line_and_bytes_that_are_no_text_end_nothing(tmp_path: Path) -> None:
    text = "x" * 300_000 + "\n" + dmon([("GPU 0", BUSY)]) + "y" * 300_000
    (tmp_path / "long.txt").write_bytes(text.encode() + b"\xff\xfe\n")
    assert read_node_metrics(tmp_path / "long.txt").gpus[0].health().taken == 1
