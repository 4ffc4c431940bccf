"""The second stage of a search: a cross-encoder scores each found passage with the question, one pair per call."""

import random
import sys
from dataclasses import dataclass

import torch
from transformers import BertConfig, BertForSequenceClassification

FIXED = "--fixed" in sys.argv
CLS, SEP = 1, 2
QUESTIONS, CANDIDATES, KEPT = 90, 16, 4


@dataclass
class Passage:
    """A passage of the collection."""

    number: int
    ids: list[int]


class Reranker:
    """Orders passages by how well they answer a question."""

    def __init__(self) -> None:
        config = BertConfig(
            vocab_size=3000,
            hidden_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=192,
            max_position_embeddings=96,
            num_labels=1,
        )
        self.model = BertForSequenceClassification(config).eval()

    @torch.inference_mode()
    def scores(self, question: list[int], passages: list[Passage]) -> torch.Tensor:
        """One number per passage."""
        pairs = [[CLS, *question, SEP, *passage.ids, SEP] for passage in passages]
        if FIXED:
            return self._batch(pairs)
        found = []
        for pair in pairs:  # change: loop-over-samples
            ids = torch.tensor([pair])
            logits = self.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits  # spent: loop-over-samples
            found.append(logits[0, 0])
        return torch.stack(found)

    def _batch(self, pairs: list[list[int]]) -> torch.Tensor:
        longest = max(map(len, pairs))
        ids = torch.tensor([pair + [0] * (longest - len(pair)) for pair in pairs])
        return self.model(input_ids=ids, attention_mask=(ids > 0).long()).logits[:, 0]

    def best(self, question: list[int], passages: list[Passage]) -> list[Passage]:
        """The passages to show to the generator."""
        order = self.scores(question, passages).topk(KEPT).indices.tolist()
        return [passages[place] for place in order]


def main() -> None:
    torch.manual_seed(0)
    draw = random.Random(0)
    collection = [Passage(number, draw.choices(range(3, 3000), k=draw.randint(28, 34))) for number in range(400)]
    reranker = Reranker()
    for _ in range(QUESTIONS):
        question = draw.choices(range(3, 3000), k=draw.randint(5, 9))
        shown = reranker.best(question, draw.sample(collection, CANDIDATES))
    print([passage.number for passage in shown])


if __name__ == "__main__":
    main()
