"""Training in bfloat16 under autocast."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    torch.manual_seed(0)
    inputs, target = torch.randn(50, 64, 128), torch.randn(50, 64, 128)
    model = nn.Sequential(nn.Linear(128, 768), nn.GELU(), nn.Linear(768, 768), nn.GELU(), nn.Linear(768, 128))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in DataLoader(TensorDataset(inputs, target), batch_size=None):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            guess = model(x)
        loss = nn.functional.mse_loss(guess.float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
