"""limits.json: what this machine could do, in the folder of its first rank; written after the run's last step."""

from __future__ import annotations

from perfkit import _env
from perfkit._background import BackgroundError
from perfkit._stderr import print_message
from perfkit.limits.limits_cache import cached_limits_of, is_due, measure_and_keep
from perfkit.run.rank_recording import RankRecording
from perfkit.run.rank_writer import write_record


def write_limits(recording: RankRecording, *, may_measure: bool, quiet: bool) -> None:
    """Write the limits from the cache, and measure them once per machine where ``may_measure``.

    Measuring takes some seconds of this process, which only a training on a CPU needs: there the limits are those of
    its device. Of several ranks none measures, because the others would wait for it and disturb it.
    """
    rank = recording.rank
    if _env.local_rank() != 0:
        return
    limits, torch, threads = cached_limits_of(rank), rank.versions.get("torch"), rank.settings.get("torch.num_threads")
    here = may_measure and rank.steps and not rank.devices and _env.world_size() == 1
    if here and torch is not None and threads is not None and is_due(torch, int(threads)):
        if not quiet:
            print_message("measuring what this machine could do: once, some seconds")
        try:
            limits = measure_and_keep(torch, int(threads))
        except BackgroundError as error:
            print_message(f"the limits of this machine were not measured: {error} (perfkit doctor measures them too)")
    if limits is not None:
        write_record(recording.folder, limits)
