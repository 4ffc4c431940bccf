"""All parts that observe the training process while a run records, attached and detached together.

The hooks that feed the clock, the range recorder, the samplers of lines, sync detection on a GPU, memory, garbage
collections, compiled graphs. Each part is detached by itself: none may stay on because another one failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

from perfkit import _env, ranges
from perfkit._raised_signals import leave_to_program
from perfkit.ranges.device_events import GRAPH_CAPTURES, DeviceEvents
from perfkit.ranges.nvtx_bridge import NvtxBridge
from perfkit.ranges.recorder import RangeRecorder
from perfkit.record.clock.device_clock import DeviceClock
from perfkit.record.clock.step_clock import StepClock
from perfkit.record.hooks.batches import BatchWatch
from perfkit.record.hooks.collective_waits import CollectiveWaits
from perfkit.record.hooks.loop_observer import LoopObserver
from perfkit.record.hooks.torch_hooks import LoopHooks
from perfkit.record.samplers.held_locks import find_held_locks
from perfkit.record.samplers.host_reads import find_host_reads
from perfkit.record.samplers.intervals import find_intervals
from perfkit.record.samplers.line_sampler import LineSampler
from perfkit.record.samplers.numpy_draws import find_numpy_draws
from perfkit.record.samplers.source_lookup import find_fillings, find_makers, user_files
from perfkit.record.samplers.training_inputs import find_training_inputs
from perfkit.record.samplers.user_source import hot_places
from perfkit.record.samplers.worker_sampler import WorkerSampler
from perfkit.record.step_plan import StepPlan
from perfkit.record.watchers.cleared_gradients import ClearedGradientWatch
from perfkit.record.watchers.compilations import CompileCounter
from perfkit.record.watchers.evaluation_graphs import EvaluationGraphs
from perfkit.record.watchers.garbage_collections import GarbageWatch
from perfkit.record.watchers.growing_calls import GrowingCalls
from perfkit.record.watchers.node_health import NodeWatch
from perfkit.record.watchers.process_group import ReducedModels
from perfkit.record.watchers.processor_energy import ProcessorEnergy
from perfkit.record.watchers.recomputed_outputs import RecomputedOutputWatch
from perfkit.record.watchers.repeated_closures import RepeatedClosureWatch
from perfkit.record.watchers.self_memory import deep_size
from perfkit.record.watchers.step_memory import watch_memory
from perfkit.record.watchers.unused_gradients import UnusedGradientWatch
from perfkit.record.windows.torch_profiler import PROGRAM_PROFILERS
from perfkit.run.merging import merged_by
from perfkit.run.rank_recording import RankRecording
from perfkit.run.records import EnergyUse, Lines, Loader, NodeHealth, Phase, RangeRow, StepBoundary, Syncs
from perfkit.syncs import SyncDetector, detect_syncs

#: Loaders that are recorded per run, of all its fits.
_MAX_LOADERS = 16
#: What distinguishes ranges.
_RANGE = attrgetter("name", "category", "domain", "thread")


class Attachments:
    """The parts of perfkit that observe the training process.

    ``phase`` returns the phase that a sample belongs to, None where the running step is not timed.
    """

    def __init__(
        self,
        clock: StepClock,
        recording: RankRecording,
        optimizers: Sequence[Any],
        *,
        phase: Callable[[], Phase | None],
    ) -> None:
        self._clock = clock
        self._recording = recording
        self._phase = phase
        self.hooks: LoopObserver | None = None
        self.compiles = CompileCounter()
        self.memory = watch_memory()
        #: None until the program uses a GPU.
        self.node: NodeWatch | None = None
        self._processor_energy = ProcessorEnergy()
        #: Whether what watches a device is attached, and whether syncs on it are to be detected.
        self._on_device = self._detect_cuda = False
        self.batches = BatchWatch(clock)
        self._growing = GrowingCalls(phase, lambda: clock.step_num)
        self.evaluation = EvaluationGraphs()
        self._recomputed = RecomputedOutputWatch(optimizers, lambda: clock.step_num)
        self._repeated_closures = RepeatedClosureWatch(lambda: clock.step_num)
        self.unused = UnusedGradientWatch(optimizers)
        self.cleared = ClearedGradientWatch(optimizers)
        self.garbage = GarbageWatch(clock, recording.trouble)
        self.reduced = ReducedModels()
        self.waits = CollectiveWaits(clock, self.reduced, recording.trouble)
        self.armed: SyncDetector | None = None
        self._sampler: LineSampler | None = None
        self._workers: WorkerSampler | None = None
        self._recorder: RangeRecorder | None = None
        self._nvtx_bridge: NvtxBridge | None = None
        self._loaders_before: tuple[Loader, ...] = ()
        self._boundary_before: StepBoundary | None = None
        self._ranges_before: tuple[RangeRow, ...] = ()
        #: Whether sampling was stopped, and how many steps were sampled until then.
        self._sampling_stopped = False
        self._sampled_steps: int | None = None
        #: First step -> samples per batch from there on; `StepRows` removes what it has used.
        self.samples_from: dict[int, int | None] = {}

    def attach(
        self,
        *,
        hooked: bool,
        capture_nvtx: bool,
        detect_cuda: bool,
        at_import: bool,
        on_optimizer: Callable[[Any], None],
        on_epoch_end: Callable[[], None],
    ) -> None:
        """Attach all parts, again after `detach`, which also undoes an incomplete attach.

        ``at_import``: torch was just imported, and the program has made nothing of it yet.
        """
        if hooked:
            self.hooks = hooks = LoopHooks(
                self._clock,
                on_optimizer=on_optimizer,
                on_samples=self._on_samples,
                on_batch=self.batches.add,
                on_epoch_end=on_epoch_end,
                on_evaluation=lambda goes_on: self.evaluation.check(continues=goes_on),
                on_thread=self._on_thread,
            )
            hooks.on_call, hooks.closures.watch = self._on_call, self._repeated_closures
            hooks.on_graph, hooks.on_grad = self.evaluation.add_call, self.evaluation.end
        else:
            self.hooks = LoopObserver(on_optimizer=on_optimizer, on_samples=self._on_samples, on_batch=self.batches.add)
        self.hooks.attach()
        PROGRAM_PROFILERS.watch(none_yet=at_import)
        self.garbage.attach()
        self.reduced.attach()
        self._recorder = ranges.start_recorder()
        if capture_nvtx:
            self._nvtx_bridge = ranges.bridge_nvtx()
        self._clock.at_close = self.compiles.at_close
        self._clock.calibrate()
        self._detect_cuda = detect_cuda
        if not self._sampling_stopped:
            self._sampler = self._sampler or LineSampler(
                threading.get_ident(), self._phase, lambda: self._clock.step_num
            )
            self._sampler.thread = threading.get_ident()
            self._sampler.start()
            self._workers = self._workers or WorkerSampler(self._recording.folder / "workers")
            self._workers.attach()
        self.attach_late()

    def _on_call(self, module: Any, inputs: tuple[Any, Any]) -> None:
        try:
            first, decoder = self.batches.add_call(inputs), inputs[1].get("decoder_input_ids")
            # A model with an encoder and a decoder writes into the decoder's input.
            if (tensor := first if decoder is None else decoder) is not None:
                self._growing.add(module, tensor)
            self._recomputed.add_call(module, inputs)
            self.unused.add_call(module, inputs)
            self.cleared.add_call(module, inputs)
        except Exception as error:  # noqa: BLE001 - tensors of any kind: of a subclass, without sizes or elements
            leave_to_program(error)

    def attach_late(self) -> None:
        """Attach what waits for the program: for a process group, and a CUDA device in use; called between two steps.

        Not earlier: perfkit must not be what starts CUDA in a process that may fork, or train on the CPU.
        """
        if self.hooks is not None:
            self.hooks.look_again()
        self.waits.attach_when_ready()
        self.reduced.read_if_due(self._clock.step_num)
        self._processor_energy.read_if_due(self._clock.step_num)
        self.unused.check_if_due(self._clock.step_num)
        self.cleared.start_if_due(self._clock.step_num)
        if not self._on_device and _env.cuda_in_use():
            GRAPH_CAPTURES.watch()
            self._on_device = True
            self._start_watching_device()
        if self.node is not None:
            self.node.start_when_ready()

    def _start_watching_device(self) -> None:
        self._clock.device = self._clock.device or DeviceClock(DeviceEvents())
        self._clock.device.calibrate()
        if self._detect_cuda:
            self.armed = self.armed or detect_syncs(mode="cuda")
            self.armed.start()
        self.node = self.node or NodeWatch(lambda: self._clock.step_num)

    def leave_loop(self, *, close_last: bool) -> None:
        """Detach from the loop; with ``close_last`` its last step is closed if it is complete."""
        guarded = self._recording.guarded
        if self._sampler is not None:
            self._sampler.leave_loop()
        guarded("detaching from the collectives", self.waits.detach)
        guarded("reading the process group", self.reduced.read)
        guarded("detaching from DistributedDataParallel", self.reduced.detach)
        guarded("reading the energy counters", lambda: self._processor_energy.pause(self._clock.step_num))
        if self.hooks is not None:
            if close_last:
                guarded("closing the last step", self.hooks.finish)
            guarded("detaching from the loop", self.hooks.detach)
            self._loaders_before, self._boundary_before = self.loaders, self.boundary
            self.hooks = None
        guarded("detaching from parts of models", self.unused.stop)
        guarded("detaching from frozen parts of models", self._recomputed.stop)
        guarded("detaching from optimizers", self.cleared.stop)
        guarded("detaching from closures", self._repeated_closures.stop)
        PROGRAM_PROFILERS.unwatch()
        self.garbage.detach()

    def detach(self) -> None:
        """Detach everything else."""
        guarded = self._recording.guarded
        if self._sampler is not None:
            guarded("ending the sampler", self._sampler.stop)
        if self._workers is not None:
            guarded("ending the samplers of the loader's workers", self._workers.detach)
        if self.armed is not None:
            guarded("ending sync detection", self.armed.stop)
        if self.node is not None:
            guarded("ending the readings of the GPU", self.node.stop)
        if self._on_device:
            self._on_device = False
            GRAPH_CAPTURES.unwatch()
        if self._clock.device is not None and self._clock.device.problem is not None:
            self._recording.note(self._clock.device.problem)
        if self._nvtx_bridge is not None:
            guarded("removing the bridge to nvtx", self._nvtx_bridge.remove)
        if self._recorder is not None:
            guarded("ending the range recorder", self._recorder.stop)
            for count, what in ((self._recorder.dropped, "ranges"), (self._recorder.device_dropped, "device times")):
                if count:
                    self._recording.note(
                        f"{count:,} {what} were dropped: the program marks more than the recorder can process"
                    )
            # The next recorder starts from zero.
            self._ranges_before = self.ranges
            self._recorder = None

    def forget(self) -> None:
        """In a forked child: undo the patches, and leave everything else to the parent."""
        if self.hooks is not None:
            self.hooks.detach()
        PROGRAM_PROFILERS.unwatch()
        self.garbage.detach()
        self.waits.detach()
        self.reduced.detach()
        if self._workers is not None:
            self._workers.forget()

    def _on_thread(self, thread: int) -> None:
        """Another thread trains than the one that started the recording."""
        if self._sampler is not None:
            self._sampler.follow(thread)

    def _on_samples(self, samples: int | None) -> None:
        self.samples_from[self._clock.step_num] = samples

    # -- results

    @property
    def loaders(self) -> tuple[Loader, ...]:
        """The DataLoaders that the loop read from."""
        now = self.hooks.loaders.values() if self.hooks is not None else ()
        return tuple(dict.fromkeys((*self._loaders_before, *now)))[:_MAX_LOADERS]

    @property
    def boundary(self) -> StepBoundary | None:
        """What the steps are counted by; None: no step was seen."""
        now = self.hooks.boundary if self.hooks is not None else None
        return now or self._boundary_before

    @property
    def import_ns(self) -> int | None:
        """Time in which modules were imported before the first step ended; None: lines are not sampled."""
        return self._sampler.import_ns if self._sampler is not None else None

    @property
    def ranges(self) -> tuple[RangeRow, ...]:
        """The ranges that the program marked."""
        now = self._recorder.rows() if self._recorder is not None else ()
        return merged_by(_RANGE, (*self._ranges_before, *now))

    @property
    def syncs(self) -> Syncs | None:
        """Syncs on a GPU; None where they are not detected."""
        return self.armed.to_record() if self.armed is not None else None

    @property
    def node_health(self) -> NodeHealth | None:
        """The state of the GPU over the run; None where unknown, which is noted."""
        if self.node is None:
            return None
        if self.node.problem is not None:
            self._recording.note(self.node.problem)
        return self.node.record()

    @property
    def energy(self) -> tuple[EnergyUse, ...]:
        """Energy of the device and of the processor during the steps; empty where nothing counts it."""
        device = self.node.energy if self.node is not None else None
        return tuple(one for one in (device, self._processor_energy.energy) if one is not None)

    def sampling_ns(self, timed_ns: int) -> int:
        """perfkit's time for sampling in ``timed_ns`` of steps.

        Sampling in the workers counts with its share of their time, as if training always waited for them: the maximum.
        """
        own_ns = round(self._sampler.cost_s * 1e9) if self._sampler is not None else 0
        own_ns += round(self.node.cost_s * 1e9) if self.node is not None else 0
        return own_ns + round(self._workers.sampling_share() * timed_ns if self._workers is not None else 0)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Meanwhile the thread that trains does perfkit's work, and is not sampled."""
        sampler = self._sampler
        if sampler is not None:
            sampler.rest()
        try:
            yield
        finally:
            if sampler is not None:
                sampler.resume()

    def stop_sampling(self) -> bool:
        """Stop sampling lines, the most expensive optional part; returns whether it was on."""
        if self._sampling_stopped or self._sampler is None or self._workers is None:
            return False
        self._sampling_stopped = True
        self._sampler.stop()
        self._workers.detach()
        return True

    def held_bytes(self, *more: Any) -> int | None:
        """Memory of perfkit's own parts now, and of ``more`` of them."""
        parts = (self._clock, self.hooks, self._sampler, self._workers, self._recorder, self.armed, self.memory)
        return deep_size(*(part for part in (*parts, self.node, *more) if part is not None))

    def lines(self, *, sampled_steps: int, steps: int, plan: StepPlan) -> Lines | None:
        """The contents of lines.json after ``steps`` steps, ``sampled_steps`` of which were sampled.

        Before the first step has ended they are of the whole program, as of one step.
        """
        if self._sampler is None:
            return None
        if self._sampling_stopped:
            self._sampled_steps = sampled_steps = self._sampled_steps or sampled_steps
        period_ns, rows = self._sampler.rows(sampled_steps if steps else None)
        paths = self._sampler.call_paths(sampled_steps if steps else None)
        places = hot_places(paths) if paths is not None else None
        in_workers, workers = self._workers.rows(steps) if self._workers is not None else ((), ())
        extras = plan.extras
        return Lines(
            period_ns=period_ns,
            steps=sampled_steps if steps else 1,
            rows=(*rows, *in_workers),
            traced=extras.lines,
            rare_step=plan.rare.result or extras.rare_step,
            workers=workers,
            collected=self.garbage.lines(),
            constant_ops=extras.constant_ops,
            repeated_ops=extras.repeated_ops,
            unread_results=extras.unread_results,
            ignored_targets=extras.inputs.ignored_targets.rows(),
            subnormal_inputs=extras.inputs.subnormal_inputs(),
            wide_broadcasts=extras.inputs.wide_broadcasts(),
            dropped_rows=extras.inputs.dropped_rows(),
            gated_rows=extras.inputs.gated_rows(),
            rebuilt_buffers=extras.rebuilt_buffers,
            sparse_inputs=extras.inputs.sparse_inputs.rows(),
            diagonal_matrices=extras.inputs.diagonal_matrices.rows(),
            slow_ffts=extras.inputs.fft_lengths.rows(),
            repeated_heads=extras.inputs.repeated_heads.rows(),
            repeated_rows=extras.inputs.repeated_rows.rows(),
            repeated_samples=extras.inputs.repeated_samples(),
            masked_places=extras.inputs.masked_places.rows(),
            product_orders=extras.inputs.product_orders.rows(),
            resize_orders=extras.inputs.resize_orders.rows(),
            saved_views=extras.inputs.saved_views.rows(),
            weight_penalties=extras.inputs.weight_penalties.rows(),
            repeated_closures=self._repeated_closures.rows(steps),
            regrown_inputs=self._growing.rows(steps),
            recomputed_outputs=self._recomputed.rows(),
            paths=paths,
            fillings=find_fillings(rows),
            training_inputs=find_training_inputs(places) if places is not None else (),
            intervals=find_intervals(places) if places is not None else (),
            host_reads=find_host_reads(places) if places is not None else (),
            numpy_draws=find_numpy_draws(places) if places is not None else (),
            held_locks=find_held_locks(rows, user_files()),
            makers=find_makers(rows),
        )
