"""A compiled module that counts its own calls in a Python int, on which the compiled code is guarded."""

import sys

import torch
import torch._dynamo
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
BACKEND = "eager"  # traces and guards as inductor does, and needs no compiler
torch._dynamo.config.recompile_limit = 1000
torch._dynamo.config.accumulated_recompile_limit = 1000


class Annealed(nn.Module):
    """Noise on the input that fades as training goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 2))
        self.calls = 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if FIXED:
            self.seen.add_(1)
            return self.net(x * (1 + 1 / (self.seen + 10)))
        self.calls += 1  # change: recompiles
        return self.net(x * (1 + 1 / (self.calls + 10)))  # spent: recompiles  # change: recompiles


torch.manual_seed(0)
model = Annealed()
compiled = torch.compile(model, backend=BACKEND)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs, labels = torch.randn(60, 64, 64), torch.randint(0, 2, (60, 64))
for x, y in DataLoader(TensorDataset(inputs, labels), batch_size=None):
    loss = nn.functional.cross_entropy(compiled(x), y)  # spent: recompiles
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
