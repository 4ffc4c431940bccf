"""Programs of the labelled suite's tuning half with and without a change, in turns in one process, on processor time.

    python benchmarks/_replay_pairs.py FOLDER [PROGRAM ...]

Two processes in turns on a busy machine differ in phases that the change does not touch: one that waits gets longer
turns of a core afterwards, and wall time has in it what other programs took. Here one process has both: the program
runs once under `perfkit.profile` as it is, which the prediction is made from, and then again with the change switched
on and off every few steps. A step is the processor time between two ends of ``optimizer.step``, of one thread. The
first steps of a turn are left out. Turns without the change are themselves compared, every other one with the rest:
that is the floor of the noise (A/A), below which no prediction can be judged.

A loader's turns take batches from one of two iterators over the same loader, without and with a worker. A step is then
the longer one of the loop's processor time and the worker's for a batch, which is what a machine with a free
core takes.

What a prediction removes is marked in the program's source: the statement is put into a `perfkit.range`. Its
processor time is measured too: "exact" is the step without just that, so that its error is the model's (what else
goes or stays with what is removed), and the rest of the prediction's error is that of the recorded window.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import perfkit  # noqa: E402 - found through the line above
from perfkit.limits.limits_cache import cached_limits, measure_and_keep  # noqa: E402

PROGRAMS = ROOT / "tests" / "pathologies" / "tuning"
#: Steps of a turn, those at its start that are not counted, and those that a program needs to be warm.
TURN, SKIPPED, WARM = 8, 2, 6
#: Turns in all, and processor time after which no further one begins: at least six are needed to compare.
TURNS, LIMIT_S = 28, 6.0
#: Steps of the recorded run: the default schedule opens its window within the first 15.
RECORDED = 45
MARK = "changed part"

Kind = Literal["removed", "fused", "optimizer", "loader"]


class PairTrial(NamedTuple):
    """A program with a change. ``marked`` begins the statement that the change is about.

    ``ready``: the program begins as its corrected twin, which prepares what the other one does not use. ``blind``: it
    was chosen after the numbers of the replay. Those with 1 were in sight when the hand-over of a batch and the hooks
    of a recording got their places, those with 2 when the hooks did; their numbers were chosen on the tuning half.
    """

    program: str
    kind: Kind
    marked: str = ""
    ready: bool = False
    options: dict[str, Any] = {}
    blind: Literal[0, 1, 2] = 0

    @property
    def name(self) -> str:
        return f"{self.program} {self.kind}"

    @property
    def what_if(self) -> dict[str, Any]:
        """The what-if that predicts it."""
        if self.kind == "removed":
            return {"scale": {MARK: 0}}
        if self.kind == "loader":
            return {"hide_loader": 1}
        return {"fuse": [MARK if self.kind == "fused" else "Optimizer.step#*"]}


_FUSED, _FOREACH = {"fused": True, "foreach": False}, {"fused": False, "foreach": True}
TRIALS = (
    PairTrial("metric_in_python", "removed", "for row in range(16)"),
    PairTrial("forward_twice", "removed", "guesses = "),
    PairTrial("negatives_in_python", "removed", "def negatives"),
    PairTrial("norms_by_weight", "removed", "history.append(logged"),
    PairTrial("adjacency_in_forward", "removed", "weights = self.ready"),
    PairTrial("alibi_in_every_block", "removed", "bias = self.kept", ready=True),
    PairTrial("positions_every_forward", "removed", "bias = self.bias if", ready=True),
    PairTrial("buckets_in_every_layer", "removed", "which = KEPT"),
    PairTrial("prompts_encoded_each_step", "removed", "names = ready"),
    PairTrial("filter_bank_per_sample", "removed", "filters = FILTERS"),
    PairTrial("teacher_on_same_images", "removed", "with torch.no_grad()"),
    PairTrial("helper_per_token", "removed", "where = ("),
    PairTrial("dice_by_class", "fused", "for number in range(CLASSES)"),
    PairTrial("gelu_by_hand", "fused", "def gelu"),
    PairTrial("attention_per_head", "fused", "for head in range(HEADS)"),
    PairTrial("own_optimizer_by_parameter", "fused", "for p in params"),
    PairTrial("ema_per_parameter", "fused", "for old, new in zip("),
    PairTrial("recurrence_by_time_step", "fused", "for t in range(x.shape[1])"),
    PairTrial("adam_one_by_one", "optimizer", options=_FUSED),
    PairTrial("adamw_deep_and_narrow", "optimizer", options=_FUSED),
    PairTrial("dice_by_class", "optimizer", options=_FUSED),
    PairTrial("embedding_tables_adam", "optimizer", options=_FUSED),
    PairTrial("rmsprop_many_weights", "optimizer", options=_FOREACH),
    PairTrial("compressed_files_each_epoch", "loader"),
    PairTrial("filter_bank_per_sample", "loader"),
    PairTrial("images_without_workers", "loader"),
    PairTrial("packing_cuts_buffer", "loader"),
    PairTrial("ratings_by_iloc", "loader"),
    PairTrial("slow_collate", "loader"),
    PairTrial("forward_twice", "loader"),
    PairTrial("padding_to_longest", "loader"),
    PairTrial("standardize_all_rows", "removed", "mean, std = self.x", blind=1),
    PairTrial("permutation_for_each_draw", "removed", "drawn = torch.randperm", blind=1),
    PairTrial("collect_every_step", "removed", "gc.collect", blind=1),
    PairTrial("cached_batches", "fused", "for average, weight in zip", blind=1),
    PairTrial("filters_by_channel", "fused", "for c in range(CHANNELS)", blind=1),
    PairTrial("vendor_check_first", "fused", "for right, guess in zip", blind=1),
    PairTrial("frames_through_backbone", "fused", "vectors = [", blind=1),
    PairTrial("healthy_adam_few_weights", "optimizer", options=_FUSED, blind=1),
    PairTrial("transcripts_every_step", "optimizer", options=_FUSED, blind=1),
    PairTrial("boxes_by_sample", "loader", blind=1),
    PairTrial("healthy_utterances_by_length", "loader", blind=1),
    PairTrial("sessions_of_shoppers", "loader", blind=1),
    PairTrial("history_as_json", "removed", "write(history", blind=2),
    PairTrial("sync_weights_from_list", "removed", "weight = once", blind=2),
    PairTrial("reinforce_loss_by_move", "fused", "for chance, earned in zip", blind=2),
    PairTrial("boxes_by_sample", "fused", "for one, other in zip", blind=2),
    PairTrial("model_over_samples", "fused", "for sample in batch", blind=2),
    PairTrial("average_precision_so_far", "optimizer", options=_FUSED, blind=2),
    PairTrial("probe_on_images", "optimizer", options=_FUSED, blind=2),
    PairTrial("healthy_pyramid_detector", "loader", blind=2),
    PairTrial("history_as_json", "loader", blind=2),
    PairTrial("window_in_float64", "loader", blind=2),
    PairTrial("healthy_lstm", "loader", blind=2),
)


class _EnoughSteps(BaseException):
    """Ends a program that has made the steps that were wanted."""


class Switch:
    """Counts the steps of a program, switches the change on and off, and keeps what each step took."""

    def __init__(self, trial: PairTrial, *, turns: bool) -> None:
        self.trial, self.turns = trial, turns
        self.names: dict[str, Any] = {}
        self.optimizer: torch.optim.Optimizer | None = None
        self.options: list[dict[str, Any]] = []
        self.changed = False
        self.step = self.turn = self.in_turn = 0
        self.marked_ns = 0
        self.began = time.process_time()
        self.at = time.process_time_ns(), time.perf_counter_ns()
        #: (turn, changed, processor time, wall time, processor time of the marked part) of each counted step.
        self.rows: list[tuple[int, bool, int, int, int]] = []
        self.workers: list[tuple[int, int]] = []

    @contextlib.contextmanager
    def mark(self) -> Iterator[None]:
        """Around the marked part."""
        if not self.turns:
            with perfkit.range(MARK):
                yield
            return
        began = time.process_time_ns()
        yield
        self.marked_ns += time.process_time_ns() - began

    def again(self) -> None:
        """The program begins again."""
        self.optimizer, self.step, self.in_turn = None, 0, 0

    def after_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Called at the end of each ``optimizer.step``."""
        if self.optimizer is None:
            self.optimizer = optimizer
            self.options = [{name: group.get(name) for name in self.trial.options} for group in optimizer.param_groups]
            self.set_changed(self.changed if self.turns else False)
        if optimizer is not self.optimizer:
            return
        now = time.process_time_ns(), time.perf_counter_ns()
        self.step += 1
        if not self.turns:
            if self.step == RECORDED:
                raise _EnoughSteps
            return
        if self.step > WARM:
            if self.in_turn >= SKIPPED:
                self.rows.append((self.turn, self.changed, now[0] - self.at[0], now[1] - self.at[1], self.marked_ns))
            self.in_turn += 1
            if self.in_turn == TURN:
                self.turn, self.in_turn = self.turn + 1, 0
                self.set_changed(not self.changed)
                spent = time.process_time() - self.began
                if self.turn >= TURNS or (spent > LIMIT_S and self.turn >= 12):
                    raise _EnoughSteps
        self.marked_ns = 0
        self.at = time.process_time_ns(), time.perf_counter_ns()

    def set_changed(self, changed: bool) -> None:
        self.changed = changed
        if self.trial.kind in ("removed", "fused"):
            self.names["FIXED"] = changed
        elif self.trial.kind == "optimizer" and self.optimizer is not None:
            for group, before in zip(self.optimizer.param_groups, self.options, strict=True):
                group.update(self.trial.options if changed else before)


