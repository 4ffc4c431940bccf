"""A tagger is trained on sentences sorted by length, in batches of about as many tokens each, in random order."""

import random
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

WORDS, TAGS, SENTENCES, BUDGET, EPOCHS = 3000, 12, 1600, 600, 2


def batches_of(lengths: list[int]) -> list[list[int]]:
    """Numbers of sentences of nearly one length, at most BUDGET tokens with their padding."""
    made: list[list[int]] = [[]]
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if (len(made[-1]) + 1) * lengths[number] > BUDGET:
            made.append([])
        made[-1].append(number)
    return made


def epoch(words: list[Tensor], tags: list[Tensor], batches: list[list[int]]) -> Iterator[tuple[Tensor, Tensor]]:
    """All batches once."""
    random.shuffle(batches)
    for batch in batches:
        yield (
            pad_sequence([words[number] for number in batch], batch_first=True),
            pad_sequence([tags[number] for number in batch], batch_first=True, padding_value=-100),
        )


class Tagger(nn.Module):
    """A tag for each word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 160, padding_idx=0)
        layer = nn.TransformerEncoderLayer(160, 4, 480, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.tag = nn.Linear(160, TAGS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.tag(self.layers(self.words(ids), src_key_padding_mask=ids == 0))


def main() -> None:
    random.seed(0)
    torch.manual_seed(0)
    lengths = [random.randint(8, 60) for _ in range(SENTENCES)]
    words = [torch.randint(1, WORDS, (length,)) for length in lengths]
    tags = [ids % TAGS for ids in words]
    batches = batches_of(lengths)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    for number in range(EPOCHS):
        total = torch.zeros(())
        for ids, labels in epoch(words, tags, batches):
            loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        print(f"epoch {number}: loss {total.item() / len(batches):.3f}")


if __name__ == "__main__":
    main()
