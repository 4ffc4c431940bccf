"""``perfkit doctor``: what is installed, what works with it, what perfkit has patched, and this machine's limits."""

from __future__ import annotations

import importlib
import importlib.util
import operator
import pkgutil
import re
import sys

import click
from rich.table import Table

from perfkit import _env, _patches
from perfkit._version import VERSION
from perfkit.commands._machine_limits import limits_note, limits_of_machine, limits_table
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
    (
        "loops.training_epoch_loop",
        "_TrainingEpochLoop._batches_that_stepped",
        "the Trainer's own step numbers in its loggers",
    ),
    ("loops.evaluation_loop", "_EvaluationLoop.run", "the steps of ProfilerCallback in validate and test"),
    ("loops.prediction_loop", "_PredictionLoop.run", "the steps of ProfilerCallback in predict"),
)

#: Private names that perfkit uses, by module, and what does not work without each. An attribute of an object is named
#: after the class that sets it in its ``__init__``. Of names with | between them one is enough.
PRIVATE_NAMES = (
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter", "the data phase of loops without steps()"),
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter._index_sampler", "the batch sizes of loaders"),
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter._num_yielded", "how often a loop begins a loader anew"),
    (
        "torch.utils.data.dataloader",
        "_BaseDataLoaderIter._next_index",
        "whether a loader gives the same samples in each epoch",
    ),
    (
        "torch.utils.data.dataloader",
        "_BaseDataLoaderIter._dataset _BaseDataLoaderIter._num_workers _BaseDataLoaderIter._pin_memory"
        " _BaseDataLoaderIter._collate_fn _BaseDataLoaderIter._persistent_workers"
        " _MultiProcessingDataLoaderIter._prefetch_factor",
        "the settings of loaders",
    ),
    ("torch.utils.data._utils.worker", "_worker_loop", "the lines of loader workers"),
    ("torch.serialization", "_save _legacy_save", "saved-views"),
    ("torch", "UntypedStorage._cdata", "product-order, resize-order and unread-results"),
    ("torch._C", "_storage_Use_Count", "product-order and resize-order of what the loop's own function computes"),
    ("torch", "Tensor._use_count", "product-order and resize-order of what a graph has saved"),
    ("torch", "Tensor._backward_hooks", "product-order and resize-order of results whose gradient is asked for"),
    ("torch", "Tensor._typed_storage", "unread-results of tensors that are saved"),
    ("torch.autograd", "_profiler_enabled", "windows while another profiler runs"),
    ("torch.autograd", "_disable_profiler", "switching off a torch profiler that fails to stop"),
    ("torch.profiler.python_tracer", "_prefix_regex", "the files of the torch profiler's Python frames"),
    # Torch 2.4 does not warn, and has none.
    ("torch.profiler.profiler", "_warn_once|profile", "windows without a warning of torch's own"),
    (
        "torch.autograd.profiler",
        "_run_on_profiler_start _run_on_profiler_stop _is_profiler_enabled",
        "ranges in the torch profiler",
    ),
    ("torch._C", "_DisableTorchDispatch", "cheap samples of tensors in the steps in which operations are counted"),
    (
        "torch._C._autograd",
        "_record_function_with_args_enter _record_function_with_args_exit",
        "the cheap path of ranges in the torch profiler",
    ),
    (
        "torch._C._dynamo.eval_frame",
        # Torch 2.4 and 2.6 have skip_code alone.
        "_FrameAction|skip_code _FrameExecStrategy|skip_code set_code_exec_strategy|skip_code",
        "ranges in compiled functions without graph breaks",
    ),
    ("torch.nn", "Module._call_impl Module._compiled_call_impl", "annotate_modules and the times of modules"),
    ("torch.nn", "Module._wrapped_call_impl", "flame graphs without torch's own calls of a module"),
    ("torch.distributed._tensor", "DTensor._local_tensor", "the memory of sharded parameters"),
    ("torch.nn.modules.module", "_forward_unimplemented", "leaving out modules that are never called"),
    ("torch._dynamo.eval_frame", "OptimizedModule._orig_mod", "the modules inside torch.compile(model)"),
    ("torch._dynamo.eval_frame", "cached_backends", "the calls of models where nothing is compiled"),
    ("torch._dynamo.utils", "counters _compilation_metrics graph_break_reasons", "compilations and graph breaks"),
    ("torch.cuda.memory", "_record_memory_history _dump_snapshot", "memory snapshots"),
    ("torch._C", "_cuda_isHistoryEnabled", "leaving alone a memory history that the program records"),
    ("torch._C", "_cuda_getAllocatorBackend", "a note where the device's allocator has no memory snapshots"),
    ("torch._C", "_cuda_attach_out_of_memory_observer", "snapshots of out-of-memory errors"),
    ("torch", "Tensor._version Tensor._base", "calls of modules with the same input"),
    ("torch", "_C._functions.AccumulateGrad._sequence_nr", "graphs that grow from step to step"),
    ("torch._ops", "OpOverload._overloadpacket", "floating point operations of a step"),
    ("torch.utils._python_dispatch", "TorchDispatchMode", "floating point operations of a step, and work repeated"),
    ("torch._C", "_current_graph_task_id", "the syncs of a backward on a GPU"),
    ("torch._C", "_cuda_get_sync_debug_mode _cuda_set_sync_debug_mode", "detect_syncs without a CUDA context"),
    ("torch.autograd.graph", "_engine_run_backward", "the dry run of detect_syncs"),
    ("torch.autograd", "Variable._execution_engine", "how long DistributedDataParallel waits for other ranks"),
    ("torch.distributed", "_broadcast_coalesced", "how long buffers are waited for in DistributedDataParallel"),
    ("torch.nn.parallel", "DistributedDataParallel._get_ddp_logging_data", "what DistributedDataParallel measures"),
    ("torch._ops", "OpOverload._op OpOverload._schema", "the dry run of detect_syncs, and work repeated in every step"),
    ("torch.overrides", "_get_current_function_mode_stack _pop_mode _push_mode", "the dry run of detect_syncs"),
    ("torch.utils._device", "_device_constructors CURRENT_DEVICE", "the dry run of detect_syncs"),
    ("torch.cuda", "_lazy_init _exchange_device _maybe_exchange_device", "the dry run of scripts that request cuda"),
    (
        "torch._C",
        "_dispatch_tls_set_dispatch_key_included _dispatch_key_parse _dispatch_get_all_op_names"
        " _dispatch_has_kernel_for_dispatch_key _get_schema _group_tensors_by_device_and_dtype"
        " _functorch.is_functorch_wrapped_tensor _functorch.get_unwrapped _functorch.peek_interpreter_stack"
        " TensorBase.untyped_storage DisableTorchFunction _current_autograd_node",
        "the dry run of detect_syncs",
    ),
    ("torch._C", "DisableTorchFunction", "programs with function modes of their own"),
    *((f"lightning.pytorch.{module}", name, what) for module, name, what in _LIGHTNING),
    *((f"pytorch_lightning.{module}", name, what) for module, name, what in _LIGHTNING),
    ("transformers", "Trainer.get_batch_samples", "the steps of the Hugging Face ProfilerCallback"),
    ("transformers", "Trainer._prepare_inputs", "its phase transfer"),
    ("transformers", "Trainer._maybe_log_save_evaluate", "the end of its steps after an epoch"),
    ("transformers", "Trainer._save_checkpoint", "its phase checkpoint"),
)


