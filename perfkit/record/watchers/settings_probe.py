"""Settings of torch and of the optimizers as they are between steps: read from time to time, never changed.

A setting that is on for some steps only (``with detect_anomaly():``) is off again when the run ends, so settings are
read where steps end: a few microseconds, at most once in ten steps.
"""

from __future__ import annotations

import heapq
import statistics
import sys
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch

from perfkit import _env
from perfkit._code_owner import own_work
from perfkit._location import Location
from perfkit._raised_signals import errors_dropped
from perfkit.record.hooks.constructions import made_at
from perfkit.record.other_devices import trained_on
from perfkit.record.program_values import is_tensor, unseen, without_modes
from perfkit.record.samplers.source_lookup import find_calls, find_padding, user_files
from perfkit.record.stepped_optimizers import SteppedOptimizers
from perfkit.record.watchers.double_arrays import find_double_arrays, names_of_doubles
from perfkit.record.watchers.machine_speed import MachineSpeed
from perfkit.record.watchers.step_memory import peak_resident_bytes
from perfkit.record.windows import torch_profiler
from perfkit.run.records import (
    DOUBLES,
    EXPENSIVE_CALLS,
    MODELS,
    PADDING,
    PARAMETRIZATIONS,
    RANK_SLICE,
    OptimizerFacts,
)

#: Functions and arguments that are searched in the user's source, so that a finding names the line.
_CALLS = (
    "set_detect_anomaly",
    "detect_anomaly",
    "use_deterministic_algorithms",
    "deterministic",
    "set_num_threads",
    "zero_grad",
    "set_to_none",
    # It refuses sparse gradients, which a table of embeddings has by an argument.
    "clip_grad_norm_",
    "Embedding",
    "EmbeddingBag",
    "collate_fn",
    "DataLoader",
    # What a rank trains on, and what processes share.
    RANK_SLICE,
    "DistributedSampler",
    "batch_sampler",
    "Manager",
    # How a model of transformers computes attention.
    "attn_implementation",
    "_attn_implementation",
    "from_pretrained",
    "from_config",
    # Generation without a cache of keys and values.
    "use_cache=False",
    # A profiler that the program runs itself.
    "with_stack",
    "profile_memory",
    "record_shapes",
    "emit_nvtx",
    "profile",
    # Activation checkpointing of transformers' models.
    "gradient_checkpointing",
    "gradient_checkpointing_enable",
    *EXPENSIVE_CALLS,
    # Modules that compute their weight.
    *PARAMETRIZATIONS,
    # Data in float64, as numpy makes it.
    "double",
    "float64",
    # Lightning's and Hugging Face's Trainers.
    "Trainer",
    "train_dataset",
    "TrainingArguments",
    "HfArgumentParser",
    "ModelCheckpoint",
    "save_steps",
    "precompute_ref_log_probs",
    "save_strategy",
    "every_n_train_steps",
    "eval_steps",
    "eval_strategy",
    "evaluation_strategy",
    "val_check_interval",
    "check_val_every_n_epoch",
    "compute_metrics",
    "preprocess_logits_for_metrics",
    "dataloader_num_workers",
    "dataloader_pin_memory",
    "dataloader_persistent_workers",
    "optim",
    "full_determinism",
)
#: Repetitions of a measurement between two steps.
_TRIES = 5
#: Readings at which costs are measured: 50 ms apart or more, so that another process does not disturb all of them.
_MEASURED_READINGS = 8
#: Readings at which the machine's speed is measured: two milliseconds in all, of runs that may be over in a second.
_SPEED_READINGS = 3
#: The minimum of numbers that torch gives a thread (at::internal::GRAIN_SIZE), and the maximum of threads that are
#: measured: 64 MB.
_GRAIN = 32_768
_MAX_THREADS = 512
#: Readings between two looks at the states of optimizers, tensors that are looked at, and elements of each: about
#: 0.1 ms in 0.4 s.
_STATE_EVERY, _STATES, _STATE_ELEMENTS = 8, 4, 2048
#: Optimizers that are described, and shapes of matrices of each: an embedding table is among the largest ones.
_MAX_OPTIMIZERS, _SHAPES = 16, 16


