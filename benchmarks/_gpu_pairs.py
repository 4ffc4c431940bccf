"""Training steps for a GPU, each with a mistake and without it: `bench_gpu.py` records one and times both in turns.

A pair is a function that makes a step, with the mistake unless it is ``fixed``. The line marked ``# spent`` is the one
in which its time passes; ``rules`` are the right answers, the planted cause first, none for a step without a mistake.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

Step = Callable[[Any], object]
#: Steps that a loader has batches for: those that are recorded, and those of all turns.
STEPS = 400


class Made(NamedTuple):
    """A step, and what it gets its batches from."""

    step: Step
    batches: Iterable[Any]


class GpuPair(NamedTuple):
    """A mistake: what makes the step, the right answers, and the change of `perfkit.what_if` that is the correction."""

    make: Callable[[bool], Made]
    rules: tuple[str, ...] = ()
    what_if: dict[str, Any] | None = None


PAIRS: dict[str, GpuPair] = {}


def pair(*rules: str, **what_if: Any) -> Callable[[Callable[[bool], Made]], Callable[[bool], Made]]:
    """Add a pair under the function's name."""

    def add(make: Callable[[bool], Made]) -> Callable[[bool], Made]:
        PAIRS[make.__name__] = GpuPair(make, rules, what_if or None)
        return make

    return add


# -- models and data


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def activate(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(self.activate(self.up(self.between(x))))


class HandAttention(Block):
    """Attention from products and a softmax."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v  # spent: attention_by_hand


class HandGelu(Block):
    """The activation from elementwise ops."""

    def activate(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))  # spent: gelu_by_hand


class Language(nn.Module):
    """A small language model."""

    def __init__(self, block: type[Block] = Block, *, width: int = 512, layers: int = 6, words: int = 8192) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(block(width, width // 64) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]  # nn.Module's call is not typed


def tokens_of(batch: int, length: int, words: int = 8192) -> Tensor:
    return torch.randint(words, (batch, length), device="cuda")


def trains(model: nn.Module, loss_of: Callable[[Any], Tensor], *, dtype: torch.dtype | None = torch.bfloat16) -> Step:
    """A training step without a mistake; without ``dtype`` in the precision of the model."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(batch: Any) -> Tensor:
        with torch.autocast("cuda", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def next_token(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())


def convolutions(width: int = 64, layers: int = 8) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False)]
    for _ in range(layers):
        parts += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100))


def narrow(layers: int, width: int = 128) -> nn.Sequential:
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU())]
    return nn.Sequential(*parts, nn.Linear(width, 10))


