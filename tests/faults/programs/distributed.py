"""DistributedDataParallel over gloo, two ranks."""

import hashlib

import torch

torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(torch.distributed.get_rank())
for _ in range(20):
    optimizer.zero_grad()
    model(torch.randn(4, 4)).pow(2).mean().backward()
    optimizer.step()
print(hashlib.sha256(model.module.weight.detach().numpy().tobytes()).hexdigest())
torch.distributed.destroy_process_group()
