"""The dry run of a Hugging Face Trainer: syncs are reported at the user's lines, with the library that made them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from perfkit.syncs import detect_syncs

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

#: In three steps. The Trainer's own syncs count at the line that called it.
PROGRAM = """\
class OurTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **others):
        outputs = model(**inputs)
        if outputs.loss > 1e9:  # sync: 3
            raise SystemExit("diverged")
        wrong = outputs.logits.argmax(-1) != inputs["labels"]
        self.errors += wrong.float().mean().item()  # sync: 3
        return (outputs.loss, outputs) if return_outputs else outputs.loss


trainer = OurTrainer(model=build(), args=TrainingArguments(**arguments), train_dataset=data)
trainer.errors = 0.0
trainer.train()
"""


class Sentences(torch.utils.data.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> dict[str, Any]:
        words = torch.arange(6) + number
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": torch.tensor(number % 2)}


def build() -> Any:
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    return transformers.BertForSequenceClassification(config)


def test_a_trainer_runs_dry_and_each_sync_has_its_owner(tmp_path: Path, run_program: Any, marks: Any) -> None:
    arguments = {
        "output_dir": str(tmp_path),
        "max_steps": 3,
        "per_device_train_batch_size": 2,
        "report_to": [],
        "disable_tqdm": True,
        "logging_steps": 2,
        "save_strategy": "no",
    }
    names = {"Trainer": transformers.Trainer, "TrainingArguments": transformers.TrainingArguments, "build": build}
    with warnings.catch_warnings(), detect_syncs("dry") as syncs:
        warnings.simplefilter("ignore")  # transformers' own deprecations
        program = run_program(PROGRAM, **names, arguments=arguments, data=Sentences())

    assert {event.line: event.count for event in syncs.events if event.owner == "user"} == marks(PROGRAM)
    assert {event.owner for event in syncs.events} == {"user", "transformers", "accelerate"}
    assert all(event.via and event.owner in event.via for event in syncs.events if event.owner != "user")
    assert program["trainer"].state.global_step == 3