class _TwoWays:
    """Batches of a loader by the loop itself, or by a worker while the change is on."""

    def __init__(self, loader: DataLoader[Any], make: Any, switch: Switch) -> None:
        self.switch, self.plain = switch, make(loader)
        loader.num_workers, loader.prefetch_factor = 1, 2
        try:
            self.hidden = make(loader)
        finally:
            loader.num_workers, loader.prefetch_factor = 0, None
        self.worker = self.hidden._workers[0].pid
        self.fetched, self.began_ns = 0, _processor_ns(self.worker)

    def __iter__(self) -> _TwoWays:
        return self

    def __next__(self) -> Any:
        if not self.switch.changed:
            return next(self.plain)
        self.fetched += 1
        if self.fetched == 1 + WARM:
            self.began_ns = _processor_ns(self.worker)
        if self.fetched > 1 + WARM:
            spent = _processor_ns(self.worker) - self.began_ns
            self.switch.workers.append((spent, self.fetched - 1 - WARM))
        return next(self.hidden)


def _processor_ns(process: int) -> int:
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0])


def _statements(holder: ast.AST, field: str) -> list[ast.stmt]:
    found = getattr(holder, field, None)
    return found if isinstance(found, list) else []


def _code_of(trial: PairTrial) -> Any:
    """The program with the marked statement inside ``with _marked():``."""
    path = PROGRAMS / f"{trial.program}.py"
    text = path.read_text()
    tree, lines = ast.parse(text), text.splitlines()
    if trial.marked:
        found = [
            (holder, field, at)
            for holder in ast.walk(tree)
            for field in ("body", "orelse")
            for at, one in enumerate(_statements(holder, field))
            if lines[one.lineno - 1].strip().startswith(trial.marked)
        ]
        ((holder, field, at),) = found
        statement = getattr(holder, field)[at]
        inner = statement.body if isinstance(statement, ast.FunctionDef) else [statement]
        around = ast.parse("with _marked():\n    pass").body[0]
        around.body = inner  # type: ignore[attr-defined]  # a with statement has one
        if isinstance(statement, ast.FunctionDef):
            statement.body = [around]
        else:
            getattr(holder, field)[at] = around
        ast.fix_missing_locations(ast.copy_location(around, statement))
    return compile(tree, str(path), "exec")


