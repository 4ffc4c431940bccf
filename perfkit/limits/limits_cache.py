"""The limits of this machine, measured once per number of threads and torch version, and kept in the user's cache.

A cache that is damaged or cannot be written is never an error: the limits are then not known, or not kept.
"""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

import msgspec

from perfkit import _env
from perfkit._background import BackgroundError, BackgroundProcess
from perfkit.run.atomic import write_atomically
from perfkit.run.merging import merged
from perfkit.run.records import MachineLimits, Rank

#: Version of how limits are measured; those of another one are measured again.
METHOD = 7
#: Seconds for one measurement: 5 of its own, the import of torch, and as long again for a busy machine.
_TIMEOUT_S = 20.0
#: Limits are some kB.
_MAX_BYTES = 2**20
#: After an attempt that failed or was disturbed, the next one comes no earlier: the machine may always be busy, and a
#: user may have many short runs.
_AGAIN_NS = 3600 * 10**9


def limits_file(torch: str, threads: int) -> Path:
    """The file of this machine's limits with this version of torch and number of threads."""
    name = f"{socket.gethostname()}-{_env.cpu_name()}-torch-{torch}-threads-{threads}"
    return _env.cache_folder() / "limits" / (re.sub(r"[^\w.+-]+", "-", name)[:200] + ".json")


def cached_limits(torch: str, threads: int) -> MachineLimits | None:
    """The limits of this machine if they were measured before; measures nothing."""
    return _read(limits_file(torch, threads), torch, threads)


def _read(file: Path, torch: str, threads: int) -> MachineLimits | None:
    try:
        with file.open("rb") as opened:
            found = msgspec.json.decode(opened.read(_MAX_BYTES), type=MachineLimits)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    known = (found.method, found.host, found.cpu, found.torch, found.threads)
    return found if known == (METHOD, socket.gethostname(), _env.cpu_name(), torch, threads) else None


def all_cached_limits() -> list[MachineLimits]:
    """What was measured on this machine with the installed torch, by number of threads."""
    torch = _env.package_version("torch") or ""
    found = []
    for file in sorted((_env.cache_folder() / "limits").glob("*.json")):
        match = re.search(r"-threads-(\d{1,5})\.json$", file.name)
        limits = _read(file, torch, int(match[1])) if match else None
        if limits is not None:
            found.append(limits)
    return sorted(found, key=lambda limits: limits.threads)


def cached_limits_of(rank: Rank) -> MachineLimits | None:
    """The limits of the machine that recorded this rank, if it is this one; measures nothing."""
    threads = rank.settings.get("torch.num_threads", "")
    if rank.host != socket.gethostname() or "torch" not in rank.versions or not threads.isdecimal():
        return None
    return cached_limits(rank.versions["torch"], int(threads))


def is_due(torch: str, threads: int) -> bool:
    """Whether a run that ends here should measure these limits; if so, it is for this caller alone to do it.

    Not where they are known and were measured undisturbed; nor within an hour of the last attempt, which may have
    failed on a busy machine; nor where the cache cannot be written, because each run would measure again.
    """
    known = cached_limits(torch, threads)
    if known is not None and not known.disturbed:
        return False
    attempt = limits_file(torch, threads).with_suffix(".attempt")
    try:
        attempt.parent.mkdir(parents=True, exist_ok=True)
        if attempt.exists() and time.time_ns() - attempt.stat().st_mtime_ns < _AGAIN_NS:
            return False
        attempt.write_bytes(b"")
    except OSError:
        return False
    return True


def measure_and_keep(torch: str, threads: int) -> MachineLimits:
    """Measure this machine in a process of its own, for some seconds; keep the better of this and what was cached.

    Raises:
        BackgroundError: the process failed, took too long, or its torch is another one than ``torch``.
    """
    process = BackgroundProcess("perfkit.limits.measuring", "--threads", str(threads), timeout_s=_TIMEOUT_S)
    try:
        limits = msgspec.json.decode(process.output(), type=MachineLimits)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BackgroundError(f"it printed something else than limits: {error}") from error
    except KeyboardInterrupt:
        process.kill()
        raise
    if limits.torch != torch:
        raise BackgroundError(f"it found torch {limits.torch}, the program uses {torch}")
    known, file = cached_limits(torch, threads), limits_file(torch, threads)
    if known is not None:
        limits = merged(limits, known)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, msgspec.json.encode(limits))
    except OSError:
        pass  # a cache that cannot be written: these limits are good once
    return limits
