"""A window's summary beside the training curves: the verdict as a text, and its times as scalars.

``python -m perfkit.integrations.tensorboard.summary DIAGNOSIS LOGDIR STEP`` writes one in a process of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

from perfkit import Diagnosis
from perfkit.integrations.tensorboard.writers import Writer, scalars_of, to_markdown, writer_for


def own_writer(logdir: Path) -> Writer:
    """A SummaryWriter on a folder; it starts a thread."""
    from torch.utils.tensorboard import SummaryWriter  # traces are written without tensorboard, too

    return writer_for(SummaryWriter(str(logdir)))


def write_summary(writer: Writer, diagnosis: Diagnosis, step: int) -> None:
    """Write what a window's diagnosis says at a step."""
    writer.text("perfkit/verdict", to_markdown(diagnosis), step)
    writer.scalars(scalars_of(diagnosis), step)
    writer.flush()


if __name__ == "__main__":
    file, folder, number = sys.argv[1:]
    write_summary(own_writer(Path(folder)), Diagnosis.from_json(Path(file).read_text()), int(number))
