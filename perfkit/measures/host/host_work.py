"""What the host does in the step beside calling ops: by kind, with the user's lines.

The sampler tells in which line and library time passes; the step for lines, which lines call ops; the step that was
traced by line, which lines run before the model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from perfkit._code_owner import USER
from perfkit._location import Location
from perfkit.measures.results.host import HostKind, HostLine, HostWork, SourceLines
from perfkit.measures.results.steps import MeanStep
from perfkit.run.records import PHASES, LineRow, Lines, Phase, TracedLine

#: A line in whose ops more of its time passes than this calls ops, and other rules look at these. Measured while
#: torch's stacks were recorded, which the step for lines does without: a line of small ops has 25 to 60 % of its time
#: in them, one call of a fused op over a list of parameters 13 %, a line that turns lists into a tensor less than 1 %.
_CALLS_OPS = 0.05

#: Libraries by what they are for, named as by `perfkit.record.samplers.line_sampler.library_of`. A name includes its
#: submodules (``torch.distributed`` would be ``torch.distributed.checkpoint`` as well).
_CHECKPOINT = frozenset({"checkpoint", "torch.serialization", "safetensors", "orbax", "joblib", "cloudpickle", "dill"})
_LOGGING = frozenset(
    {
        "torch.utils.tensorboard",
        "tensorboard",
        "tensorboardX",
        "wandb",
        "mlflow",
        "neptune",
        "comet_ml",
        "clearml",
        "aim",
        "swanlab",
        "dvclive",
        "trackio",
        "logging",
        "loguru",
        "structlog",
        "tqdm",
        "rich",
        "matplotlib",
        "seaborn",
        "plotly",
    }
)
#: They decode, tokenize, parse or transform what a model is fed with.
_PREPROCESSING = frozenset(
    {
        "PIL",
        "cv2",
        "torchvision",
        "torchaudio",
        "torchcodec",
        "librosa",
        "soundfile",
        "skimage",
        "imageio",
        "albumentations",
        "imgaug",
        "kornia",
        "tokenizers",
        "transformers.tokenization",
        "transformers.image",
        "sentencepiece",
        "tiktoken",
        "spacy",
        "nltk",
        "sacremoses",
        "re",
        "regex",
        "html",
        "xml",
        "unicodedata",
        "gzip",
        "zlib",
        "bz2",
        "lzma",
        "zipfile",
        "tarfile",
        "base64",
        "pandas",
        "polars",
        "pyarrow",
        "datasets",
        "h5py",
        "zarr",
        "pydicom",
        "nibabel",
        "decord",
        "av",
    }
)
#: They write what a person reads when the model has run, and read what it is fed with before.
_TEXT = frozenset({"json", "csv", "pprint", "yaml", "tomllib"})
#: They open, write and move files.
_FILES = frozenset(
    {"pathlib", "shutil", "tempfile", "io", "codecs", "pickle", "sqlite3", "socket", "ssl", "http", "urllib"}
)
#: They run the loop: what passes in them and in nothing they call is no work of a line of the user's.
_FRAMEWORKS = frozenset({"lightning", "pytorch_lightning", "lightning_fabric", "transformers", "accelerate", "ignite"})


#: From this share of a function's host work on, all of it is of that kind: calls that give the interpreter lock away
#: (a write, a flush) draw samples from the lines around them.
_JOINS = 0.2

#: Phases that are what they are while they run.
_DECIDED: frozenset[Phase] = frozenset({"data", "backward", "optimizer", "validation"})
#: Clock and samples of a phase differ by less than this where both saw the same steps: of 20 samples the error is a
#: fifth. Further apart they did not: the mean leaves out steps that compiled, and the sampler saw them.
_SAME_TIME = 1.5


class _Piece(NamedTuple):
    row: LineRow
    within: str
    samples: float


def measure_host_work(
    lines: Lines | None, source: SourceLines | None, steps: int | None, every: MeanStep | None = None
) -> tuple[HostWork, ...]:
    """Host work by kind, most first; () where no lines were sampled.

    Args:
        lines: What the sampler and the traced step gave.
        source: The step for lines. Without it a line's own code cannot be told from the ops it calls, and only what
            passes in libraries is told.
        steps: Steps of the whole run, over which ``lines.collected`` counts.
        every: The mean of all timed steps. With it samples only share out the time that the clock gives a phase.
    """
    if lines is None or not lines.steps:
        return ()
    stacks = _LineTimes(source, lines.traced)
    before = {(row.file, row.line): bool(row.before_model) for row in reversed(lines.traced)}
    pieces: dict[HostKind, list[_Piece]] = defaultdict(list)
    for piece in _without_collections(lines, steps):
        kind = _kind(piece.within, before.get((piece.row.file, piece.row.line), False))
        if kind is None:
            continue
        share = 1.0
        if piece.within == "" or kind == "python":
            share = stacks.python_share(piece.row)
        if share:
            pieces[kind].append(piece._replace(samples=piece.samples * share))
    _join_functions(pieces)
    worth = _worth(lines, every)
    works = [_work(kind, found, worth, stacks) for kind, found in pieces.items() if found]
    return tuple(sorted(works, key=lambda work: -work.host_ns))


class _LineTimes:
    """What the step for lines tells of a line."""

    def __init__(self, source: SourceLines | None, traced: Sequence[TracedLine]) -> None:
        self._known = source is not None
        self._complete = source is not None and source.complete
        self._lines: dict[tuple[str, int], tuple[int, int]] = {}
        self._vague: set[tuple[str, str]] = set()
        #: Time of a line with all that it called, and time in ops of each function.
        self._total: dict[tuple[str, int], int] = {}
        self._ops_of: dict[tuple[str, str], int] = defaultdict(int)
        #: The user's functions that a line calls, and those that a function calls.
        self._from_line: dict[tuple[str, int | None], set[tuple[str, str]]] = defaultdict(set)
        self._from_function: dict[tuple[str, str | None], set[tuple[str, str]]] = defaultdict(set)
        for row in traced:
            for by in row.callers:
                self._from_line[by.file, by.line].add((row.file, row.function))
                self._from_function[by.file, by.function].add((row.file, row.function))
        for line in source.lines if source is not None else ():
            self._ops_of[line.file, line.function] += line.op_ns
            if line.line is None:
                if line.ops:
                    self._vague.add((line.file, line.function))
                continue
            own, ops = self._lines.get((line.file, line.line), (0, 0))
            self._lines[line.file, line.line] = (own + line.self_ns, ops + line.op_ns)
            self._total[line.file, line.line] = self._total.get((line.file, line.line), 0) + line.total_ns

    def own_ns(self, file: str, line: int) -> int:
        """Time of a line in the step for lines, without the user's functions that it called; 1 where unknown."""
        return max(1, self._lines.get((file, line), (0, 0))[0])

    def python_share(self, row: LineRow) -> float:
        """The share of its own time that passes outside of ops; 0 where it calls ops, or nothing is known of it."""
        if not self._known:
            return 0.0
        found = self._lines.get((row.file, row.line))
        if found is None:
            return 1.0 if self._complete and (row.file, row.function) not in self._vague else 0.0
        own, ops = found
        share = ops / own if own else 0.0
        if share > _CALLS_OPS and (called := self._called_from(row.file, row.line)):
            # On a busy machine samples of a function fall on the line that calls it, where an op gives the interpreter
            # lock away: then the line counts with all that it called.
            total = self._total[row.file, row.line]
            share = (ops + sum(self._ops_of[function] for function in called)) / total if total else share
        return 0.0 if share > _CALLS_OPS else 1.0 - share

    def _called_from(self, file: str, line: int) -> set[tuple[str, str]]:
        """The user's functions below a line."""
        below: set[tuple[str, str]] = set()
        todo = list(self._from_line.get((file, line), ()))
        while todo:
            function = todo.pop()
            if function not in below:
                below.add(function)
                todo.extend(self._from_function.get(function, ()))
        return below


