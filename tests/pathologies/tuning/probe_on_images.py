"""Fit a new classification head on a pretrained convolutional backbone."""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

FIXED = "--fixed" in sys.argv

N_IMAGES = 2_560
SIZE = 40
N_CLASSES = 8
BATCH = 16
EPOCHS = 2


class ResidualBlock(nn.Module):
    def __init__(self, channels_in, channels_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.skip = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)

    def forward(self, x):
        out = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(out)) + self.skip(x))


class Backbone(nn.Module):
    def __init__(self, widths=(24, 48, 96)):
        super().__init__()
        blocks, channels = [], 3
        for i, width in enumerate(widths):
            blocks.append(ResidualBlock(channels, width, 1 if i == 0 else 2))
            channels = width
        self.blocks = nn.Sequential(*blocks)
        self.out_features = channels

    def forward(self, x):
        return self.blocks(x).mean(dim=(2, 3))


def load_pretrained(seed=11):
    """Stands in for reading the weights published with the paper."""
    torch.manual_seed(seed)
    return Backbone()


class Probe(nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(nn.Linear(backbone.out_features, 128), nn.ReLU(), nn.Linear(128, N_CLASSES))

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, images):
        if FIXED:
            with torch.no_grad():
                features = self.backbone(images)
        else:
            features = self.backbone(images)  # spent: unused-gradients  # change: unused-gradients
        return self.head(features)


def make_images(seed=0):
    g = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(N_CLASSES, 3, SIZE // 4, SIZE // 4, generator=g)
    prototypes = F.interpolate(prototypes, scale_factor=4.0, mode="bilinear")
    labels = torch.randint(0, N_CLASSES, (N_IMAGES,), generator=g)
    images = 1.5 * prototypes[labels] + torch.randn(N_IMAGES, 3, SIZE, SIZE, generator=g)
    return images, labels


class Batches:
    """Shuffled, randomly mirrored and jittered batches."""

    def __init__(self, images, labels, size):
        self.images, self.labels, self.size = images, labels, size

    def __iter__(self):
        for chosen in torch.randperm(len(self.images)).split(self.size):
            images = self.images[chosen]
            mirrored = torch.rand(len(images)) < 0.5
            images[mirrored] = images[mirrored].flip(-1)
            images += 0.1 * torch.randn(len(images), 3, 1, 1)
            yield images, self.labels[chosen]


class Accuracy:
    def __init__(self):
        self.correct = self.seen = 0

    def update(self, logits, labels):
        self.correct += (logits.argmax(1) == labels).sum().item()
        self.seen += len(labels)

    def value(self):
        return self.correct / self.seen


def main():
    model = Probe(load_pretrained())
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    batches = Batches(*make_images(), BATCH)
    for epoch in range(EPOCHS):
        model.train()
        start, accuracy, losses = time.time(), Accuracy(), []
        for images, labels in batches:
            logits = model(images)  # spent: unused-gradients
            loss = criterion(logits, labels)
            model.zero_grad()
            loss.backward()  # spent: unused-gradients
            optimizer.step()
            accuracy.update(logits, labels)
            losses.append(loss.item())
        loss = sum(losses) / len(losses)
        print(f"epoch {epoch} loss {loss:.4f} accuracy {accuracy.value():.3f} ({time.time() - start:.1f}s)")
    print(f"final loss {loss:.4f}")


if __name__ == "__main__":
    main()
