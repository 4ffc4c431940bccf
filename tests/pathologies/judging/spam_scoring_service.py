"""A scoring service: a gateway thread hands over bundles of messages and waits for the scores."""

import collections
import queue
import sys
import threading
import time

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
BUNDLES, BUNDLE, LENGTH, VOCABULARY, WIDTH = 260, 32, 64, 5000, 96


class Inbox:
    """Bundles that wait to be scored."""

    def __init__(self) -> None:
        self.waiting: collections.deque[Tensor] = collections.deque()
        self.queue: queue.Queue[Tensor] = queue.Queue()

    def put(self, bundle: Tensor) -> None:
        if FIXED:
            self.queue.put(bundle)
        else:
            self.waiting.append(bundle)

    def take(self) -> Tensor:
        """The next bundle, as soon as there is one."""
        if FIXED:
            return self.queue.get()
        while not self.waiting:
            time.sleep(0.02)  # spent: waiting-in-step # change: waiting-in-step
        return self.waiting.popleft()


class Scorer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.convs = nn.ModuleList([nn.Conv1d(WIDTH, 64, size) for size in (2, 3, 4)])
        self.head = nn.Linear(192, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).transpose(1, 2)
        pooled = [conv(x).relu().amax(2) for conv in self.convs]
        return self.head(torch.cat(pooled, dim=1)).sigmoid().squeeze(1)


def gateway(inbox: Inbox, replies: "queue.Queue[list[float]]") -> None:
    """Send one bundle after the other, as the mail server does."""
    generator = torch.Generator().manual_seed(3)
    suspicious = 0
    for _ in range(BUNDLES):
        inbox.put(torch.randint(VOCABULARY, (BUNDLE, LENGTH), generator=generator))
        suspicious += sum(score > 0.5 for score in replies.get())
    print(f"{suspicious} of {BUNDLES * BUNDLE} are suspicious")


@torch.inference_mode()
def serve(inbox: Inbox, replies: "queue.Queue[list[float]]") -> None:
    torch.manual_seed(0)
    model = Scorer().eval()
    for _ in range(BUNDLES):
        tokens = inbox.take()  # spent: waiting-in-step
        replies.put(model(tokens).tolist())


if __name__ == "__main__":
    inbox, replies = Inbox(), queue.Queue()
    client = threading.Thread(target=gateway, args=(inbox, replies), daemon=True)
    client.start()
    serve(inbox, replies)
    client.join()
