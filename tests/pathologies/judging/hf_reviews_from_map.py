"""Reviews are tokenized with datasets.map, in batches and once, and classified by a small BERT."""

import random
import sys
import tempfile

import torch
from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

FIXED = "--fixed" in sys.argv
VOCABULARY = {word: code for code, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *map(str, range(500))])}
disable_progress_bars()


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Whole words, with the marks of BERT around them."""
    words = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", model_max_length=256)


def build_reviews(count: int) -> Dataset:
    """Most reviews have some sentences, few have pages."""
    draw = random.Random(0)
    lengths = [min(250, int(draw.lognormvariate(3.4, 0.5))) for _ in range(count)]
    texts = [" ".join(str(draw.randrange(500)) for _ in range(length)) for length in lengths]
    return Dataset.from_dict({"text": texts, "label": [draw.randrange(2) for _ in texts]})


torch.manual_seed(0)
tokenizer = build_tokenizer()
padding = False if FIXED else "max_length"  # change: padding-wasted
data = build_reviews(400).map(
    lambda rows: tokenizer(rows["text"], truncation=True, padding=padding),  # change: padding-wasted
    batched=True,
    remove_columns=["text"],
)
model = BertForSequenceClassification(
    BertConfig(vocab_size=504, hidden_size=96, num_hidden_layers=3, num_attention_heads=3, intermediate_size=384)
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=8,
        max_steps=50,
        learning_rate=3e-4,
        optim="adamw_torch_fused",
        logging_steps=25,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data, data_collator=DataCollatorWithPadding(tokenizer))
    trainer.train()  # spent: padding-wasted
