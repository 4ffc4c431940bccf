"""Facts of this process: versions, devices, rank, settings that change speed, attached tools.

Everything here is read, never changed. Only `require_torch` imports torch; the other functions read ``sys.modules`` and
return None or nothing where torch is not loaded.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from perfkit.errors import MissingDependency

#: Environment variables that change how fast a training runs; recorded in rank.json when set.
_SETTINGS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "LOCAL_WORLD_SIZE",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "TORCH_COMPILE_DISABLE",
    "TORCHDYNAMO_DISABLE",
    "NCCL_DEBUG",
    "TORCH_LOGS",
)

#: Packages whose version goes into rank.json where installed.
PACKAGES = (
    "perfkit",
    "torch",
    "numpy",
    "nvtx",
    "lightning",
    "pytorch-lightning",
    "transformers",
    "accelerate",
    "tensorboard",
)


#: A commit of git, SHA-1 or SHA-256; and how much of a file that names one is read.
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_GIT_BYTES = 4096

NsightName = Literal["nsys", "ncu"]

#: Names each program of Nsight where it is not on the PATH.
NSIGHT_VARIABLES: dict[NsightName, str] = {"nsys": "PERFKIT_NSYS", "ncu": "PERFKIT_NCU"}


#: Names the folder of caches in place of the platform's.
CACHE_VARIABLE = "PERFKIT_CACHE_DIR"


def cache_folder() -> Path:
    """Where this user's caches belong: `CACHE_VARIABLE`, else the platform's place.

    Linux and others: ``$XDG_CACHE_HOME``, else ``~/.cache`` (XDG Base Directory Specification, which ignores relative
    paths). macOS: ``~/Library/Caches``. Windows: ``%LOCALAPPDATA%``.
    """
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    home = Path(os.path.expanduser("~"))
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "perfkit" / "Cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "perfkit"
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else home / ".cache") / "perfkit"


def current_folder() -> Path:
    """The folder that this process is in; where it was deleted, no path can be relative to it."""
    try:
        return Path.cwd()
    except OSError:
        return Path()


def disabled() -> bool:
    """Whether ``PERFKIT_DISABLE=1`` switches perfkit off for the whole process."""
    return os.environ.get("PERFKIT_DISABLE", "") not in ("", "0")


def nvtx_tool_attached() -> bool:
    """Whether a tool that receives NVTX started this process (nsys sets this variable in the child)."""
    return "NVTX_INJECTION64_PATH" in os.environ


def find_nsight(name: NsightName) -> tuple[str | None, str]:
    """(path or None, why it is not found): its environment variable names it, else it is looked up on the PATH."""
    variable = NSIGHT_VARIABLES[name]
    if named := os.environ.get(variable):
        return shutil.which(named), f"{variable} names {named}, which is no program"
    return shutil.which(name), f"{name} is not on the PATH, nor in {variable}"


def nsight_tool() -> NsightName | None:
    """The tool of Nsight that started this process; None where none did.

    Each is recognized by a variable that it sets in its child: observed with nsys 2022.4, for ncu from reports of its
    users only.
    """
    if "NSYS_PROFILING_SESSION_ID" in os.environ:
        return "nsys"
    if "NV_COMPUTE_PROFILER_PERFWORKS_DIR" in os.environ or "NV_NSIGHT_INJECTION_PORT_BASE" in os.environ:
        return "ncu"
    return None


def torch_if_loaded() -> ModuleType | None:
    """torch if the program has imported it, else None."""
    return sys.modules.get("torch")


def require_torch(what: str) -> ModuleType:
    """Import torch for a live part of perfkit.

    Raises:
        MissingDependency: torch is not installed; the message names ``what`` needs it and the pip command.
    """
    try:
        import torch  # perfkit never imports torch before the program uses a part that needs it
    except ImportError as error:
        raise MissingDependency(f"{what} needs torch: pip install 'perfkit[torch]'") from error
    return torch


def _integer(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, ""))
    except ValueError:
        return default


#: Rank and number of ranks in a process that a script under ``perfkit run`` has started.
_spawned: tuple[int, int] = (0, 1)


def set_spawned(rank: int, ranks: int) -> None:
    """Make this process one of ``ranks`` that a script has started; what a launcher or torch says goes before it."""
    global _spawned
    _spawned = rank, ranks


def rank() -> int:
    """Rank of this process in the run, 0 where it is alone; from torchrun's variable, else from torch.distributed."""
    if "RANK" in os.environ:
        return _integer("RANK", 0)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return _spawned[0]


def world_size() -> int:
    """Number of processes of the run."""
    if "WORLD_SIZE" in os.environ:
        return max(1, _integer("WORLD_SIZE", 1))
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return _spawned[1]


def local_rank() -> int:
    """Rank of this process among those on its machine; its rank in the run where no launcher numbers them."""
    return _integer("LOCAL_RANK", _integer("SLURM_LOCALID", rank()))


def cpu_name() -> str:
    """What the machine's processor is called; its architecture where the system does not report a name."""
    try:
        if sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            found = subprocess.run(command, capture_output=True, text=True, timeout=2, check=False).stdout.strip()
        else:
            with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
                found = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
    except (OSError, subprocess.SubprocessError):
        found = ""
    return found or platform.processor() or platform.machine()


