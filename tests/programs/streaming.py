"""An iterable dataset without a length, a recurrent model, gradients zeroed in place."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(50):
            yield torch.full((4,), float(number % 7))


torch.manual_seed(0)
model = nn.LSTM(4, 8, batch_first=True)
optimizer = torch.optim.RMSprop(model.parameters())
for _ in range(2):
    for x in DataLoader(Stream(), batch_size=None):
        y, _ = model(x.view(1, 1, 4))
        loss = y.pow(2).mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
print(repr(loss.item()))
