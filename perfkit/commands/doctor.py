"""``perfkit doctor``: what is installed, what works with it, and what perfkit has patched."""

from __future__ import annotations

import importlib
import importlib.util
import operator
import re
import sys

from rich.table import Table

from perfkit import _env, _patches
from perfkit._version import VERSION
from perfkit.errors import PerfkitError
from perfkit.reports.console import stdout_console

#: Frameworks with an adapter: package, the oldest version that is tested, what works with it.
FRAMEWORKS = (
    ("lightning", (2, 2), "lightning", "perfkit.integrations.lightning"),
    ("pytorch-lightning", (2, 2), "lightning", "perfkit.integrations.lightning"),
    ("transformers", (4, 46), "huggingface", "perfkit.integrations.huggingface"),
    ("accelerate", (0, 26), "huggingface", "the plain loop: prof.steps(accelerator.prepare(loader))"),
    ("tensorboard", (2, 16), "tensorboard", "perfkit.integrations.tensorboard"),
)

#: Names of Lightning, in either package, that perfkit uses beyond the documented ones: profiler actions are named after
#: these classes.
_LIGHTNING = (
    ("profilers.profiler", "Profiler.profile", "ProfilerCallback"),
    ("loops.training_epoch_loop", "_TrainingEpochLoop.advance", "the steps of ProfilerCallback"),
    ("loops.evaluation_loop", "_EvaluationLoop.run", "the steps of ProfilerCallback in validate and test"),
    ("loops.prediction_loop", "_PredictionLoop.run", "the steps of ProfilerCallback in predict"),
)

#: Private names that perfkit uses, and what is lost without each.
PRIVATE_NAMES = (
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter", "the data phase of loops without steps()"),
    ("torch.utils.data._utils.worker", "_worker_loop", "the lines of loader workers"),
    ("torch.autograd", "_profiler_enabled", "windows while another profiler runs"),
    ("torch.autograd.profiler", "_run_on_profiler_start", "ranges in the torch profiler"),
    ("torch._C._autograd", "_record_function_with_args_enter", "ranges in the torch profiler"),
    ("torch.autograd.graph", "_engine_run_backward", "the dry run of detect_syncs"),
    ("torch._C", "_dispatch_tls_set_dispatch_key_included", "the dry run of detect_syncs"),
    *((f"lightning.pytorch.{module}", name, what) for module, name, what in _LIGHTNING),
    *((f"pytorch_lightning.{module}", name, what) for module, name, what in _LIGHTNING),
    ("transformers", "Trainer.get_batch_samples", "the steps of the Hugging Face ProfilerCallback"),
    ("transformers", "Trainer._prepare_inputs", "its phase transfer"),
    ("transformers", "Trainer._maybe_log_save_evaluate", "the end of its steps after an epoch"),
    ("transformers", "Trainer._save_checkpoint", "its phase checkpoint"),
)


def doctor() -> int:
    """Show what is installed, what works with it, and what perfkit has patched in this process."""
    console = stdout_console()
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, fact in facts():
        table.add_row(name, fact)
    console.print(table)
    return 0


def facts() -> list[tuple[str, str]]:
    """The lines of doctor: (name, state)."""
    lines = [("perfkit", f"{VERSION}, Python {sys.version.split()[0]}")]
    if _env.disabled():
        lines.append(("PERFKIT_DISABLE", "is set: perfkit is off in every process with this environment"))
    lines.append(("torch", _torch()))
    lines.append(("GPU", _gpu()))
    lines.append(("NVML", _nvml()))
    lines.append(("NVTX", _nvtx()))
    lines += [(package, _framework(package, oldest, extra, works)) for package, oldest, extra, works in FRAMEWORKS]
    tools: tuple[tuple[_env.NsightName, str], ...] = (
        ("nsys", "timelines of the whole system"),
        ("ncu", "one kernel in depth"),
    )
    for tool, what in tools:
        path, why = _env.find_nsight(tool)
        lines.append((tool, path or f"{why} ({what})"))
    if _env.package_version("torch") is not None:
        lines += _private_names()
        lines += [("" if at else "patched now", name) for at, name in enumerate(patched() or ["nothing"])]
    return lines


def _torch() -> str:
    version = _env.package_version("torch")
    if version is None:
        return "not installed: traces can be read, training cannot be recorded (pip install 'perfkit[torch]')"
    try:
        _env.require_torch("doctor")
    except PerfkitError as error:
        return f"{version}, but it cannot be imported: {error.__cause__}"
    return version


def _gpu() -> str:
    names = _env.devices()
    if names:
        return ", ".join(names)
    return (
        "none: host time is measured, syncs are found by a dry run"
        if "torch" in sys.modules
        else "unknown: torch cannot be imported"
    )


def _nvml() -> str:
    """Whether node health can be recorded."""
    if _env.package_version("nvidia-ml-py") is None:
        return "nvidia-ml-py is not installed: node health is not recorded (pip install 'perfkit[nvml]')"
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        driver = nvml.nvmlSystemGetDriverVersion()
        nvml.nvmlShutdown()
    except Exception as error:  # noqa: BLE001 - a missing or broken driver raises anything
        return f"cannot be used here: {error}"
    return f"ready: clocks, throttling, temperature and other programs are recorded (driver {driver})"


def _nvtx() -> str:
    if _env.package_version("nvtx") is None:
        return "the nvtx package is not installed: ranges reach only the torch profiler and perfkit's recorder"
    if (tool := _env.nsight_tool()) is not None and _env.nvtx_tool_attached():
        return f"{tool} is attached"
    return "a tool is attached" if _env.nvtx_tool_attached() else "ready; no tool is attached"


def _framework(package: str, oldest: tuple[int, int], extra: str, works: str) -> str:
    version = _env.package_version(package)
    pip = f"pip install -U 'perfkit[{extra}]'"
    if version is None:
        return f"not installed ({pip})"
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < oldest:
        return f"{version} is too old: {'.'.join(map(str, oldest))} or later is needed ({pip})"
    return f"{version}, works: {works}"


def _private_names() -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for module, name, what in PRIVATE_NAMES:
        package = module.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            continue
        try:
            operator.attrgetter(name)(importlib.import_module(module))
        except (ImportError, AttributeError):
            fact = f"MISSING: {what} will not work with this {package}"
        else:
            fact = "found"
        lines.append(("" if lines else "private names", f"{module}.{name}: {fact}"))
    return lines


def patched() -> list[str]:
    """What perfkit has patched in this process."""
    from perfkit import ranges  # importing it registers an observer of the torch profiler

    found = [*ranges.installed(), *_patches.installed()]
    op_kernels = sys.modules.get("perfkit.syncs.dry_run.op_kernels")
    if op_kernels is not None and op_kernels.registered():
        found.append("permanent: kernels under a dispatch key of torch's that nothing else uses (after a dry run)")
    return found
