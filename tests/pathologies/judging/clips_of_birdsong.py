"""Bird species from clips of their song: mel frames, a recurrent network, the mean over the frames of a clip."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv
CLIPS, BATCH, BANDS, LONGEST, WIDTH, SPECIES = 500, 10, 40, 400, 96, 12


class Clips(Dataset):
    """Frames of a clip and its species; most clips are short."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(11)
        self.lengths = (100 + 30 * torch.rand(CLIPS, generator=generator)).long().tolist()
        self.lengths[17] = LONGEST
        self.clips = [torch.randn(length, BANDS, generator=generator) for length in self.lengths]

    def __len__(self) -> int:
        return CLIPS

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.clips[index], index % SPECIES


def collate(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Frames, lengths and species."""
    lengths = torch.tensor([len(clip) for clip, _ in samples])
    frames = int(lengths.max()) if FIXED else LONGEST  # change: padding-wasted
    padded = torch.zeros(len(samples), frames, BANDS)  # change: padding-wasted
    for row, (clip, _) in enumerate(samples):
        padded[row, : len(clip)] = clip
    return padded, lengths, torch.tensor([species for _, species in samples])


class Listener(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(BANDS, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, SPECIES)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        states, _ = self.recurrent(frames)  # spent: padding-wasted
        inside = torch.arange(frames.shape[1])[None] < lengths[:, None]
        mean = (states * inside[..., None]).sum(1) / lengths[:, None]
        return self.head(mean)


def main() -> None:
    torch.manual_seed(0)
    model = Listener()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    for frames, lengths, species in DataLoader(Clips(), batch_size=BATCH, shuffle=True, collate_fn=collate):
        loss = nn.functional.cross_entropy(model(frames, lengths), species)  # spent: padding-wasted
        optimizer.zero_grad()
        loss.backward()  # spent: padding-wasted
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