@click.command
def doctor() -> int:
    """Show what is installed, what works with it, what perfkit has patched, and what this machine could do."""
    console = stdout_console()
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    # Names are read here to be copied: none is cut.
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, fact in facts():
        table.add_row(name, fact)
    console.print(table)
    if limits := limits_of_machine():
        console.print()
        console.print(limits_table(limits))
        console.print(limits_note(limits))
    return 0


def facts() -> list[tuple[str, str]]:
    """The lines of doctor: (name, state)."""
    lines = [("perfkit", f"{VERSION}, Python {sys.version.split()[0]}")]
    if _env.disabled():
        lines.append(("PERFKIT_DISABLE", "is set: perfkit is off in every process with this environment"))
    lines.append(("torch", _torch()))
    lines.append(("GPU", _gpu()))
    lines.append(("NVML", _nvml()))
    lines.append(("energy", _energy()))
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
    torch = _env.torch_if_loaded()
    if torch is not None and torch.cuda.is_available():
        torch.cuda.init()
    if names := _env.devices():
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


def _energy() -> str:
    """Which energy per step is recorded, and why that of the processor is not."""
    # The watchers are a part of recording, which other commands do without.
    from perfkit.record.watchers.processor_energy import find_counters

    counters, refused = find_counters()
    gpu = "of a GPU by NVML (Volta and later)"
    if counters:
        found = f"of the processor by RAPL ({', '.join(counter.name for counter in counters)}), {gpu}"
        return f"{found}; {refused}" if refused else found
    return f"{gpu}; not of the processor: {refused}"


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
    """How many names of each package were found, and a line for each that was not."""
    counts: dict[str, list[int]] = {}
    missing = []
    for module, names, what in PRIVATE_NAMES:
        package = module.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            continue
        for name in names.split():
            if name.startswith("_cuda_") and not _env.cuda_in_use():
                continue  # only builds for CUDA have it
            found = any(_exists(module, one) for one in name.split("|"))
            counts.setdefault(package, [0, 0])[found] += 1
            if not found:
                missing.append(f"{module}.{name} is MISSING: {what} will not work with this {package}")
    lines = [f"{package}: {found} of {lost + found} found" for package, (lost, found) in counts.items()]
    return [("" if at else "private names", line) for at, line in enumerate([*lines, *missing])]


def _exists(module: str, name: str) -> bool:
    owner, _, attribute = name.rpartition(".")
    try:
        # Not each module of torch._C can be imported by its own name.
        found = pkgutil.resolve_name(module)
        found = operator.attrgetter(owner)(found) if owner else found
        set_by_objects = getattr(getattr(found, "__init__", None), "__code__", None)
        return hasattr(found, attribute) or attribute in getattr(set_by_objects, "co_names", ())
    except (ImportError, AttributeError):
        # transformers' classes raise ImportError at any attribute where torch is older than they need.
        return False


def patched() -> list[str]:
    """What perfkit has patched in this process."""
    from perfkit import ranges  # importing it registers an observer of the torch profiler

    found = [*ranges.installed(), *_patches.installed()]
    op_kernels = sys.modules.get("perfkit.syncs.dry_run.op_kernels")
    if op_kernels is not None and op_kernels.registered():
        found.append("permanent: kernels under a dispatch key of torch's that nothing else uses (after a dry run)")
    return found
