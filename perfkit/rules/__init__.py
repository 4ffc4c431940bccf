"""Rules: one problem per file, numbers in, findings out.

A rule is a module with an ``ID``, a docstring that `perfkit explain ID` prints (problem, how it shows,
causes, fix, gain, source), and ``check(measured)``, which yields one `Finding` per problem found. A rule
reads `Measured` and nothing else, and imports no other rule. To add one: write the file, name it below,
test it on the smallest `Measured` that shows the problem and on a healthy one.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from typing import Protocol

from perfkit.errors import UsageError
from perfkit.findings import Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules.compile import graph_breaks, recompiles
from perfkit.rules.data import cpu_preprocessing, imbalanced_data, input_bound
from perfkit.rules.device import copies_dominate, cuda_graph_candidate, launch_bound, low_occupancy, small_grid
from perfkit.rules.kernels import dram_underused, latency_bound_kernel, register_pressure
from perfkit.rules.memory import (
    allocator_thrash,
    grad_in_evaluation,
    gradients_not_set_to_none,
    memory_growth,
    memory_near_limit,
)
from perfkit.rules.ops import (
    attention_unfused,
    conv_bias_before_norm,
    float64_in_step,
    fp32_without_tf32,
    layout_conversion,
    low_precision_unused,
    many_small_ops,
    unfriendly_shapes,
    unfused_elementwise,
    unfused_optimizer,
)
from perfkit.rules.python import (
    checkpoint_in_step,
    gc_pauses,
    logging_in_step,
    loop_over_samples,
    python_bound,
    unexpected_call_count,
    validation_too_often,
)
from perfkit.rules.ranks import exposed_communication, node_slowed, slow_rank
from perfkit.rules.settings import (
    anomaly_detection,
    cudnn_benchmark_off,
    deterministic_mode,
    launch_blocking,
    thread_counts,
)
from perfkit.rules.sync import blocking_copy, pageable_copy, sync_in_step
from perfkit.rules.verdicts import cannot_tell, compute_bound, memory_bound


class Rule(Protocol):
    """What a rule module offers."""

    ID: str

    def check(self, measured: Measured) -> Iterator[Finding]:
        """Yield a finding for each place where the problem shows; never raise for parts that are absent."""
        ...


#: Rules that look for a problem.
PROBLEMS: tuple[Rule, ...] = (
    input_bound,
    cpu_preprocessing,
    python_bound,
    loop_over_samples,
    unexpected_call_count,
    gc_pauses,
    logging_in_step,
    checkpoint_in_step,
    validation_too_often,
    sync_in_step,
    many_small_ops,
    copies_dominate,
    pageable_copy,
    blocking_copy,
    float64_in_step,
    attention_unfused,
    unfused_elementwise,
    layout_conversion,
    unfused_optimizer,
    fp32_without_tf32,
    low_precision_unused,
    unfriendly_shapes,
    conv_bias_before_norm,
    small_grid,
    low_occupancy,
    exposed_communication,
    launch_bound,
    cuda_graph_candidate,
    recompiles,
    graph_breaks,
    slow_rank,
    node_slowed,
    imbalanced_data,
    gradients_not_set_to_none,
    anomaly_detection,
    deterministic_mode,
    thread_counts,
    launch_blocking,
    cudnn_benchmark_off,
    grad_in_evaluation,
    allocator_thrash,
    memory_growth,
    memory_near_limit,
    register_pressure,
    latency_bound_kernel,
    dram_underused,
)

#: Rules that speak only where no problem with a price was found: the healthy ends, and the open one.
VERDICTS: tuple[Rule, ...] = (memory_bound, compute_bound, cannot_tell)

RULES: tuple[Rule, ...] = (*PROBLEMS, *VERDICTS)

#: rule id -> ids of the rules that explain it, nearest first: with both found, only the cause is to be corrected.
EXPLAINED_BY: dict[str, tuple[str, ...]] = {
    # The Python in the step is the compiler's, or what anomaly detection writes down for every node.
    python_bound.ID: (recompiles.ID, anomaly_detection.ID, graph_breaks.ID),
    many_small_ops.ID: (anomaly_detection.ID,),
    # Dynamo makes the objects that are collected.
    gc_pauses.ID: (recompiles.ID,),
    # A collective waits for the rank that comes last.
    exposed_communication.ID: (slow_rank.ID, imbalanced_data.ID),
    # Its GPU is slowed; the rule looks at the rank that the others wait for.
    slow_rank.ID: (node_slowed.ID,),
    # A device that waits for launches while a loop of small ops makes them waits for that loop.
    launch_bound.ID: (
        many_small_ops.ID,
        unfused_optimizer.ID,
        loop_over_samples.ID,
        python_bound.ID,
        cpu_preprocessing.ID,
    ),
    copies_dominate.ID: (pageable_copy.ID, blocking_copy.ID),
    # One graph is what can be done about the device's waiting for launches; their cause is corrected first.
    cuda_graph_candidate.ID: (many_small_ops.ID, unfused_optimizer.ID, launch_bound.ID),
    # TF32 is one line and changes no type; what half precision gains beyond it is seen after that.
    low_precision_unused.ID: (fp32_without_tf32.ID, float64_in_step.ID),
    # Kernels that are small because a loop makes them.
    small_grid.ID: (many_small_ops.ID, loop_over_samples.ID),
}


#: The same, where both are at one line of the user's.
EXPLAINED_AT_LINE: dict[str, tuple[str, ...]] = {
    # The read of a value is what Dynamo cannot trace.
    sync_in_step.ID: (graph_breaks.ID,),
    # The loop over heads is the attention: what one call leaves of it is known better than of any loop.
    many_small_ops.ID: (attention_unfused.ID,),
}


#: The same, where both are in one function of the user's.
EXPLAINED_IN_FUNCTION: dict[str, tuple[str, ...]] = {
    # A loop that calls small ops, or layers, is Python too, between them; its own finding counts that time.
    python_bound.ID: (many_small_ops.ID, loop_over_samples.ID),
}


def explain(rule_id: str) -> str:
    """What `perfkit explain` prints about a rule.

    Raises:
        UsageError: no rule has this id; the text names the nearest ones.
    """
    for rule in RULES:
        if rule_id == rule.ID:
            return f"{rule.ID}: {inspect.getdoc(rule)}"
    ids = [rule.ID for rule in RULES]
    near = difflib.get_close_matches(rule_id, ids, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(ids)}"
    raise UsageError(f"no rule is called {rule_id!r}: {hint}")
