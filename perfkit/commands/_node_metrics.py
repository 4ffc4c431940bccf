"""The option --node-metrics: a file or folder of DCGM's, which the commands that look at nodes read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from perfkit.trace.dcgm import NodeMetrics

node_metrics_option = click.option(
    "--node-metrics",
    metavar="FILE|FOLDER",
    help="Read clocks, heat, power and errors of the GPUs from here, in place of perfkit's own samples: the output of "
    "dcgmi dmon, or text of dcgm-exporter (also .gz); of several nodes, a folder with a file named after each host.",
)


def read_metrics(path: str | None) -> NodeMetrics | None:
    """What the file or folder holds; None where none was named.

    Raises:
        TraceError: it cannot be read, or is not of DCGM.
    """
    if path is None:
        return None
    # Loads readers that `perfkit --help` does not need.
    from perfkit.trace.dcgm import read_node_metrics

    return read_node_metrics(path)
