"""Public pairs of recordings with and without loader workers, for bench_replay.py: they are in the history of
github.com/pytorch/kineto (tb_plugin/samples), by the ids of their git objects."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from perfkit.diagnosis import diagnose
from perfkit.replay._answering import open_recording
from perfkit.replay.what_if import what_if


class PublicPair(NamedTuple):
    """Two recordings of ResNet-50, with 0 and with 4 loader workers."""

    name: str
    before: str
    after: str


#: The first one is in the shared traces: two numbers of `hide_loader` were chosen on it. None of the others took part.
PAIRS = (
    PublicPair("autograd API", "4a9c9ae521a1f8191798905b447f044bbedb2f98", "69df6923094e010e1ff1e1f4d7fb8590f09eb841"),
    PublicPair("profiler API", "d3fb4076d72dbbc52465ddc04fa83b849bf48435", "29dba67d0725d842b951f29a4cbe14e29cfb766b"),
    PublicPair("January 2021", "2d19c6342350710d5783d27a77c10445e8d8604e", "7bd25bd008f78fa05a7708de74cb675ecdfd465c"),
    PublicPair(
        "June 2021, first", "769c3eb7843639ac114d183e07304b6d44931452", "234cf25df597fb99765ee2a49978f5f3c4bbbaf9"
    ),
    PublicPair(
        "June 2021, second", "383a066433725823a57b0dfd047d718b65d4741b", "3e633b5fde9d2e99ea8b07a67771183b7011bbc5"
    ),
)


def rows(kineto: Path, folder: Path) -> Iterator[str]:
    """A row of a table for each pair, from a clone with its history; recordings are written to the folder."""
    for number, pair in enumerate(PAIRS):
        files = [folder / f"{number}-{workers}.pt.trace.json.gz" for workers in (0, 4)]
        for file, blob in zip(files, pair[1:], strict=True):
            command = ["git", "-C", str(kineto), "cat-file", "-p", blob]
            file.write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
        yield row(pair.name, *files)


def row(name: str, before: Path, after: Path) -> str:
    """The prediction from one recording, held against the other; its mean step, and its median one."""
    answer = what_if(before, hide_loader=True, against=after)
    assert answer.measured_ns is not None
    loader = sum(one.ns for one in answer.path if one.owner == "loader")
    naive = (answer.step_ns - loader) / answer.measured_ns - 1
    median = float(np.median(open_recording(after).base.steps_ns[1:]))
    loader_finding = next(one for one in diagnose(before).findings if one.rule == "input-bound")
    saving = f"{(loader_finding.saving_low_ns or 0) / 1e6:.1f}-{(loader_finding.saving_high_ns or 0) / 1e6:.1f} ms"
    return (
        f"| {name} | {answer.step_ns / 1e6:.1f} ms | {answer.expected_ns / 1e6:.1f} ms "
        f"({answer.low_ns / 1e6:.1f}-{answer.high_ns / 1e6:.1f}) | {answer.measured_ns / 1e6:.1f} ms "
        f"| {answer.expected_ns / answer.measured_ns - 1:+.1%} | {median / 1e6:.1f} ms "
        f"| {answer.expected_ns / median - 1:+.1%} | {naive:+.1%} | {saving} |"
    )
