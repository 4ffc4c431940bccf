"""The steps that are recorded for memory: every allocation with its op, module and line, and what tensors hold.

torch's profiler reports the allocations of the host and of devices alike. It reports no free of host memory that was
allocated before it began, so the first of these steps is not measured: what a step replaces is then known. The lines of
the last step are followed. On CUDA the allocator's own history of the same steps is kept as a snapshot of torch.

None of these steps is part of a timing. Modules have ranges and their outputs are looked at, unless something was
compiled: a hook would compile it again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from perfkit import _clock, _env
from perfkit._code_owner import own_work
from perfkit._raised_signals import errors_dropped
from perfkit.ranges import dynamo, module_ranges
from perfkit.ranges.module_ranges import ModuleRanges
from perfkit.record.options import Options
from perfkit.record.program_values import is_tensor, unseen, values_in
from perfkit.record.watchers.compilations import compiled_graphs
from perfkit.record.watchers.held_memory import (
    StorageTable,
    add_gradients,
    held_storages,
    live_models,
    named_parameters,
)
from perfkit.record.watchers.step_memory import resident_bytes
from perfkit.record.windows import torch_profiler
from perfkit.record.windows.lines_step import LineTimeline
from perfkit.record.windows.memory_snapshot import MemoryRecorder
from perfkit.record.windows.model_ranges import CATEGORY
from perfkit.record.windows.trace_files import BackgroundWriter, ExpectedTrace, compress_trace
from perfkit.run.atomic import write_atomically
from perfkit.run.file_names import lines_path, peak_record_path
from perfkit.run.rank_recording import RankRecording
from perfkit.run.records import HeldStorages, MemorySteps

#: Steps that are measured: three show whether steps differ, as those of batches of different sizes do.
MEASURED = 3
#: With a pause, because a profiler must not begin where another has just stopped (`WindowController`), and a step in
#: which everything that a step replaces is allocated once.
STEPS = 2 + MEASURED
#: Maximum size of the trace before compression, as of a step for lines.
_MAX_BYTES = 256 * 2**20
#: Modules with a range; a model of a thousand layers has some 10,000, of which the outermost are enough.
_MAX_MODULES = 1_000
#: Outputs of modules that are kept, 100 bytes each.
_MAX_OUTPUTS = 20_000


_TAKEN = "memory was not recorded: the program's own torch profiler is running"


class MemoryStepsRecorder:
    """Records `STEPS` steps, once: `begin`, then `advance` before each further one, then `end`."""

    def __init__(self, options: Options, recording: RankRecording, optimizers: list[Any]) -> None:
        self._options = options
        self._recording = recording
        self._optimizers = optimizers
        self._profiler: Any = None
        self._lines = LineTimeline()
        self._number = 0
        self._step = 0
        self._undo: list[Callable[[], None]] = []
        self._names: dict[int, str] = {}
        self._modules: dict[int, str] = {}
        self._roots: set[int] = set()
        self._outputs = 0
        self._record = MemorySteps(steps=())
        self._held: list[HeldStorages] = []
        self._snapshot: MemoryRecorder | None = None
        self._writer = BackgroundWriter()
        #: Whether the steps were recorded to their end, or somebody was told why not.
        self.settled = False

    def begin(self, step: int) -> str | None:
        """The pause, step ``step``, begins; returns why nothing can be recorded, or None."""
        if torch_profiler.taken():
            self.settled = True
            return _TAKEN
        self._step, self._number = step, 0
        return None

    @own_work
    def advance(self) -> None:
        """The next step begins."""
        self._step += 1
        self._number += 1
        if self._number == 1:
            self._start()
            return
        if self._profiler is None:
            return
        self._profiler.step()
        if self._number == 2:
            self._record = msgspec.structs.replace(self._record, rss_bytes=resident_bytes())
            self._look_at_modules()
        if self._number in (2, STEPS - 1):
            self._add(held_storages(self._optimizers), is_whole=True)
        if self._number == STEPS - 1:
            self._lines.start()

    def _start(self) -> None:
        if torch_profiler.taken():  # since `begin`, a step before
            self.settled = True
            self._recording.note(_TAKEN)
            return
        activities = self._options.activities
        if activities is None and _env.nsight_tool() is not None:
            # CUPTI serves one at a time; allocations are reported without it.
            activities = (torch.profiler.ProfilerActivity.CPU,)
        flags = {"profile_memory": True, "record_shapes": False}
        try:
            self._add_ranges()
            self._undo.append(register_optimizer_step_pre_hook(self._before_optimizer).remove)
            if _env.cuda_in_use() and "memory" not in self._options.recorders:
                snapshot = self._snapshot = MemoryRecorder(self._recording.memory_file, self._recording.note)
                snapshot.activate(0)
            self._profiler = torch_profiler.start(
                self._step, lambda number: "record", lambda profiler: None, activities, flags, self._give_way
            )
        except BaseException as error:
            self.settled = True
            self._restore()
            if not isinstance(error, Exception):
                raise
            self._recording.trouble("recording memory", error)

    def _add_ranges(self) -> None:
        """Put a range around each module of the trained models, outermost first."""
        models = live_models(self._optimizers)
        self._names = {id(parameter): name for name, parameter in named_parameters(models)}
        if compiled_graphs():
            self._recording.note("memory has no modules: torch.compile has compiled a part of the program")
            return
        chosen: list[tuple[str, Any]] = []
        chains: dict[str, tuple[str, ...]] = {}
        for prefix, root in models:
            named = [
                (f"{prefix}{name}" if one is not root else name, one)
                for name, one in module_ranges.callable_modules(root)
            ]
            chosen += [(name, one) for name, one in named if not module_ranges.annotated(one)]
            chains.update(_chains(root, prefix))
            self._roots.add(id(root))
        chosen = sorted(chosen, key=lambda one: one[0].count("."))[:_MAX_MODULES]
        self._modules = {id(module): name for name, module in chosen}
        self._record = msgspec.structs.replace(self._record, modules=tuple(name for name, _ in chosen), chains=chains)
        self._undo.append(ModuleRanges(chosen, CATEGORY, None).remove)

    def _look_at_modules(self) -> None:
        if self._modules:
            # Without keyword arguments: torch (2.13) leaves a part of a hook for those in place when it is removed.
            handle = torch.nn.modules.module.register_module_forward_hook(self._after_module)
            self._undo.append(handle.remove)

    @unseen
    def _after_module(self, module: Any, args: Any, output: Any) -> None:
        name = self._modules.get(id(module))
        if name is None or self._outputs >= _MAX_OUTPUTS:
            return
        table = StorageTable()
        with errors_dropped():  # a hook's error would end the training
            for value in values_in(output):
                if is_tensor(value):
                    table.add(value, "activations", name, is_output=True)
            if id(module) in self._roots:
                for value in values_in(args):
                    if is_tensor(value):
                        table.add(value, "inputs", name)
        self._outputs += 1
        self._add(table.rows())

    @unseen
    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        with errors_dropped():  # see above
            table = StorageTable()
            add_gradients(table, [optimizer], self._names)
            self._add(table.rows())

    dynamo.leave_out(_after_module, _before_optimizer)

    def _add(self, storages: tuple[Any, ...], *, is_whole: bool = False) -> None:
        self._held.append(HeldStorages(time_ns=_clock.now_ns(), storages=storages, is_whole=is_whole))

    @own_work
    def _give_way(self) -> None:
        """The program starts a profiler of its own: nothing of these steps is kept."""
        self.settled = True
        self._recording.note("memory was not recorded: the program started a torch profiler of its own")
        with suppress(Exception):  # the program's profiler must start
            self.end(whole=False)

    @own_work
    def end(self, *, whole: bool) -> None:
        """The steps are over, and nothing is on afterwards; what is not ``whole`` is not kept."""
        profiler, self._profiler = self._profiler, None
        self._lines.stop()
        if profiler is None:
            self._restore()
            return
        try:
            if whole:
                self._add(held_storages(self._optimizers), is_whole=True)
        finally:
            try:
                torch_profiler.stop(profiler)
            finally:
                self._restore(keep=whole)
        if whole:
            self.settled = True
            last = self._step
            perf_ns, unix_ns = _clock.clock_pair()
            held = [msgspec.structs.replace(one, time_ns=one.time_ns + unix_ns - perf_ns) for one in self._held]
            record = msgspec.structs.replace(
                self._record, steps=tuple(range(last - MEASURED + 1, last + 1)), held=tuple(held)
            )
            self._writer.start(functools.partial(self._write, profiler, record))
        self._held = []

    def _restore(self, *, keep: bool = False) -> None:
        while self._undo:
            with suppress(Exception):  # one that fails must not keep the others in place
                self._undo.pop()()
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.end(0, early=not keep)
            if not keep:
                snapshot.discard(0)

    def _write(self, profiler: Any, record: MemorySteps) -> None:
        path = self._recording.peak_file()
        try:
            problem = self._write_files(path, profiler, record)
        except Exception as error:  # noqa: BLE001 - a full disk must not end training
            self._recording.trouble("writing what was recorded for memory", error)
            return
        if problem is not None:
            self._recording.trouble("the trace of memory", problem)

    def _write_files(self, path: Path, profiler: Any, record: MemorySteps) -> str | None:
        advice = "memory is recorded in fewer ops with a smaller model or batch"
        plain = torch_profiler.export(profiler, path, _MAX_BYTES, advice)
        try:
            if self._lines.refused is None:
                self._lines.write(lines_path(path))
            write_atomically(peak_record_path(path), msgspec.json.encode(record))
        except BaseException:
            plain.unlink(missing_ok=True)
            raise
        steps = range(record.steps[0], record.steps[-1] + 1)
        return compress_trace(plain, path).problem(ExpectedTrace(steps, kernels=False))

    def wait(self) -> None:
        """Wait until the files are written."""
        self._writer.wait()


def _chains(root: Any, prefix: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The sequences and lists of modules in a model: (name, names of its children that can be called)."""
    callable_ = {id(module) for _, module in module_ranges.callable_modules(root)}
    for name, module in root.named_modules():
        if isinstance(module, torch.nn.Sequential | torch.nn.ModuleList):
            children = [
                f"{prefix}{name}.{child}" if name else f"{prefix}{child}"
                for child, one in module.named_children()
                if id(one) in callable_
            ]
            if len(children) > 1:
                yield f"{prefix}{name}" if name else type(root).__name__, tuple(children)
