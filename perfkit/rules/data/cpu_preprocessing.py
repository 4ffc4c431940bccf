"""The step makes its own inputs: it decodes, tokenizes or augments before the model can start.

Problem: texts, pictures or sounds are turned into tensors on the CPU in every step, one after the
other, in the process that trains or serves. The model waits for all of it.

How it shows: 5% of the step or more passes outside of ops and fetches, in lines that run before the
model in their step, or in a library that decodes, tokenizes, parses or transforms (PIL, tokenizers, re,
pandas, torchvision ...). What passes inside the fetch of a loader is told by `input-bound`.

Causes: tokenization per request or per epoch, although texts come again; decoding in the loop; numpy
per sample where one call per batch would do; inputs drawn item by item in Python.

Fix: do it once, in one call per batch, on the device, or in processes beside the step.

    codes = {text: tokenize(text) for text in texts}      # once; a cache (functools.lru_cache) where texts repeat

    class Pictures(Dataset):                              # and DataLoader(..., num_workers=4)
        def __getitem__(self, i):
            return decode(self.files[i])

    images = augment(images.to(device))                   # batched tensor ops, not numpy per image

Gain: at most all of that time (done ahead), with the error of sampling, and on a CPU 15% more, since the
rest then finds its caches as it left them. At least what background workers hide of it, counted as in
`input-bound`; but no less than 70%: work that repeats, or takes the samples one by one, loses that by a
cache or by one call per batch too.

Source: time is sampled (every 10 ms, outside of windows); which lines run before the model is known from
the step that is traced by line. From 5% of the step on, and from 10 samples on. 70%: four programs of the
labelled suite gained 0.75 to 1.1 times the time, a fifth (numpy per image against tensor ops over the
batch) half of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._host_work import at_most, host_evidence, in_typical_step, in_words, work_of
from perfkit.rules._step_budget import NEGLIGIBLE, severity_of, whole_of
from perfkit.rules.data._loader_workers import hidden_by_workers, workers_for

ID = "cpu-preprocessing"

#: The least share that goes (see above).
_GOES = 0.7


def check(measured: Measured) -> Iterator[Finding]:
    """Find the making of inputs in the step."""
    whole = whole_of(measured)
    work = work_of(measured, "preprocessing")
    if whole is None or work is None:
        return
    cost_ns = min(whole.wall_ns, in_typical_step(measured, work.host_ns))
    if cost_ns < NEGLIGIBLE * whole.wall_ns:
        return
    hidden_ns, assumption = hidden_by_workers(measured, whole.wall_ns, cost_ns)
    line = work.lines[0]
    workers = workers_for(measured)
    where = in_words(line)
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"Making the model's inputs takes {ms(cost_ns)} of the {ms(whole.wall_ns)} {whole.per} "
            f"({percent(cost_ns, whole.wall_ns)}), in the step itself, most of it in {line.function}"
            f"{f' ({where})' if where else ''}."
        ),
        advice=(
            f"Do the work of {line.function} once, ahead of the loop, or keep its answers where inputs repeat; "
            f"else in one call per batch, or beside it: a DataLoader with num_workers={workers}."
        ),
        confidence="high" if work.samples >= 100 else "medium",
        evidence=(
            *host_evidence(work),
            Evidence("hidden by workers", round(min(hidden_ns, cost_ns) / 1e6, 3), "ms", assumption),
        ),
        file=line.file,
        line=line.line,
        function=line.function,
        cost_ns=cost_ns,
        saving_low_ns=min(cost_ns, max(hidden_ns, round(_GOES * cost_ns))),
        saving_high_ns=at_most(cost_ns, work.samples, measured, whole),
    )
