"""Accelerate with gradient accumulation, a warm-up, and an evaluation after each of two epochs."""

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Tagger(nn.Module):
    """A label for each word of a sentence."""

    def __init__(self, words: int = 3000, tags: int = 17, width: int = 128) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.zeros(48, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, tags)

    def forward(self, sentence: Tensor) -> Tensor:
        return self.head(self.layers(self.words(sentence) + self.places))


@torch.no_grad()
def evaluate(accelerator: Accelerator, model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> float:
    """Share of right tags."""
    model.eval()
    right = []
    for sentence, tags in loader:
        found = accelerator.gather_for_metrics((model(sentence).argmax(-1) == tags).float().mean(1))
        right.append(found)
    model.train()
    return torch.cat(right).mean().item()


def main() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    torch.manual_seed(0)
    sentences = torch.randint(0, 3000, (1440, 48))
    data = TensorDataset(sentences, sentences % 17)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    rate = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=40)
    train = DataLoader(torch.utils.data.Subset(data, range(1280)), batch_size=16, shuffle=True)
    held_out = DataLoader(torch.utils.data.Subset(data, range(1280, 1440)), batch_size=80)
    model, optimizer, train, held_out, rate = accelerator.prepare(model, optimizer, train, held_out, rate)
    for epoch in range(2):
        for sentence, tags in train:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(sentence).flatten(0, 1), tags.flatten())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                rate.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: {evaluate(accelerator, model, held_out):.3f}")


if __name__ == "__main__":
    main()
