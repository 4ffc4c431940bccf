"""A `datasets.Dataset` without a format: it hands out Python lists, of which each batch makes tensors again.

A list has one Python object per number, so what that takes grows with the numbers, while a dataset with a format copies
its table. Measured (datasets 5.2, transformers 5.23, one thread of a machine with 2 CPUs), ms per batch of 32 samples
and their label:

    a sample                  numbers per column  collate_fn              lists   "torch"  "numpy"
    4,096 floats                           2,048  default_data_collator   17.3    0.67     0.53
    512 ints and their mask                  341  default_data_collator    4.86   0.83     0.65
    512 ints                                 256  default_data_collator    2.40   0.56     0.47
    512 floats                               256  torch's default_collate  4.37   0.66     0.57
    512 floats, batches of 8                 256  default_data_collator    0.63   0.28     0.24
    Array2D of 28 x 28                       392  default_data_collator    6.22   2.84     2.64
    256 floats                               128  default_data_collator    1.29   0.54     0.44
    256 floats, batches of 8                 128  default_data_collator    0.35   0.28     0.23
    128 floats                                64  default_data_collator    0.75   0.54     0.45
    8 columns of 64 floats                    57  default_data_collator    2.83   1.88     1.57
    64 ints                                   32  default_data_collator    0.44   0.53     0.43
    4 numbers                                  1  default_data_collator    0.28   1.28     0.83
    lists of 28 lists of 28                  392  default_data_collator    4.33  10.1      7.35
    512 ints and their mask                  341  DataCollatorWithPadding  8.33   9.64     9.12
    512 ints                                 512  DataCollatorForLanguage- 11.5  12.2     12.1
                                                  Modeling

From 200 numbers per column on a format saved 54% or more; below 100 it may cost more than it saves, and so it does for
lists in lists, and for the collators of a tokenizer, which make lists of the tensors again.
"""

from __future__ import annotations

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.ledger.step_budget import MAJORITY, StepBudget, StepPart
from perfkit.limits.loader_workers import HANDOVER_NS
from perfkit.rules.data._loader_use import LoaderUse
from perfkit.run.records import LineRow

#: Numbers of a sample per column from which a format is advised, and the share of the wait that it saves at least.
_MIN_NUMBERS, _SAVED = 200, 0.5
#: The functions and classes that make tensors of lists, and of tensors at once.
_COLLATES = ("default_collate", "default_data_collator", "torch_default_data_collator", "DefaultDataCollator")
_OF_LIBRARIES = ("torch.", "transformers.")
#: What a fetch passes through, as the sampler names libraries.
_LOADER = "torch.utils.data"


def lists_found(
    step: StepBudget, wait: StepPart, cost: int, loader: LoaderUse, hottest: LineRow | None
) -> Finding | None:
    """Most of the wait is for tensors that are made of long Python lists, in the training process."""
    numbers, collate = _numbers_in_lists(loader), (loader.collate_fn or "").rpartition(".")[2]
    if numbers is None or hottest is None or not _is_fetched(hottest):
        return None
    minimum = round(_SAVED * cost)
    if step.device is not None:
        minimum = max(0, min(minimum, step.of_device(step.device.causes.get("data loading", 0)) - HANDOVER_NS))
    return step.finding(
        cost=cost,
        saving=(minimum, step.maximum_saving(cost)),
        spent=hottest,
        change=loader.dataset_at,
        message=(
            f"Waiting for data takes {ms(wait.ns)} of the {ms(step.wall_ns)} {step.per} ({step.percent(wait.ns)}): the "
            f"datasets.Dataset has no format, so it hands out Python lists, {numbers:,} numbers per sample, of which "
            f"{collate} makes tensors again in each batch."
        ),
        advice=(
            'Give the dataset a format: dataset = dataset.with_format("torch"), or "numpy". Its samples are then read '
            "from its table as tensors, and no list is made."
        ),
        confidence="high" if step.typical is not None else "medium",
        evidence=(
            Evidence.ms("waiting for data", wait.ns, wait.source),
            Evidence.percent("share of the step", wait.ns, step.wall_ns, step.source),
            Evidence("format of the dataset", "none", "", f"DataLoader over {loader.dataset}"),
            Evidence("numbers per sample", numbers, "", "the first row of the dataset's table"),
            Evidence.ms("minimum saving", minimum, "half of the wait, as for the shortest lists that were measured"),
            Evidence.ms("time in the line", hottest.host_ns, f"{hottest.samples} samples of stacks"),
        ),
    )


def _numbers_in_lists(loader: LoaderUse) -> int | None:
    """How many numbers a sample has in lists that a format would save; None where it would save none."""
    table = loader.table
    if table is None or table.format != "python" or table.numbers is None or loader.num_workers or loader.restarted:
        return None
    name = loader.collate_fn or ""
    collates = name.startswith(_OF_LIBRARIES) and name.rpartition(".")[2] in _COLLATES
    return table.numbers if collates and table.numbers >= _MIN_NUMBERS * table.columns else None


def _is_fetched(hottest: LineRow) -> bool:
    """Whether most of the line is the loader's fetch: a format changes nothing of what a sampler of the user's does."""
    fetched = sum(count for libraries, count in hottest.within.items() if _LOADER in libraries.split(" > "))
    return fetched > MAJORITY * hottest.samples
