"""Models whose layers lie on two devices: with whole batches, and with micro-batches."""

from __future__ import annotations

from trace_timeline import COMPUTE, GEMM_BF16, Timeline, shaped

SQUARE, SQUARE_US = shaped([4096, 4096], [4096, 4096]), 560.0
PEER = "Memcpy PtoP (Device -> Device)"


def stage(line: Timeline, device: int, count: int) -> None:
    for _ in range(count):
        line.run(GEMM_BF16, SQUARE_US, given=SQUARE, device=device)


def hand_over(line: Timeline, source: int, target: int, size: int = 33_554_432) -> None:
    """`x.to(device)`: a peer copy on the source's stream, for which the target's stream waits."""
    with line.range("aten::to", "cpu_op"), line.range("aten::copy_", "cpu_op"):
        line.run(PEER, 0.02 * size / 1e3, op=None, api="cudaMemcpyAsync", device=source, bytes=size)
        line.call("cudaStreamWaitEvent", 1)
    there = line.free.get((target, COMPUTE), 0.0)
    line.free[target, COMPUTE] = max(there, line.free[source, COMPUTE])


def update(line: Timeline) -> None:
    with line.range("Optimizer.step#AdamW.step"):
        given = shaped([4096, 4096], [4096, 4096], [4096, 4096], [4096, 4096], dtype="float")
        for device in (1, 0):
            line.run("multi_tensor_apply_kernel<FusedAdam>", 300, op="aten::_fused_adamw_", given=given, device=device)


def layers_split_over_two_devices(line: Timeline) -> None:
    """The first half of the layers on one device, the second on the other; the loss is read at the end of each step."""
    line.names *= 2

    def step(line: Timeline) -> None:
        with line.frame("forward", 48):
            stage(line, 0, 9)
            hand_over(line, 0, 1)
            stage(line, 1, 7)
        with line.backward():
            stage(line, 1, 14)
            hand_over(line, 1, 0)
            stage(line, 0, 18)
        update(line)
        line.read(device=1)

    line.steps(step)


def micro_batches_over_two_devices(line: Timeline) -> None:
    """The same layers with eight micro-batches: while one device has a part, the other has the next one."""
    line.names *= 2

    def step(line: Timeline) -> None:
        for way in (1, -1):
            first, second = (0, 1)[::way]
            for _ in range(8):
                stage(line, first, 2 if way == 1 else 3)
                hand_over(line, first, second, 4_194_304)
                stage(line, second, 2 if way == 1 else 3)
        update(line)

    line.steps(step)