class SettingsProbe:
    """What was read of the settings between steps. ``optimizers`` are those that have stepped; its owner adds to it."""

    def __init__(self, optimizers: SteppedOptimizers) -> None:
        self._optimizers = optimizers
        #: Types of the devices that are not CUDA's and hold what is trained.
        self.other_devices: tuple[str, ...] = ()
        self._readings = 0
        #: Cost -> its measurements, ns.
        self._costs: dict[str, list[int]] = {}
        #: Setting -> readings at which it was on.
        self._on: Counter[str] = Counter()
        self._values: dict[str, str] = {}
        self._gradient: weakref.ref[Any] | None = None
        self._keeps_gradients: bool | None = None
        self._described: dict[int, OptimizerFacts] = {}
        self._speed = MachineSpeed()
        self._calls: dict[str, tuple[Location, ...]] | None = None
        #: Whether the lines that pad are among them.
        self._padding = False
        #: The names of the program's tensors in float64.
        self._doubles: frozenset[str] = frozenset()
        #: The classes of models whose lines are among them.
        self._models: frozenset[str] = frozenset()

    @own_work
    def read(self, *, ordinary: bool = False) -> None:
        """Read the settings between two steps.

        ``ordinary`` is whether an ordinary step follows: windows of perfkit are closed then, so that a torch profiler
        which is on is the program's own.
        """
        self._readings += 1
        anomaly = torch.is_anomaly_enabled()
        on = {
            "torch.anomaly_enabled": anomaly,
            "torch.deterministic": torch.are_deterministic_algorithms_enabled(),
            "torch.fill_uninitialized": getattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
            "cudnn.benchmark": torch.backends.cudnn.benchmark,
            "torch.profiler_on": ordinary and torch_profiler.running(),
            "cudnn.deterministic": torch.backends.cudnn.deterministic,
        }
        self._on.update({name: bool(is_on) for name, is_on in on.items()})
        threads = torch.get_num_threads()
        self._values["torch.num_threads"] = str(threads)
        self._check_gradient()
        if self._readings <= _MEASURED_READINGS:
            cores = _env.cores()
            if not _env.cuda_in_use() and threads > cores:
                self._add_cost("threads.beyond_ns", _cost_of_threads(threads, cores))
            if anomaly:
                self._add_cost("anomaly.stack_ns", _stack_cost())
            self._measure_speed(threads)
        if self._readings == 1:
            with errors_dropped():
                self._doubles = names_of_doubles()
        if self._readings % _STATE_EVERY == 0 and not _env.cuda_in_use():
            self._look_at_states()
        self._optimizers.let_go()
        for optimizer in self._optimizers[:_MAX_OPTIMIZERS]:
            if id(optimizer) not in self._described and len(self._described) < _MAX_OPTIMIZERS:
                self._described[id(optimizer)] = _describe(optimizer)
                self.other_devices = trained_on(self._optimizers)

    def _measure_speed(self, threads: int) -> None:
        if self._readings <= _SPEED_READINGS and not _env.cuda_in_use():
            self._speed.read(threads)
            self._values |= self._speed.times
        if self._readings == _SPEED_READINGS:
            self._speed.end()

    def _add_cost(self, name: str, ns: int) -> None:
        """Keep the median of the measurements: a disturbance lasts longer than one reading."""
        self._costs.setdefault(name, []).append(ns)
        self._values[name] = str(round(statistics.median(self._costs[name])))

    @unseen
    def _look_at_states(self) -> None:
        """Find the share of subnormal numbers in the largest states of the optimizers, in a sample of each."""
        with errors_dropped(), without_modes():  # optimizers of any kind, with states of their own
            states = (
                one
                for optimizer in self._optimizers[:_MAX_OPTIMIZERS]
                for state in optimizer.state.values()
                for one in state.values()
                if is_tensor(one) and one.dtype is torch.float32 and one.device.type == "cpu" and one.is_contiguous()
            )
            samples = [
                one.detach().flatten()[:: max(1, one.numel() // _STATE_ELEMENTS)]
                for one in heapq.nlargest(_STATES, states, key=torch.Tensor.numel)
            ]
            if samples:
                sizes = torch.cat(samples).abs()
                share = ((sizes > 0) & (sizes < torch.finfo(torch.float32).tiny)).float().mean()
                self._values["optimizer.subnormal_share"] = f"{share.item():.4f}"

    @unseen
    def _check_gradient(self) -> None:
        """Check whether a gradient is the same tensor as at the last reading: then it was not set to None since."""
        groups = self._optimizers[0].param_groups if self._optimizers else ()
        gradient = next((p.grad for group in groups for p in group["params"] if p.requires_grad), None)
        if self._gradient is not None:
            self._keeps_gradients = gradient is not None and self._gradient() is gradient
        self._gradient = weakref.ref(gradient) if gradient is not None else None

    # -- results

    @property
    def settings(self) -> dict[str, str]:
        """Settings as they were in most readings, and the process's peak of memory; empty before the first."""
        if self._readings and (peak := peak_resident_bytes()) is not None:
            self._values["peak_resident_bytes"] = str(peak)
        return {name: str(2 * count > self._readings) for name, count in self._on.items()} | self._values

    @property
    def optimizers(self) -> tuple[OptimizerFacts, ...]:
        """The optimizers that have stepped."""
        return tuple(
            msgspec.structs.replace(one, keeps_gradients=self._keeps_gradients) for one in self._described.values()
        )

    def calls(self, padded: bool, models: frozenset[str]) -> dict[str, tuple[Location, ...]]:
        """The user's lines that change settings, those that pad if batches are ``padded``, and those that make models.

        ``models`` are the names of their classes. Each is searched once.
        """
        if self._calls is None and self._readings:
            kinds = _kinds_of_arguments()
            files = user_files()
            found = find_calls({*_CALLS, *kinds}, files)
            if arrays := find_double_arrays(files):
                found["from_numpy"] = arrays
            if self._doubles and (arrays := find_double_arrays(files, self._doubles)):
                found[DOUBLES] = arrays
            of_kinds = tuple(at for kind in kinds for at in found.pop(kind, ()))
            self._calls = found | ({"TrainingArguments": of_kinds} if of_kinds else {})
        if padded and self._calls is not None and not self._padding:
            self._padding = True
            if padding := find_padding(user_files()):
                self._calls = self._calls | {PADDING: padding}
        if self._calls is not None and models != self._models:
            self._models = models
            made_at = find_calls(models, user_files())
            self._calls = self._calls | {MODELS: tuple(at for name in sorted(made_at) for at in made_at[name])}
        return self._calls or {}


def _kinds_of_arguments() -> list[str]:
    """The names of transformers' TrainingArguments and of the classes derived from it, where it is loaded."""
    kinds = [getattr(sys.modules.get("transformers.training_args"), "TrainingArguments", None)]
    for kind in kinds:
        kinds += kind.__subclasses__() if kind is not None else []
    return list(dict.fromkeys(kind.__name__ for kind in kinds if kind is not None))


@unseen
def _describe(optimizer: Any) -> OptimizerFacts:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    defaults = getattr(optimizer, "defaults", {})
    return OptimizerFacts(
        kind=type(optimizer).__name__,
        tensors=len(parameters),
        elements=sum(p.numel() for p in parameters),
        dtypes=tuple(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
        foreach=defaults.get("foreach"),
        fused=defaults.get("fused"),
        sparse_is_exact=_sparse_is_exact(optimizer),
        matrices=_matrices(parameters),
        created_at=made_at(optimizer),
    )


def _matrices(parameters: Sequence[Any]) -> dict[str, int]:
    """The shapes of the largest matrices, and how many there are of each."""
    shapes = Counter(tuple(one.shape) for one in parameters if one.dim() == 2)
    largest = sorted(shapes, key=lambda shape: -shape[0] * shape[1])[:_SHAPES]
    return {f"{rows}x{columns}": shapes[rows, columns] for rows, columns in largest}


def _sparse_is_exact(optimizer: Any) -> bool:
    """Whether an element with a gradient of zero keeps its weight and its state in torch's class."""
    states = {torch.optim.Adagrad: (), torch.optim.SGD: ("momentum",)}.get(type(optimizer))
    return states is not None and not any(
        group.get(name, 0) for group in optimizer.param_groups for name in ("weight_decay", *states)
    )


def _stack_cost() -> int:
    """What it takes to format the stack, as anomaly detection does for every node of a graph, in ns."""
    return _median_ns(lambda: traceback.format_list(traceback.extract_stack()))


@unseen
def _cost_of_threads(threads: int, cpus: int) -> int:
    """What an operation on all threads of the process takes beyond its work on the available CPUs, in ns.

    Each thread adds to the minimum of numbers that torch gives it; the same on one thread is the work of one.
    """
    measured = min(threads, _MAX_THREADS)
    numbers = torch.zeros(measured * _GRAIN)
    one_ns = _median_ns(lambda: numbers[:_GRAIN].add_(1))
    return max(0, _median_ns(lambda: numbers.add_(1)) - one_ns * measured // cpus)


def _median_ns(work: Callable[[], Any]) -> int:
    times = []
    for _ in range(_TRIES):
        started_ns = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - started_ns)
    return statistics.median_high(times)


def device_bytes() -> dict[str, str]:
    """The memory of each device, by its number; empty on a CPU."""
    if not _env.cuda_in_use():
        return {}
    return {
        f"cuda:{index}.total_bytes": str(torch.cuda.get_device_properties(index).total_memory)
        for index in range(torch.cuda.device_count())
    }