def _without_collections(lines: Lines, steps: int | None) -> Iterator[_Piece]:
    """The samples of the training thread's own lines, outside fetches and validation, less the garbage collections."""
    period = max(1, lines.period_ns)
    collected = {(row.file, row.line): row.total_ns for row in lines.collected}
    for row in lines.rows:
        if row.worker is not None or row.owner != USER or row.phase in ("data", "validation"):
            continue
        # Collections count over the whole run, samples over the sampled steps of it.
        gone = collected.pop((row.file, row.line), 0) / period * lines.steps / max(steps or lines.steps, 1)
        for within, samples in row.within.items():
            left = max(0.0, samples - gone) if within == "" else samples
            if left:
                yield _Piece(row, within, left)


def _kind(within: str, before_model: bool) -> HostKind | None:
    """What time in these libraries, called from a user's line, is for; None for torch's own and the frameworks'."""
    names = within.split(" > ") if within else []
    tops = {name.split(".")[0] for name in names}
    if "torch.utils.data" in names:
        return None  # the loader's own: starting its workers, too, is part of waiting for data
    if not _CHECKPOINT.isdisjoint(names) or not _CHECKPOINT.isdisjoint(tops):
        return "checkpoint"
    if not _LOGGING.isdisjoint(names) or not _LOGGING.isdisjoint(tops):
        return "logging"
    if not _PREPROCESSING.isdisjoint(names) or not _PREPROCESSING.isdisjoint(tops):
        return "preprocessing"
    if not _FRAMEWORKS.isdisjoint(tops) or "torch" in tops:
        return None
    if not _TEXT.isdisjoint(names) or not _FILES.isdisjoint(names):
        return "preprocessing" if before_model else "logging"
    return "preprocessing" if before_model else "python"


