"""How the memory of a step is measured, and what that costs.

`perfkit run --memory train.py` (`perfkit.profile(memory=True)`) records five steps after the first window: a pause, one
in which all that a step replaces is allocated once, and three that are measured. They are part of no timing.

Events: torch's profiler reports each allocation and free, of the host and of CUDA alike, inside the op that made it.
Ranges around modules give the module, followed lines the line and its callers; what the backward allocates belongs to
the module and line whose op made its node. "Highest level" is the level after one of a part's own allocations. On CUDA
the allocator's history of these steps is also kept, as memory-0.pickle, which pytorch.org/memory_viz draws.

Held for: parameters, buffers, gradients and optimizer state are known by the addresses of the program's tensors.
Inputs were allocated before the first module was called. Activations are what a forward computes and outlives its op;
temporaries are what an op frees before it ends, and what the backward frees again. "Other" is all else.

Checkpointing: the step is replayed with the activations of modules freed when their forward ends and held again from
where their backward begins; what they return stays. It adds the time of their ops as a share of the forward, on a
device that of their kernels. `checkpoint_sequential` leaves its last segment as it is.

A batch: `perfkit diagnose RUN --batch-fits 256` fits a line over the batch sizes that the run or `perfkit try --sweep
batch-size` has measured, and compares its 95% interval with the memory there is. Two sizes give no interval.

Costs: the five steps take a few times as long. torch prints one warning, "Memory block of unknown size". Where
torch.compile compiled a part of the program, modules are left out, since a range would compile it again. Not seen:
memory of numpy, of loader workers, and of libraries (MKL, cuDNN) outside of torch's allocator.
"""
