"""A service that classifies messages: requests that come within a few milliseconds share one call of the model."""

import asyncio
import random

import torch
from torch import Tensor, nn

REQUESTS, LENGTH, LARGEST, GATHER_S, PAUSE_S = 1200, 48, 16, 0.004, 0.005


class Classifier(nn.Module):
    """Ten topics."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(2000, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.topic = nn.Linear(128, 10)

    def forward(self, ids: Tensor) -> Tensor:
        return self.topic(self.layers(self.words(ids)).mean(1))


Queue = asyncio.Queue[tuple[Tensor, asyncio.Future[int]]]


async def serve(model: Classifier, queue: Queue) -> None:
    """Answer requests in batches, for ever."""
    while True:
        waiting = [await queue.get()]
        await asyncio.sleep(GATHER_S)
        while not queue.empty() and len(waiting) < LARGEST:
            waiting.append(queue.get_nowait())
        with torch.inference_mode():
            topics = model(torch.stack([ids for ids, _ in waiting])).argmax(1).tolist()
        for (_, answer), topic in zip(waiting, topics, strict=True):
            answer.set_result(topic)


async def ask(queue: Queue, ids: Tensor) -> int:
    """One client."""
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    await queue.put((ids, answer))
    return await answer


async def main() -> None:
    torch.manual_seed(0)
    random.seed(0)
    queue: Queue = asyncio.Queue()
    server = asyncio.create_task(serve(Classifier().eval(), queue))
    clients = []
    for ids in torch.randint(2000, (REQUESTS, LENGTH)):
        clients.append(asyncio.create_task(ask(queue, ids)))
        await asyncio.sleep(random.expovariate(1 / PAUSE_S))
    topics = await asyncio.gather(*clients)
    server.cancel()
    print(torch.tensor(topics).bincount(minlength=10).tolist())


if __name__ == "__main__":
    asyncio.run(main())