class Same:
    """The same batch for each step."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __iter__(self) -> Iterator[Any]:
        for _ in range(STEPS):
            yield self.batch


# -- pairs


@pair("input-bound", "cpu-preprocessing", hide_loader=8)
def images_augmented_in_the_loop(fixed: bool) -> Made:
    class Augmented(Dataset[tuple[Tensor, int]]):
        def __len__(self) -> int:
            return STEPS * 32

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            image = np.random.default_rng(index).random((3, 64, 64), np.float32)
            for _ in range(4):
                image = np.roll(image, 1, axis=2) * 0.9 + 0.1 * image  # spent: images_augmented_in_the_loop
            return torch.from_numpy(image), index % 100

    model = convolutions().cuda()
    work = trains(model, lambda batch: F.cross_entropy(model(batch[0]).float(), batch[1]))

    def step(batch: Any) -> None:
        images, labels = batch
        work((images.cuda(non_blocking=True), labels.cuda(non_blocking=True)))

    return Made(step, DataLoader(Augmented(), 32, num_workers=8 if fixed else 0, pin_memory=True))


@pair("copies-dominate", "pageable-copy", "blocking-copy", "sync-in-step", without=("copy-waits",))
def batches_from_pageable_memory(fixed: bool) -> Made:
    images = torch.randn(256, 3, 128, 128)
    images = images.pin_memory() if fixed else images
    labels = torch.randint(100, (256,), device="cuda")
    model = convolutions(32, 4).cuda()
    work = trains(model, lambda batch: F.cross_entropy(model(batch).float(), labels))

    def step(batch: Tensor) -> None:
        work(batch.cuda(non_blocking=True))  # spent: batches_from_pageable_memory

    return Made(step, Same(images))


@pair("sync-in-step", without=("sync",))
def loss_read_in_each_step(fixed: bool) -> Made:
    model = Language(layers=4).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    total = torch.zeros((), device="cuda")
    losses = []

    def step(tokens: Tensor) -> None:
        nonlocal total
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = next_token(model, tokens)
        if fixed:
            total = total + loss.detach()
        else:
            losses.append(loss.item())  # spent: loss_read_in_each_step
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Made(step, Same(tokens_of(8, 128)))


@pair("sync-in-step", "many-small-ops", "launch-bound")
def gradients_clipped_one_by_one(fixed: bool) -> Made:
    model = Language(layers=6).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(tokens: Tensor) -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = next_token(model, tokens)
        optimizer.zero_grad()
        loss.backward()
        if fixed:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        else:
            norm = math.sqrt(
                sum(p.grad.norm().item() ** 2 for p in model.parameters())
            )  # spent: gradients_clipped_one_by_one
            for p in model.parameters():
                p.grad.mul_(min(1.0, 1.0 / (norm + 1e-6)))
        optimizer.step()

    return Made(step, Same(tokens_of(16, 128)))


@pair("sync-in-step")
def accuracy_in_numpy(fixed: bool) -> Made:
    model = Language(layers=4).cuda()
    right = torch.zeros((), device="cuda")
    kept = []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(tokens: Tensor) -> None:
        nonlocal right
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        if fixed:
            right = right + (logits.argmax(-1) == tokens[:, 1:]).float().mean()
        else:
            guesses = logits.detach().float().cpu().numpy().argmax(-1)  # spent: accuracy_in_numpy
            kept.append((guesses == tokens[:, 1:].cpu().numpy()).mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Made(step, Same(tokens_of(8, 128)))


@pair("sync-in-step")
def loss_over_chosen_tokens(fixed: bool) -> Made:
    model = Language(layers=4).cuda()
    chosen = torch.rand(8, 127, device="cuda") < 0.5

    def loss_of(tokens: Tensor) -> Tensor:
        logits, target = model(tokens[:, :-1]).float(), tokens[:, 1:]
        if fixed:
            losses = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
            return (losses * chosen.flatten()).sum() / chosen.sum()
        return F.cross_entropy(logits[chosen], target[chosen])  # spent: loss_over_chosen_tokens

    return Made(trains(model, loss_of), Same(tokens_of(8, 128)))


@pair("unfused-optimizer", "many-small-ops", "launch-bound", fuse=("Optimizer.step#*",))
def adamw_one_by_one(fixed: bool) -> Made:
    model = narrow(100).cuda()
    labels = torch.randint(10, (512,), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fixed, foreach=False)

    def step(x: Tensor) -> None:
        loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # spent: adamw_one_by_one

    return Made(step, Same(torch.randn(512, 128, device="cuda")))


@pair("many-small-ops", "launch-bound", fuse=("average of weights",))
def average_of_weights_one_by_one(fixed: bool) -> Made:
    import perfkit

    model, average = narrow(80).cuda(), narrow(80).cuda()
    labels = torch.randint(10, (512,), device="cuda")
    new, old = list(model.parameters()), list(average.parameters())
    work = trains(model, lambda x: F.cross_entropy(model(x), labels), dtype=None)

    def step(x: Tensor) -> None:
        work(x)
        with torch.no_grad(), perfkit.range("average of weights"):
            if fixed:
                torch._foreach_lerp_(old, new, 0.01)
            else:
                for a, b in zip(old, new, strict=True):
                    a.mul_(0.99).add_(b, alpha=0.01)  # spent: average_of_weights_one_by_one

    return Made(step, Same(torch.randn(512, 128, device="cuda")))


@pair("launch-bound", "cuda-graph-candidate", "many-small-ops", without=("launch-overhead",))
def deep_and_narrow(fixed: bool) -> Made:
    model = narrow(60).cuda()
    labels = torch.randint(10, (64,), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=True)

    def work(x: Tensor) -> None:
        loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad(set_to_none=not fixed)
        loss.backward()
        optimizer.step()

    x = torch.randn(64, 128, device="cuda")
    if not fixed:
        return Made(work, Same(x))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work(x)
    # The graph holds addresses: what it reads and writes has to live as long.
    return Made(lambda _, kept=(work, x): graph.replay(), Same(x))


@pair("attention-unfused", "unfused-elementwise")
def attention_by_hand(fixed: bool) -> Made:
    model = Language(Block if fixed else HandAttention, layers=4).cuda()
    return Made(trains(model, lambda tokens: next_token(model, tokens)), Same(tokens_of(8, 2048)))


@pair("unfused-elementwise")
def gelu_by_hand(fixed: bool) -> Made:
    model = Language(Block if fixed else HandGelu, layers=6).cuda()
    return Made(trains(model, lambda tokens: next_token(model, tokens)), Same(tokens_of(32, 512)))


@pair("fp32-without-tf32", "low-precision-unused")
def products_in_float32(fixed: bool) -> Made:
    model = nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(4096, 4096), nn.ReLU()))).cuda()
    work = trains(model, lambda x: model(x).square().mean(), dtype=None)

    def step(x: Tensor) -> None:
        torch.set_float32_matmul_precision("high" if fixed else "highest")
        work(x)

    return Made(step, Same(torch.randn(2048, 4096, device="cuda")))


@pair("low-precision-unused")
def products_in_tf32(fixed: bool) -> Made:
    model = nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(4096, 4096), nn.ReLU()))).cuda()
    work = trains(model, lambda x: model(x).float().square().mean(), dtype=torch.bfloat16 if fixed else None)

    def step(x: Tensor) -> None:
        torch.set_float32_matmul_precision("high")
        work(x)

    return Made(step, Same(torch.randn(4096, 4096, device="cuda")))


@pair("layout-conversion", "low-precision-unused")
def images_channels_first(fixed: bool) -> Made:
    layout = torch.channels_last if fixed else torch.contiguous_format
    model = convolutions(128, 8).cuda().to(memory_format=layout)  # type: ignore[call-overload]  # torch's stub lacks it
    images = torch.randn(128, 3, 64, 64, device="cuda").contiguous(memory_format=layout)
    labels = torch.randint(100, (128,), device="cuda")
    return Made(trains(model, lambda x: F.cross_entropy(model(x).float(), labels)), Same(images))


@pair("float64-in-step")
def distances_in_float64(fixed: bool) -> Made:
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()
    points = torch.randn(4096, 512, device="cuda", dtype=torch.float32 if fixed else torch.float64)

    def loss_of(x: Tensor) -> Tensor:
        found = model(x).to(points.dtype)
        return torch.logsumexp(found @ points.T / 100, dim=1).mean().float()  # spent: distances_in_float64

    return Made(trains(model, loss_of, dtype=None), Same(torch.randn(4096, 512, device="cuda")))


@pair("recomputed-activations")
def everything_recomputed(fixed: bool) -> Made:
    model = Language(layers=6).cuda()

    def loss_of(tokens: Tensor) -> Tensor:
        x = model.embed(tokens[:, :-1])
        for block in model.blocks:
            x = block(x) if fixed else checkpoint(block, x, use_reentrant=False)  # spent: everything_recomputed
        return F.cross_entropy(model.head(x).flatten(0, 1).float(), tokens[:, 1:].flatten())

    return Made(trains(model, loss_of), Same(tokens_of(32, 512)))


@pair("loop-over-samples", "many-small-ops", "launch-bound")
def one_sequence_at_a_time(fixed: bool) -> Made:
    model = Language(layers=4).cuda()

    def loss_of(tokens: Tensor) -> Tensor:
        if fixed:
            return next_token(model, tokens)
        return torch.stack([next_token(model, one[None]) for one in tokens]).mean()  # spent: one_sequence_at_a_time

    return Made(trains(model, loss_of), Same(tokens_of(16, 128)))


@pair("repeated-work", "sync-in-step", "copies-dominate", "python-bound")
def mask_made_on_the_host(fixed: bool) -> Made:
    layers = nn.ModuleList(
        nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0) for _ in range(4)
    ).cuda()
    kept = []

    def mask() -> Tensor:
        rows = [
            [0.0 if b <= a else float("-inf") for b in range(256)] for a in range(256)
        ]  # spent: mask_made_on_the_host
        return torch.tensor(rows).cuda()

    def loss_of(x: Tensor) -> Tensor:
        if not kept or not fixed:
            kept[:] = [mask()]
        for layer in layers:
            x = layer(x, src_mask=kept[0])
        return x.float().square().mean()

    return Made(trains(layers, loss_of), Same(torch.randn(32, 256, 512, device="cuda")))


@pair("unused-gradients", "grad-in-evaluation")
def teacher_with_gradients(fixed: bool) -> Made:
    teacher, model = Language(layers=6).cuda(), Language(layers=4).cuda()

    def loss_of(tokens: Tensor) -> Tensor:
        with torch.set_grad_enabled(not fixed):
            wanted = teacher(tokens).float().log_softmax(-1)  # spent: teacher_with_gradients
        return F.kl_div(model(tokens).float().log_softmax(-1), wanted, log_target=True, reduction="batchmean")

    return Made(trains(model, loss_of), Same(tokens_of(16, 256)))


@pair("checkpoint-in-step", "logging-in-step", "sync-in-step")
def weights_written_in_each_step(fixed: bool) -> Made:
    import io

    model = Language(layers=4).cuda()
    work = trains(model, lambda tokens: next_token(model, tokens))
    count = 0

    def step(tokens: Tensor) -> None:
        nonlocal count
        work(tokens)
        count += 1
        if not fixed or count % 100 == 0:
            torch.save(model.state_dict(), io.BytesIO())  # spent: weights_written_in_each_step

    return Made(step, Same(tokens_of(16, 256)))


# -- steps without a mistake


@pair()
def language_model_in_bfloat16(fixed: bool) -> Made:
    model = Language(width=1024, layers=8).cuda()
    return Made(trains(model, lambda tokens: next_token(model, tokens)), Same(tokens_of(16, 1024)))


@pair()
def images_channels_last_in_bfloat16(fixed: bool) -> Made:
    return images_channels_first(True)


@pair()
def wide_products_in_bfloat16(fixed: bool) -> Made:
    model = nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(8192, 8192), nn.ReLU()))).cuda().bfloat16()
    return Made(
        trains(model, lambda x: model(x).float().square().mean(), dtype=None),
        Same(torch.randn(8192, 8192, device="cuda").bfloat16()),
    )


@pair()
def loader_that_keeps_up(fixed: bool) -> Made:
    return images_augmented_in_the_loop(True)
