"""Syncs: where the host waits for the device, by source line.

detector            perfkit.detect_syncs, and the life of one detection
arguments           what detect_syncs accepts
results             what a detection found: events, notes, tables, budgets
device_tensors      the tensors of the modules and optimizers in ``device_of=``
cuda_debug_mode     source of syncs on CUDA: torch's sync debug mode, at no cost per operation
dry_run/            source of syncs without a GPU: the program runs on the CPU with real values
sync_log            what both sources report to: rows by line and operation
sync_expression     which expression of a line synced, for syncs that no wrapper names
advice              what to change, by operation
allow               perfkit.allow_sync: syncs that are intended
"""

from __future__ import annotations

from perfkit.syncs.allow import allow_sync
from perfkit.syncs.detector import SyncDetector, detect_syncs

__all__ = ["SyncDetector", "allow_sync", "detect_syncs"]