def _join_functions(pieces: dict[HostKind, list[_Piece]]) -> None:
    """Give plain Python to the kind that most of the host work of its function is: the lines around a write."""
    by_function: dict[tuple[str, str], dict[HostKind, float]] = defaultdict(lambda: defaultdict(float))
    for kind, found in pieces.items():
        for piece in found:
            by_function[piece.row.file, piece.row.function][kind] += piece.samples
    stay: list[_Piece] = []
    for piece in pieces.pop("python", []):
        kinds = by_function[piece.row.file, piece.row.function]
        told = {kind: samples for kind, samples in kinds.items() if kind in ("logging", "checkpoint")}
        most = max(told, key=lambda kind: told[kind], default=None)
        joins = most is not None and told[most] >= _JOINS * sum(kinds.values())
        (pieces[most] if most is not None and joins else stay).append(piece)
    if stay:
        pieces["python"] = stay


def _worth(lines: Lines, every: MeanStep | None) -> Callable[[Phase], float]:
    """What a sample in a phase stands for, in ns of the mean step.

    The clock knows a phase's time exactly, the samples know who had it: counted per phase, a line's error is that of
    its share of the phase, and not of how many samples fell into the phase.
    """
    usual = lines.period_ns / lines.steps
    if every is None or usual <= 0:
        return lambda phase: usual
    samples: dict[Phase, int] = defaultdict(int)
    clock_ns: dict[Phase, int] = defaultdict(int)
    for row in lines.rows:
        if row.worker is None:
            samples[_booked(row.phase)] += row.samples
    for name in PHASES:
        clock_ns[_booked(name)] += getattr(every.phases_ns, name) or 0
    worth = {}
    for phase, count in samples.items():
        ns = clock_ns[phase] / max(1, count)
        worth[phase] = ns if 1 / _SAME_TIME <= ns / usual <= _SAME_TIME else usual
    return lambda phase: worth.get(_booked(phase), usual)


def _booked(phase: Phase) -> Phase:
    """The phase, or "other" where the clock may move its time later on: a forward is told by the backward behind it."""
    return phase if phase in _DECIDED else "other"


def _work(kind: HostKind, pieces: list[_Piece], worth: Callable[[Phase], float], stacks: _LineTimes) -> HostWork:
    sums: dict[Location, float] = defaultdict(float)
    times: dict[Location, float] = defaultdict(float)
    functions: dict[tuple[str, str | None], float] = defaultdict(float)
    most: dict[Location, _Piece] = {}
    for piece in pieces:
        row = piece.row
        at = row.at
        sums[at] += piece.samples
        times[at] += piece.samples * worth(row.phase)
        functions[row.file, row.function] += piece.samples
        if at not in most or piece.samples > most[at].samples:
            most[at] = piece

    def heat(row: LineRow, samples: float) -> float:
        # Samples lean to lines that give the interpreter lock away, stacks to lines that call much: the hottest line
        # is hot in both.
        return samples * stacks.own_ns(row.file, row.line)

    def order(at: Location) -> tuple[float, str, str, float, float]:
        row = most[at].row
        return -functions[row.file, row.function], row.file, row.function, -heat(row, sums[at]), -sums[at]

    rows = tuple(
        HostLine(
            file=(row := most[at].row).file,
            line=row.line,
            function=row.function,
            phase=row.phase,
            samples=round(sums[at]),
            host_ns=round(times[at]),
            within=most[at].within,
            called_from=row.called_from,
        )
        for at in sorted(sums, key=order)
    )
    return HostWork(kind=kind, samples=round(sum(sums.values())), host_ns=round(sum(times.values())), lines=rows)
