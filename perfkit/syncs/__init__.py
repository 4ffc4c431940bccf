"""Syncs: where the host waits for the device, by line. On CUDA at no cost; on a CPU as a dry run.

`detector` is what users call; `cuda_path` and `dry_run` are its two sources, which report through
`ledger`; `table` says which ops sync, `advice` what to change, `allow` which syncs are meant. The dry run's
parts, each above the ones it uses: `dry_run`, then `dry_ops`, `dry_calls` and `dry_shims`, then `dry_state`.
"""

from __future__ import annotations

from perfkit.syncs.allow import allow_sync
from perfkit.syncs.detector import SyncDetector, detect_syncs

__all__ = ["SyncDetector", "allow_sync", "detect_syncs"]