def package_version(name: str) -> str | None:
    """The installed version of a package, None where it is absent; does not import it."""
    import importlib.metadata  # 40 ms, which a program that only makes a range does not need

    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    # Not `version` at once: it parses the page on the package that is in this file too, 1 ms for each.
    header = re.match(r"(?:(?!Version:)\S.*\n)*Version: *(\S+)", found.read_text("METADATA") or "")
    return header[1] if header is not None else found.version


def versions() -> dict[str, str]:
    """Versions of Python and of the packages in `PACKAGES` that are installed."""
    found = {name: version for name in PACKAGES if (version := package_version(name)) is not None}
    return {"python": platform.python_version(), **found}


def cuda_in_use() -> bool:
    """Whether the program has started to use CUDA (or ROCm).

    Not ``is_available()``: it makes the driver ready, after which CUDA_VISIBLE_DEVICES changes nothing, and children
    that are forked cannot use CUDA.
    """
    torch: Any = torch_if_loaded()
    if torch is None:
        return False
    # A dry run of syncs replaces it, and tells the program of a device that there is not.
    started = getattr(torch.cuda.is_initialized, "__wrapped__", torch.cuda.is_initialized)
    return bool(started())


def cuda_here() -> bool:
    """Whether torch sees a CUDA device, for what a user requests by name; asks NVML where that is possible."""
    torch: Any = torch_if_loaded()
    return torch is not None and (cuda_in_use() or torch.cuda.device_count() > 0)


def devices() -> list[str]:
    """Names of the CUDA devices that torch sees; empty until the program uses CUDA."""
    if not cuda_in_use():
        return []
    torch: Any = torch_if_loaded()
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def cores() -> int:
    """CPU cores that this process may use; those of the machine where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int | None:
    """The memory that this process may use: the machine's, or the limit of its control group (a container)."""
    try:
        known = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, ValueError, OSError):  # not on this system
        return None
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="ascii") as limit:
                known.append(int(limit.read()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return min(known)


def settings() -> dict[str, str]:
    """Thread counts, precision switches and environment variables that change how fast a training runs."""
    found = {name: os.environ[name] for name in _SETTINGS if name in os.environ}
    found["cpu_count"] = str(os.cpu_count())
    if hasattr(os, "sched_getaffinity"):
        found["cpu_affinity"] = str(len(os.sched_getaffinity(0)))
    if (memory := memory_bytes()) is not None:
        found["memory_bytes"] = str(memory)
    if (tool := nsight_tool()) is not None:
        found["runs under"] = tool
    torch: Any = torch_if_loaded()
    if torch is not None:
        found["torch.num_threads"] = str(torch.get_num_threads())
        found["torch.anomaly_enabled"] = str(torch.is_anomaly_enabled())
        found["torch.deterministic"] = str(torch.are_deterministic_algorithms_enabled())
        found["torch.matmul_precision"] = str(torch.get_float32_matmul_precision())
    return found


def git_commit(*folders: str) -> str | None:
    """The commit checked out in the first of ``folders`` that lies in a git repository; None outside of git.

    With ``-dirty`` where files differ from it, ``-unchecked`` where git did not say so: it is not installed, refuses
    the folder of another user, or takes longer than two seconds, as on a cold network file system.
    """
    found = next(((folder, place) for folder in folders if (place := _git_folder(folder)) is not None), None)
    if found is None:
        return None
    # Without locks git leaves the program's repository as it is: else it notes there which files are unchanged.
    command = ["git", "--no-optional-locks", "-C", found[0], "status", "--porcelain=v2", "--branch"]
    try:
        done = subprocess.run(
            [*command, "--untracked-files=no"], capture_output=True, text=True, errors="replace", timeout=2, check=False
        )
        if done.returncode == 0 and (named := re.search(r"^# branch\.oid ([0-9a-f]+)$", done.stdout, re.MULTILINE)):
            changed = any(not line.startswith("#") for line in done.stdout.splitlines())
            return f"{named[1]}-dirty" if changed else named[1]
    except (OSError, subprocess.SubprocessError):
        pass  # its files are read below
    try:
        commit = _checked_out(found[1])
    except (OSError, ValueError):
        return None
    return f"{commit}-unchecked" if commit is not None else None


def _git_folder(folder: str) -> Path | None:
    """The folder of git's files for the repository around ``folder``."""
    try:
        for parent in (path := Path(os.path.abspath(folder)), *path.parents):
            place = parent / ".git"
            if place.is_dir():
                return place
            if place.is_file():  # of a worktree or a submodule: "gitdir: PATH"
                return parent / _first_line(place).partition("gitdir:")[2].strip()
    except (OSError, ValueError):
        pass  # it was deleted, or cannot be read
    return None


def _checked_out(git: Path) -> str | None:
    """The commit that git's files name as checked out; None: they name none."""
    head = _first_line(git / "HEAD")
    if not head.startswith("ref:"):
        return head if _COMMIT.fullmatch(head) else None
    name = head.removeprefix("ref:").strip()
    # A worktree shares its branches with the repository that it belongs to.
    common = git / (_first_line(git / "commondir") or ".")
    for place in (git, common):
        if _COMMIT.fullmatch(commit := _first_line(place / name)):
            return commit
    with open(common / "packed-refs", encoding="utf-8", errors="replace") as refs:
        return next((line[: -len(name) - 2] for line in refs if line.endswith(f" {name}\n")), None)


def _first_line(file: Path) -> str:
    """The first line of a small file; empty where there is none."""
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            return opened.readline(_GIT_BYTES).strip()
    except OSError:
        return ""
