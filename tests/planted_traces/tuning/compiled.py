"""Traces of torch.compile, with the names that torch 2.13 records: a chrome trace has them as ops."""

from __future__ import annotations

from trace_timeline import AUTOGRAD, GEMM_BF16, MAIN, Timeline, shaped

SQUARE, SQUARE_US = shaped([4096, 4096], [4096, 4096]), 560.0
#: What is open around the work of each compiler, from the outside in.
FORWARD = (
    "dynamo",
    "entire_frame_compile",
    "_compile.compile_inner (dynamo_timed)",
    "backend_compile",
    "inductor_compile",
    "compile_fx_inner (dynamo_timed)",
)
BACKWARD = ("entire_backward_compile", "backward._backward_impl (dynamo_timed)", "compile_fx_inner (dynamo_timed)")


def compiled(line: Timeline, names: tuple[str, ...], lasts: float) -> None:
    """Nested ranges, in which the host compiles and nothing is launched."""
    if not names:
        for _ in range(20):
            line.op("PythonDispatchMode", lasts / 40)
            line.spend(lasts / 40)
        return
    with line.range(names[0], "cpu_op"):
        line.spend(40)
        compiled(line, names[1:], lasts)
        line.spend(20)


def train(line: Timeline, *, compiles: bool) -> None:
    """A compiled model: its guards are looked up in each call, and each call runs the compiled graph."""
    with line.frame("train_step", 21):
        with line.range("TorchDynamo Cache Lookup", "cpu_op"):
            line.spend(45)
        if compiles:
            with line.frame("__call__", 2522, "torch/_dynamo/convert_frame.py"):
                compiled(line, FORWARD, 30_000)
        with line.range("Torch-Compiled Region: 0/0", "cpu_op"), line.range("## Call CompiledFxGraph f3k ##", "cpu_op"):
            products(line, 8)
        line.thread = AUTOGRAD
        with line.range("autograd::engine::evaluate_function: CompiledFunctionBackward", "cpu_op"):
            if compiles:
                line.wait()
                compiled(line, BACKWARD, 20_000)
            products(line, 16)
        line.thread = MAIN


def products(line: Timeline, count: int) -> None:
    for _ in range(count):
        line.run(GEMM_BF16, SQUARE_US, given=SQUARE)


def each_length_compiled_again(line: Timeline) -> None:
    """Batches of six lengths, dynamic=False: all but the two steps whose length came before compile."""
    line.number = 2
    line.steps(lambda line: train(line, compiles=line.number not in (4, 6)), count=8)


def compiled_in_the_first_steps(line: Timeline) -> None:
    """Compiled for the first length, and once more for lengths that vary."""
    line.steps(lambda line: train(line, compiles=line.number < 2), count=12)
