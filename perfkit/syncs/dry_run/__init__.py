"""The dry run: find on a CPU the syncs that a program would make on a GPU, with real values.

Every tensor stays an ordinary CPU tensor; `device_marks` stores which ones are on the simulated device. Two things
follow the program: `op_kernels` runs at every op, marks results and applies the `op_table`; a torch function mode
(`function_calls`) receives every Python call, which names the sync (``bool(tensor)``). For a script that requests cuda
(``simulate``), `simulated_cuda` makes torch answer as if there were a device. `torch_patches` follows the rest of torch
that both miss, such as the backward. `lifecycle` starts and ends all of it, `thread_state` is what they share.

All of it belongs to one thread, so there is one `DryRun` per thread, shared by nested detections. Not covered: other
threads and processes, NCCL, kernels that are not torch's. Host and device operands may be mixed where CUDA would raise.
"""
