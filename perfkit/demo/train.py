"""Train a small character-level transformer on the help texts that come with every Python.

A plain training script: it knows nothing of perfkit. It holds three honest mistakes of the kind people
make; each stands below a comment that begins with "mistake:". See what each costs:

    perfkit run train.py           what dominates the step, and which lines it is
    python train.py --fix loop     only the hand-written loop corrected; also: input, sync
    python train.py --fix all      every mistake corrected: the same loss, in a fraction of the time
"""

import argparse
import math
import sys
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

# Small on purpose: a step takes some 50 ms on one CPU core, so that a run of 120 steps is over in seconds.
PAGE = 16_384  # characters of text that lie together; a sample is a short window of one page
CONTEXT = 32  # characters that the model sees at once
BATCH = 16  # samples per step
WIDTH = 96  # numbers that stand for one character inside the model
HEADS = 4  # attention heads per block
LAYERS = 2  # blocks

MISTAKES = ("input", "sync", "loop")


class HelpTexts(Dataset[Tensor]):
    """Windows of CONTEXT + 1 characters: the model reads all but the last and predicts all but the first."""

    def __init__(self, encode_once: bool) -> None:
        text = "\n".join(topics.values())
        # Complete pages only: the rest at the end is dropped.
        self.pages = [text[start : start + PAGE] for start in range(0, len(text) - PAGE + 1, PAGE)]
        # Code 0 stands for a character that is not in the vocabulary.
        self.codes = {character: code for code, character in enumerate(sorted(set(text.lower())), start=1)}
        self.windows_per_page = PAGE // (CONTEXT + 1)
        self.encoded: list[Tensor] | None = None
        if encode_once:
            self.encoded = [torch.tensor([self.codes.get(c.lower(), 0) for c in page]) for page in self.pages]

    def __len__(self) -> int:
        return len(self.pages) * self.windows_per_page

    def __getitem__(self, index: int) -> Tensor:
        page, window = divmod(index, self.windows_per_page)
        start = window * (CONTEXT + 1)
        end = start + CONTEXT + 1
        if self.encoded is not None:
            return self.encoded[page][start:end]
        # mistake: input-bound - every sample encodes its whole page again, in Python, while the model waits
        return torch.tensor([self.codes.get(c.lower(), 0) for c in self.pages[page]][start:end])


class Attention(nn.Module):
    """Causal self-attention: each position attends to itself and to earlier positions."""

    def __init__(self, one_call: bool) -> None:
        super().__init__()
        self.one_call = one_call
        self.project_in = nn.Linear(WIDTH, 3 * WIDTH)
        self.project_out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        # (batch, length, 3 * WIDTH) -> three of (batch, HEADS, length, WIDTH // HEADS)
        query, key, value = self.project_in(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if self.one_call:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            query = query / math.sqrt(WIDTH // HEADS)
            rows = []
            # mistake: many-small-ops - attention for one position at a time, where one call does all positions
            for t in range(length):
                scores = query[:, :, t : t + 1] @ key[:, :, : t + 1].transpose(-2, -1)
                rows.append(scores.softmax(dim=-1) @ value[:, :, : t + 1])
            mixed = torch.cat(rows, dim=2)
        joined: Tensor = self.project_out(mixed.transpose(1, 2).flatten(2))
        return joined


class Block(nn.Module):
    """Attention mixes positions, then two linear layers work on each position alone."""

    def __init__(self, one_call: bool) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.attention = Attention(one_call)
        self.norm_layers = nn.LayerNorm(WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_attention(x))
        out: Tensor = x + self.layers(self.norm_layers(x))
        return out


class CharacterModel(nn.Module):
    """Codes of characters, shape (batch, length), to scores of the next one, (batch, length, vocabulary)."""

    def __init__(self, vocabulary: int, one_call: bool) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block(one_call) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, codes: Tensor) -> Tensor:
        x = self.characters(codes) + self.positions[: codes.shape[1]]
        scores: Tensor = self.head(self.norm(self.blocks(x)))
        return scores


def train(steps: int, fixed: set[str]) -> float:
    """Train for ``steps`` steps, with the mistakes in ``fixed`` corrected; the loss of the last step."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        # More threads do not help with tensors this small: distributing the work costs more than it saves.
        torch.set_num_threads(1)

    dataset = HelpTexts(encode_once="input" in fixed)
    draw = torch.Generator().manual_seed(0)
    sampler = RandomSampler(dataset, replacement=True, num_samples=steps * BATCH, generator=draw)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler, pin_memory=device.type == "cuda")
    model = CharacterModel(vocabulary=len(dataset.codes) + 1, one_call="loop" in fixed).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)

    bar = Progress(
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("mean loss {task.fields[loss]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task("training", total=steps, loss="...")
        total = torch.zeros((), device=device)
        running = 0.0
        for step, batch in enumerate(loader, start=1):
            batch = batch.to(device, non_blocking=True)
            scores = model(batch[:, :-1])
            loss = F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            if "sync" in fixed:
                # The sum stays on the device; it is read once in 50 steps.
                total += loss.detach()
                if step % 50 == 0:
                    bar.update(task, loss=f"{total.item() / step:.3f}")
            else:
                # mistake: sync-in-step - the host waits for the device in every step, only to show the loss
                running += loss.item()
                bar.update(task, loss=f"{running / step:.3f}")
            bar.advance(task)
    return loss.item()


def steps_from(text: str) -> int:
    """A number of steps from the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def main() -> None:
    """Read the command line, train, print the loss."""
    parser = argparse.ArgumentParser(description="Train a small character-level transformer.")
    parser.add_argument("--steps", type=steps_from, default=120, help="training steps (default: 120)")
    parser.add_argument(
        "--fix",
        action="append",
        choices=(*MISTAKES, "all"),
        default=[],
        help="correct one mistake, or all of them; may be repeated",
    )
    arguments = parser.parse_args()
    fixed = set(MISTAKES) if "all" in arguments.fix else set(arguments.fix)
    loss = train(arguments.steps, fixed)
    print(f"loss {loss:.6f} after {arguments.steps} steps")


if __name__ == "__main__":
    main()
