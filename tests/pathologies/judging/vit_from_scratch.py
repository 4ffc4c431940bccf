"""A vision transformer written by hand and trained as timm does: mixed pictures, dropped paths, averaged weights."""

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

CLASSES, STEPS = 20, 60


class DropPath(nn.Module):
    """Leaves out the branch for some samples."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.share == 0:
            return x
        kept = torch.empty(x.shape[0], 1, 1).bernoulli_(1 - self.share)
        return x * kept / (1 - self.share)


class Block(nn.Module):
    """Attention and two layers, each before a residual."""

    def __init__(self, width: int, heads: int, drop: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = DropPath(drop)

    def attend(self, x: Tensor) -> Tensor:
        """Attention of all patches to all patches."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attend(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)))


class VisionTransformer(nn.Module):
    """Patches of 8 x 8 from pictures of 64 x 64."""

    def __init__(self, width: int = 144, depth: int = 4, heads: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, stride=8)
        self.places = nn.Parameter(torch.randn(1, 64, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, 0.1 * i / depth) for i in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.blocks(x)).mean(1))


def mixed(pictures: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Each picture blended with another one of the batch, and its label too."""
    share = float(torch.distributions.Beta(0.8, 0.8).sample())
    targets = nn.functional.one_hot(labels, CLASSES).float()
    return share * pictures + (1 - share) * pictures.flip(0), share * targets + (1 - share) * targets.flip(0)


def main() -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.rand(STEPS * 16, 3, 64, 64), torch.randint(0, CLASSES, (STEPS * 16,)))
    model = VisionTransformer()
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for pictures, labels in DataLoader(data, batch_size=16, shuffle=True):
        x, y = mixed(pictures, labels)
        loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        averaged.update_parameters(model)
        rate.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
