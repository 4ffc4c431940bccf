"""The labels: every program of the suite, the cause planted in it, and other rules that name the same cause.

A program is a script that runs on a CPU; ``--fixed`` runs its corrected twin, so the correction is the difference
between the two runs. A comment ``# planted: RULE`` marks each line that is a right answer: the line that causes the
cost, and the line to change if that is another one. perfkit reads neither the comments nor this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

HERE = Path(__file__).resolve().parent

Framework = Literal["plain", "lightning", "huggingface"]


class Program(NamedTuple):
    """One program and its label.

    ``rule`` is the planted cause, None in a healthy program. ``also`` has the ids of other rules for the same cause,
    each with the reason. ``quantified`` is False if the correction shortens no step on a CPU. ``bursts`` is True if the
    cost comes in some steps only, so means are compared and not medians. ``ranks`` processes run it.
    """

    name: str
    rule: str | None
    also: dict[str, str] = {}
    framework: Framework = "plain"
    use: Literal["training", "inference"] = "training"
    quantified: bool = True
    bursts: bool = False
    ranks: int = 1
    folder: Path = HERE

    @property
    def path(self) -> Path:
        """The script."""
        return self.folder / f"{self.name}.py"

    @property
    def accepted(self) -> set[str]:
        """The rule ids that are a right answer."""
        return {self.rule, *self.also} if self.rule else set()


PREPARES = {"cpu-preprocessing": "the wait for the loader is the work in its process: the same time at the same line"}
WAITS = {"input-bound": "the work is done in the loader's process, so the step waits for data at this line"}
UNFUSED = {"attention-unfused": "the loop over heads is the attention, and one fused call is its correction"}
BY_PARAMETER = {"unfused-optimizer": "the loop over parameters is the optimizer's step"}
PURE_PYTHON = {"python-bound": "there are too many calls and each runs pure Python: the same time at the same line"}
PREPARES_IN_STEP = {"cpu-preprocessing": "the Python code prepares the step's inputs, inside the step"}
SINGLE_OPS = {"many-small-ops": "the single ops are the optimizer's, at the optimizer's line"}
READS = {"sync-in-step": "the read that breaks the graph, at the same line"}
UNEQUAL = {"imbalanced-data": "the rank is slow because its samples are long"}
SMALL = {"many-small-ops": "the loop over samples runs small ops only: the same loop at the same line"}

PATHOLOGICAL: tuple[Program, ...] = (
    # Data.
    Program("images_without_workers", "input-bound", PREPARES),
    Program("remote_store_one_worker", "input-bound"),
    Program("compressed_files_each_epoch", "input-bound", PREPARES),
    Program("slow_collate", "input-bound", PREPARES),
    Program("short_epochs", "input-bound", bursts=True),
    Program("generator_loader", "input-bound", PREPARES),
    Program("lightning_without_workers", "input-bound", PREPARES, framework="lightning"),
    Program("hf_tokenize_in_collator", "cpu-preprocessing", WAITS, framework="huggingface"),
    Program("tokenize_per_request", "cpu-preprocessing", use="inference"),
    Program("augment_in_step", "cpu-preprocessing"),
    Program("decode_images_in_step", "cpu-preprocessing", use="inference"),
    # Syncs: found by the dry run; on a CPU they cost nothing that could be measured.
    Program("sync_item_accuracy", "sync-in-step", quantified=False),
    Program("sync_print_loss", "sync-in-step", quantified=False),
    Program("sync_hard_tokens", "sync-in-step", quantified=False),
    Program("sync_branch_on_tensor", "sync-in-step", quantified=False),
    Program("lightning_sync_numpy", "sync-in-step", framework="lightning", quantified=False),
    Program("sync_weights_from_list", "sync-in-step", quantified=False),
    Program("hf_sync_compute_loss", "sync-in-step", framework="huggingface", quantified=False),
    # Loops and calls.
    Program("ema_per_parameter", "many-small-ops"),
    Program("recurrence_by_time_step", "many-small-ops"),
    Program("attention_per_head", "many-small-ops", UNFUSED),
    Program("own_optimizer_by_parameter", "many-small-ops", BY_PARAMETER),
    Program("model_over_samples", "loop-over-samples"),
    Program("boxes_by_sample", "loop-over-samples", SMALL),
    Program("inference_one_by_one", "loop-over-samples", use="inference"),
    Program("forward_twice", "unexpected-call-count"),
    Program("lightning_forward_twice", "unexpected-call-count", framework="lightning"),
    Program("helper_per_token", "unexpected-call-count", PURE_PYTHON),
    Program("metric_in_python", "python-bound"),
    Program("negatives_in_python", "python-bound", PREPARES_IN_STEP),
    Program("adam_one_by_one", "unfused-optimizer", SINGLE_OPS),
    # What the ops compute.
    Program("double_to_silence_error", "float64-in-step"),
    Program("window_in_float64", "float64-in-step"),
    Program("attention_materialized", "attention-unfused"),
    Program("attention_materialized_inference", "attention-unfused", use="inference"),
    Program("permute_every_block", "layout-conversion"),
    Program("gelu_by_hand", "unfused-elementwise"),
    Program("gradients_zeroed_in_place", "gradients-not-set-to-none"),
    # torch.compile.
    Program("recompile_growing_sequence", "recompiles", bursts=True),
    Program("recompile_step_counter", "recompiles", bursts=True),
    Program("graph_break_statistics", "graph-breaks", READS),
    # Work besides the training.
    Program("collect_every_step", "gc-pauses"),
    Program("previews_keep_graph", "memory-growth", quantified=False),
    Program("history_as_json", "logging-in-step"),
    Program("lightning_histograms", "logging-in-step", framework="lightning"),
    Program("checkpoint_often", "checkpoint-in-step", bursts=True),
    Program("hf_save_steps", "checkpoint-in-step", framework="huggingface", bursts=True),
    Program("validate_often", "validation-too-often", bursts=True),
    Program("lightning_val_check_interval", "validation-too-often", framework="lightning", bursts=True),
    # Unequal work, and several processes.
    Program("padding_to_longest", "imbalanced-data", bursts=True),
    Program("ranks_of_unequal_work", "slow-rank", UNEQUAL, ranks=2),
    Program("all_reduce_by_parameter", "exposed-communication", ranks=2),
    # Settings.
    Program("anomaly_detection_on", "anomaly-detection"),
    # On a CPU, tensors saved for a backward pass cost memory but no measurable time.
    Program("evaluate_with_gradients", "grad-in-evaluation", use="inference", quantified=False),
    Program("threads_beyond_cores", "thread-counts"),
    Program("deterministic_mode_on", "deterministic-mode"),
)
HEALTHY: tuple[Program, ...] = (
    Program("healthy_mlp", None),
    Program("healthy_convolutions_with_workers", None),
    Program("healthy_transformer", None),
    Program("healthy_lstm", None),
    Program("healthy_lightning", None, framework="lightning"),
    Program("healthy_hf_trainer", None, framework="huggingface"),
    Program("healthy_batch_inference", None, use="inference"),
    Program("healthy_accumulation", None),
    Program("healthy_two_optimizers", None),
    Program("healthy_validation_per_epoch", None),
    Program("healthy_bfloat16", None),
    Program("healthy_compiled", None),
    Program("healthy_without_loader", None),
    Program("healthy_two_ranks", None, ranks=2),
    Program("healthy_policy_gradient", None),
)
PROGRAMS = (*PATHOLOGICAL, *HEALTHY)
