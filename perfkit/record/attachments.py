"""Everything that listens to the training process while a run records, attached and put back as one.

The hooks that feed the clock, the range recorder, the samplers of lines, sync detection on a GPU, memory, garbage
collections, compiled graphs. Each part is put back by itself: none may stay on because another one failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perfkit import _env
from perfkit.record.clock.step_clock import StepClock
from perfkit.record.hooks.batches import BatchWatch
from perfkit.record.hooks.loop_observer import LoopObserver
from perfkit.record.hooks.torch_hooks import LoopHooks
from perfkit.record.watchers.compilations import CompileCounter
from perfkit.record.watchers.garbage_collections import GarbageWatch
from perfkit.record.watchers.node_health import NodeWatch, watch_node
from perfkit.record.watchers.self_memory import held_bytes
from perfkit.record.watchers.step_memory import MemoryWatch, watch_memory
from perfkit.run.merging import merged
from perfkit.run.rank_recording import RankRecording
from perfkit.run.records import Lines, Loader, NodeHealth, Phase, RangeRow, Syncs, TracedLine

if TYPE_CHECKING:
    from perfkit.ranges.nvtx_bridge import NvtxBridge
    from perfkit.ranges.recorder import RangeRecorder
    from perfkit.record.samplers.line_sampler import StackSampler
    from perfkit.record.samplers.worker_sampler import WorkerSampler
    from perfkit.syncs import SyncDetector

#: Loaders that are kept of all fits of a run, as many as of one.
_MOST_LOADERS = 16


class Listeners:
    """The parts of perfkit that listen in the training process.

    ``phase`` tells the sampler which phase a sample belongs to, None where the running step is not timed.
    """

    def __init__(self, clock: StepClock, recording: RankRecording, *, phase: Callable[[], Phase | None]) -> None:
        self._clock = clock
        self._recording = recording
        self._phase = phase
        self.hooks: LoopHooks | LoopObserver | None = None
        self.compiles: CompileCounter | None = None
        self.memory: MemoryWatch | None = None
        #: None where there is no GPU.
        self.node: NodeWatch | None = None
        self.batches = BatchWatch(clock)
        self.garbage = GarbageWatch(lambda: clock.step_num, recording.trouble)
        self.armed: SyncDetector | None = None
        self._sampler: StackSampler | None = None
        self._workers: WorkerSampler | None = None
        self._recorder: RangeRecorder | None = None
        self._nvtx_bridge: NvtxBridge | None = None
        self._loaders_before: tuple[Loader, ...] = ()
        self._ranges_before: tuple[RangeRow, ...] = ()
        #: Whether sampling was given up, and how many steps it saw until then.
        self._thinned = False
        self._seen_steps: int | None = None
        #: First step -> samples in a batch from there on; whoever makes the step's row takes it out.
        self.samples_from: dict[int, int | None] = {}

    def attach(
        self,
        *,
        hooked: bool,
        borrow_nvtx: bool,
        detect_cuda: bool,
        on_optimizer: Callable[[Any], None],
        on_epoch_end: Callable[[], None],
        on_evaluation: Callable[[bool], None],
    ) -> None:
        """Begin to listen, again after `detach`; what was attached before something failed is put back by that."""
        from perfkit.ranges import bridge_nvtx, start_recorder
        from perfkit.record.samplers.line_sampler import StackSampler
        from perfkit.record.samplers.worker_sampler import WorkerSampler

        if _env.cuda_in_use():
            from perfkit.record.clock.device_clock import make_cuda_clock

            # Before the hooks: what they write down for the clock depends on it.
            self._clock.device = self._clock.device or make_cuda_clock()
        if hooked:
            self.hooks = LoopHooks(
                self._clock,
                on_optimizer=on_optimizer,
                on_samples=self._on_samples,
                on_batch=self.batches.came,
                on_epoch_end=on_epoch_end,
                on_evaluation=on_evaluation,
            )
        else:
            self.hooks = LoopObserver(
                on_optimizer=on_optimizer, on_samples=self._on_samples, on_batch=self.batches.came
            )
        self.hooks.attach()
        self.garbage.attach()
        self._recorder = start_recorder()
        if borrow_nvtx:
            self._nvtx_bridge = bridge_nvtx()
        self.compiles = self.compiles or CompileCounter()
        self._clock.at_close = self.compiles.at_close
        self._clock.calibrate()
        if detect_cuda:
            from perfkit.syncs import detect_syncs

            self.armed = self.armed or detect_syncs(mode="cuda")
            self.armed.start()
        if not self._thinned:
            self._sampler = self._sampler or StackSampler(threading.get_ident(), self._phase)
            self._sampler.thread = threading.get_ident()
            self._sampler.start()
            self._workers = self._workers or WorkerSampler(self._recording.workers_folder())
            self._workers.attach()
        self.memory = self.memory or watch_memory()
        if _env.cuda_in_use():
            self.node = self.node or watch_node(lambda: self._clock.step_num)

    def leave_loop(self, *, close_last: bool) -> None:
        """Detach from the loop; with ``close_last`` its last step is closed if it did its work."""
        guarded = self._recording.guarded
        if self.hooks is not None:
            if close_last:
                guarded("closing the last step", self.hooks.finish)
            guarded("detaching from the loop", self.hooks.detach)
            self._loaders_before = self.loaders
            self.hooks = None
        self.garbage.detach()

    def detach(self) -> None:
        """Put everything else back."""
        guarded = self._recording.guarded
        if self._sampler is not None:
            guarded("ending the sampler", self._sampler.stop)
        if self._workers is not None:
            guarded("ending the samplers of the loader's workers", self._workers.detach)
        if self.armed is not None:
            guarded("ending sync detection", self.armed.stop)
        if self.node is not None:
            guarded("ending the watch of the node", self.node.stop)
        if self._nvtx_bridge is not None:
            guarded("removing the bridge to nvtx", self._nvtx_bridge.remove)
        if self._recorder is not None:
            guarded("ending the range recorder", self._recorder.stop)
            for count, what in ((self._recorder.dropped, "ranges"), (self._recorder.device_dropped, "device times")):
                if count:
                    self._recording.note(
                        f"{count:,} {what} were dropped: there were more than the recorder keeps up with"
                    )
            # The next recorder begins at nothing, and the program's ranges go on.
            self._ranges_before = self.ranges
            self._recorder = None

    def forget(self) -> None:
        """In a forked child: put the patches back and leave the rest, whose parent goes on."""
        if self.hooks is not None:
            self.hooks.detach()
        self.garbage.detach()
        if self._workers is not None:
            self._workers.forget()

    def _on_samples(self, samples: int | None) -> None:
        self.samples_from[self._clock.step_num] = samples

    # -- what they heard

    @property
    def loaders(self) -> tuple[Loader, ...]:
        """Loaders that the loop was seen to read from."""
        now = self.hooks.loaders.values() if self.hooks is not None else ()
        return tuple(dict.fromkeys((*self._loaders_before, *now)))[:_MOST_LOADERS]

    @property
    def ranges(self) -> tuple[RangeRow, ...]:
        """Ranges that the program marked."""
        now = self._recorder.rows() if self._recorder is not None else ()
        return _added_up(self._ranges_before, now) if self._ranges_before else now

    @property
    def syncs(self) -> Syncs | None:
        """Syncs seen on a GPU; None where they were not looked for."""
        return self.armed.to_record() if self.armed is not None else None

    @property
    def node_health(self) -> NodeHealth | None:
        """What the node did to the GPU; None where that is not known, which is noted."""
        if self.node is None:
            return None
        if self.node.problem is not None:
            self._recording.note(self.node.problem)
        return self.node.record()

    def sampling_ns(self, timed_ns: int) -> int:
        """What sampling took so far of ``timed_ns`` of steps.

        In the workers it is the share of their time, of the steps' time: what training loses where it always waits
        for them, and the most that it can.
        """
        own_ns = round(self._sampler.cost_s * 1e9) if self._sampler is not None else 0
        own_ns += round(self.node.cost_s * 1e9) if self.node is not None else 0
        return own_ns + round(self._workers.share() * timed_ns if self._workers is not None else 0)

    def stop_sampling(self) -> bool:
        """Give up what training can do without and costs most; whether there was something to give up."""
        if self._thinned or self._sampler is None or self._workers is None:
            return False
        self._thinned = True
        self._sampler.stop()
        self._workers.detach()
        return True

    def held_bytes(self, *more: Any) -> int | None:
        """The memory that perfkit's own parts hold now, with ``more`` of them."""
        parts = (self._clock, self.hooks, self._sampler, self._workers, self._recorder, self.armed, self.memory)
        parts = (*parts, self.node, *more)
        return held_bytes(*(part for part in parts if part is not None))

    def lines(self, *, sampled_steps: int, steps: int, traced: tuple[TracedLine, ...]) -> Lines | None:
        """What was learnt per line in ``sampled_steps`` sampled steps of ``steps``."""
        if self._sampler is None:
            return None
        if self._thinned:
            self._seen_steps = sampled_steps = self._seen_steps or sampled_steps
        period_ns, rows = self._sampler.rows(sampled_steps)
        in_workers, workers = self._workers.rows(steps) if self._workers is not None else ((), ())
        return Lines(
            period_ns=period_ns,
            steps=sampled_steps,
            rows=(*rows, *in_workers),
            traced=traced,
            workers=workers,
            collected=self.garbage.lines(),
        )


def _added_up(before: tuple[RangeRow, ...], now: tuple[RangeRow, ...]) -> tuple[RangeRow, ...]:
    """The rows of two recorders as those of one."""
    rows = {(row.name, row.category, row.domain, row.thread): row for row in before}
    for row in now:
        key = (row.name, row.category, row.domain, row.thread)
        rows[key] = merged(rows[key], row) if key in rows else row
    return tuple(rows.values())
