"""The step prepares its own inputs: it decodes, tokenizes or augments before the model can start.

Problem: in every step, texts, pictures or sounds are converted to tensors on the CPU, one after the other, in the
process that trains or serves. The model waits for all of it.

How it shows: 5% of the step or more is spent outside ops and fetches, in lines that run before the model in their step,
or in a library that decodes, tokenizes, parses or transforms (PIL, tokenizers, re, pandas, torchvision ...). Time
inside the fetch of a loader is reported by input-bound.

Causes: tokenization per request or per epoch although texts repeat; decoding in the loop; numpy per sample where one
call per batch would do; inputs drawn item by item in Python.

Fix: do it once, in one call per batch, on the device, or in background processes.

    codes = {text: tokenize(text) for text in texts}      # once; or a cache (functools.lru_cache) where texts repeat

    class Pictures(Dataset):                              # and DataLoader(..., num_workers=4)
        def __getitem__(self, i):
            return decode(self.files[i])

    images = augment(images.to(device))                   # batched tensor ops, not numpy per image
    tokenizer = AutoTokenizer.from_pretrained(name)       # is_fast must be True; tokenizer(texts), not text by text

Saving: at most all of that time (done before training), with the error of sampling, and on a CPU 15% more, because the
rest of the step then finds its caches as it left them. At least what background workers hide of it, counted as in
input-bound, and no less than 70%: work that repeats, or that takes samples one by one, is saved by a cache or by one
call per batch too.

Line to edit: the call, as all of its work can be done elsewhere; the line itself where it is in a loop over samples of
a function that is called once in the step, because that loop is what one call per batch replaces.

Whether a loader gives the same samples in each epoch is recorded; of what the loop makes of them it is not known.

Source: time is sampled every 10 ms outside windows, or taken from the step for lines where a run is too short for that;
the step that is traced by line shows which lines run before the model. The thresholds are 5% of the step and 10
samples, or fewer that are certainly a tenth of all. 70% was chosen. A tokenizer of transformers written in Python took
5 times as long as the compiled one for the same tokens (transformers 5.23, BERT, 64 texts of 200 words, 2 CPUs).
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import shown_function
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import PYTHON, Selector
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.host import HostWork
from perfkit.rules._host_work import confidence_in, evidence_of, library_of, work_of
from perfkit.rules._loops import is_in_rollout
from perfkit.rules._numpy_draws import draw_advice
from perfkit.rules._places import call_of, loops_over_batch
from perfkit.rules.data import _equal_samples as equal_samples
from perfkit.rules.data._loader_use import LoaderUse
from perfkit.rules.data._loader_workers import Processor
from perfkit.run.records import ComparedSamples, Lines

ID = "cpu-preprocessing"
#: What a rare step does, or what grows, is no preparation of inputs.
FOLLOWS_IN_FUNCTION = ("rare-steps", "growing-step", "repeated-work")
FOLLOWS_AT_LINE = ("saved-views",)
CLAIMS = (*PYTHON, Selector(phase="data"))

#: The share that is saved at least: chosen, four programs saved 0.75 to 1.1 times that time, a fifth half of it.
_MINIMUM = 0.7
#: Where `perfkit.record.samplers.line_sampler.library_of` counts tokenizers that are written in Python.
_SLOW_TOKENIZER = "transformers.tokenization_python"
_FAST_TOKENIZER = (
    " This tokenizer is written in Python: the compiled one of the same name (tokenizer.is_fast is True, "
    "use_fast=True before transformers 5) took a fifth of its time where it was measured."
)


def check(
    step: StepBudget,
    works: tuple[HostWork, ...],
    processor: Processor,
    lines: Lines | None = None,
    loader: LoaderUse | None = None,
) -> Iterator[Finding]:
    """Find work in the step that prepares the model's inputs."""
    work = work_of(works, "preprocessing")
    if work is None:
        return
    cost = min(step.wall_ns, step.of_mean(work.host_ns))
    if step.is_negligible(cost):
        return
    hidden, assumption = processor.hidden(step.wall_ns, cost)
    line = work.lines[0]
    function = shown_function(line)
    library = f" ({library_of(line)})" if line.within else ""
    draws = draw_advice(line, (line.within or "",), lines)
    # What the loop itself prepares may draw random numbers, whatever the loader gives it.
    samples = loader.samples if loader is not None and line.phase == "data" else None
    slow_tokenizer = any(_SLOW_TOKENIZER in (row.within or "").split(" > ") for row in work.lines)
    yield step.finding(
        # An agent's environment prepares what its model is asked: how much of that is needed is not known.
        severity="info" if is_in_rollout(line, lines) else None,
        cost=cost,
        saving=(
            step.minimum_saving(min(cost, max(hidden, _MINIMUM * cost)), samples=work.samples),
            step.maximum_saving(cost, samples=work.samples),
        ),
        spent=line,
        change=None
        if draws or loops_over_batch(line, lines)
        else call_of(line, lines, once=equal_samples.are_equal(samples) is True),
        message=(
            f"Preparing the model's inputs takes {step.shown(cost)}, inside the step itself, most of it in "
            f"{function}{library}."
        ),
        advice=(f"{draws}{_advice(function, processor.workers, samples)}{_FAST_TOKENIZER if slow_tokenizer else ''}"),
        confidence=confidence_in(work),
        evidence=(
            *evidence_of(work),
            *equal_samples.evidence_of(samples),
            Evidence.ms("hidden by workers", min(hidden, cost), assumption),
        ),
    )


def _advice(function: str, workers: int, samples: ComparedSamples | None) -> str:
    work, equal = f"the work of {function}", equal_samples.are_equal(samples)
    if equal is None:
        return (
            f"Do {work} once, before the loop, or cache its results where inputs repeat; else in one call per batch, "
            f"or in background processes: a DataLoader with num_workers={workers}."
        )
    loader = f"DataLoader(..., num_workers={workers})"
    return (equal_samples.once_advice if equal else equal_samples.each_time_advice)(work, loader)
