"""Trains until it is killed; each step is a line of the file "progress": its number and when it ended."""

import os
import time

import torch

progress = os.open("progress", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
while True:
    optimizer.zero_grad()
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    os.write(progress, f"{step} {time.monotonic_ns()}\n".encode())
    step += 1