def _run(trial: PairTrial, switch: Switch) -> bool:
    """Run the program once; whether it made the steps that were wanted before its end."""
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(PROGRAMS / f"{trial.program}.py")}
    names["_marked"] = switch.mark
    switch.names = names
    switch.again()
    handle = register_optimizer_step_post_hook(switch.after_step)
    given, sys.argv = sys.argv, [names["__file__"], *(["--fixed"] if trial.ready else [])]
    make = DataLoader.__iter__
    if trial.kind == "loader" and switch.turns:
        DataLoader.__iter__ = lambda loader: _TwoWays(loader, make, switch)  # type: ignore[method-assign]
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            exec(_code_of(trial), names)
    except _EnoughSteps:
        return True
    finally:
        DataLoader.__iter__ = make  # type: ignore[method-assign]
        sys.argv = given
        handle.remove()
    return False


def record(trial: PairTrial, folder: Path) -> None:
    """Record the program as it is, from which the change is predicted."""
    recording = perfkit.profile(folder, overwrite=True, quiet=True)
    recording.diagnoses = False
    with recording:
        _run(trial, Switch(trial, turns=False))


def measure(trial: PairTrial) -> dict[str, Any]:
    """What a step takes without and with the change, by processor time of turns in this process."""
    switch = Switch(trial, turns=True)
    for _ in range(12):
        if _run(trial, switch):
            break
    turn, changed, spent, wall, marked = np.array(switch.rows, np.int64).T
    changed = changed.astype(bool)
    other = turn % 4 == 2  # of the turns 0, 2, 4, ... without the change every other one
    plain = ~changed

    def step(rows: Any, times: Any = spent) -> float:
        return float(np.median(times[rows]))

    then = step(changed)
    worker = 0.0
    if switch.workers:
        ends = [
            one for one, after in zip(switch.workers, [*switch.workers[1:], (0, 0)], strict=True) if after[1] <= one[1]
        ]
        worker = sum(ns for ns, _ in ends) / max(1, sum(count for _, count in ends))
        then = max(then, worker)
    now = step(plain)
    return {
        "turns": int(turn.max()) + 1,
        "steps": [int(plain.sum()), int(changed.sum())],
        "now_ns": now,
        "then_ns": then,
        "worker_ns": worker,
        "wall": [step(plain, wall), step(changed, wall)],
        "exact": 1 - float(np.median(marked[plain])) / now if trial.kind == "removed" else None,
        "floor": step(plain & other) / step(plain & ~other) - 1,
        "spread": float(np.std([step(plain & (turn == one)) for one in np.unique(turn[plain])]) / now),
    }


def folder_of(kept: Path, trial: PairTrial) -> Path:
    """Where the recording and the measurement of a pair are."""
    return kept / trial.name.replace(" ", "-")


def run(kept: Path, names: list[str]) -> None:
    """Record and measure what is not there yet: FOLDER/NAME/before and FOLDER/NAME/turns.json."""
    torch.set_num_threads(1)
    if cached_limits(torch.__version__, 1) is None:  # what fused ops take is predicted from them
        measure_and_keep(torch.__version__, 1)
    for trial in TRIALS:
        folder = folder_of(kept, trial)
        if (names and trial.program not in names) or (folder / "turns.json").is_file():
            continue
        try:
            record(trial, folder / "before")
            found = measure(trial)
        except Exception as error:  # noqa: BLE001 - one program must not end the others
            print(f"{trial.name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            continue
        (folder / "turns.json").write_text(json.dumps(found))
        print(trial.name, json.dumps(found), file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
