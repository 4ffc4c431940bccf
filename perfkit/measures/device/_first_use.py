"""What a program does once: it loads code, makes handles, searches for its fastest algorithms, compiles.

Such time comes in a few long gaps at the beginning of a recording (or after a new shape), and no change to the loop
saves it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from perfkit.measures._rows import find_rows, launched_work, mask_of, nearest_above, time_of
from perfkit.measures._trace_cache import once
from perfkit.measures.steps._trace_steps import whole_steps
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Bools, Codes, Ints, Union

#: Calls that load a module or a function, or make a context or a library's handle. cudaFuncGetAttributes makes the
#: runtime load a module that it had deferred.
LOADS = re.compile(
    r"^(?:cu|cuda|hip)(?:Module|Library)(?:Load|Get)|^cudaGetKernel|^cuKernelGetFunction|^cudaFuncGetAttributes"
    r"|^cuLink(?:Create|Complete|Add)|^cu(?:DevicePrimaryCtxRetain|CtxCreate)"
    r"|^(?:cudnn|cublas(?:Lt)?|cusolverDn|cusparse|hipblas(?:Lt)?|hipsparse|miopen)Create(?:_v2)?$|^rocblas_create_handle"
)
#: Frames and ops of torch.compile and of Triton that run when something is compiled or measured, and not when the
#: result is called: compiled code runs in `run` and `wrapper` of compile_fx.py, "TorchDynamo Cache Lookup" and
#: "CompiledFxGraph". Torch 2.13 has some names with and without "(dynamo_timed)".
COMPILES = re.compile(
    r"\(dynamo_timed\)$|(?:^|/)torch/_dynamo/convert_frame\.py|(?:^|/)torch/_inductor/select_algorithm\.py"
    r"|(?:^|/)torch/_inductor/compile_fx\.py(?!\(\d+\): (?:run|wrapper)$)"
    r"|^(?:entire_(?:frame|backward)_compile|(?:backend|inductor|fx_codegen_and)_compile"
    r"|compile_fx(?:_inner|\.<locals>\.\w+)?|_compile\.(?:_?compile_inner))$"
    r"|triton_heuristics\.py\(\d+\): (?:bench|benchmark_all_configs|autotune_to_one_config|precompile)"
    r"|(?:^|/)triton/(?:testing\.py\(\d+\): do_bench|compiler/compiler\.py\(\d+\): compile"
    r"|runtime/autotuner\.py\(\d+\): _?bench)"
)
#: A convolution waits for the device, or allocates from it, only where it tries algorithms (cudnn.benchmark).
SEARCHES = re.compile(r"^aten::(?:cudnn|miopen)_convolution")
TRIES = re.compile(r"^(?:cuda|hip)(?:(?:Device|Stream|Event)Synchronize|EventElapsedTime|EventQuery|Malloc|Free)")
#: Records of the profiler about the runtime, and not about the profiler.
RECORDED = re.compile(r"^(?:Lazy Function Loading|Runtime Triggered Module Loading|Driver Compiler)$")

#: A launch to an idle device takes 3 to 50 us with a profiler; the first one of a kernel that takes twice the longest
#: of these loads its code.
_LOADING_NS = 100_000
#: An op takes 5 to 100 us of the host; a first call of a millisecond that takes twenty times its others prepares them.
_PREPARING_NS = 1_000_000
_TIMES_THE_OTHERS = 20
#: Steps from which on an op that is called only once does not count as work of the step.
_MIN_STEPS = 3


def is_first_use(trace: Trace) -> Bools:
    """A mask of the host events all of whose time is first use, whatever is inside them."""
    found = mask_of(trace, find_rows(trace, LOADS, Kind.RUNTIME, Kind.RANGE, Kind.OP))
    found |= compiling(trace)
    searches = find_rows(trace, SEARCHES, Kind.OP)
    if searches.size:
        tries = find_rows(trace, TRIES, Kind.RUNTIME)
        found[tries[nearest_above(trace, tries, mask_of(trace, searches)) >= 0]] = True
    return found


@once
def compiling(trace: Trace) -> Bools:
    """A mask of the host events in which something is compiled."""
    return mask_of(trace, find_rows(trace, COMPILES, Kind.OP, Kind.PYTHON, Kind.RANGE))


def prepares(trace: Trace) -> Bools:
    """A mask of the ops and launches that take far longer the first time: the host's work in them is first use."""
    found = np.zeros(len(trace), bool)
    for kernel in _slow_first_kernels(trace).tolist():
        found[trace.launch[kernel]] = True
    ops = np.flatnonzero(trace.is_kind(Kind.OP))
    ops = ops[np.argsort(trace.start_ns[ops], kind="stable")]
    duration = trace.duration_ns[ops]
    steps = whole_steps(trace).row.size
    for first, *others in _slow_first(trace.name[ops], duration, _PREPARING_NS):
        found[ops[first]] = _is_far_longer(duration, first, others) if others else steps >= _MIN_STEPS
    return found


def loads_code(trace: Trace, works: Ints) -> Bools:
    """Whether each of these rows (-1: none) is a kernel that begins far later after its launch the first time."""
    return (works >= 0) & mask_of(trace, _slow_first_kernels(trace))[works]


@once
def _slow_first_kernels(trace: Trace) -> Ints:
    """The first kernel of each name whose launch, or wait for its start, took far longer than the later ones'."""
    kernels = launched_work(trace)
    kernels = kernels[trace.kind[kernels] == Kind.KERNEL]
    kernels = kernels[np.argsort(trace.start_ns[kernels], kind="stable")]
    launch = trace.launch[kernels]
    waited = np.maximum(trace.start_ns[kernels], trace.end_ns[launch]) - trace.start_ns[launch]
    slow = [
        first
        for first, *others in _slow_first(trace.name[kernels], waited, _LOADING_NS)
        if not others or _is_far_longer(waited, first, others)
    ]
    return np.asarray(kernels[slow], np.int64)


def _slow_first(names: Codes, lasted: Ints, minimum_ns: int) -> Iterator[list[int]]:
    """The places of each name whose first call, in order of time, lasted this long."""
    order = np.argsort(names, kind="stable")
    begins = np.flatnonzero(np.append(True, np.diff(names[order]) != 0)[: names.size])
    ends = np.append(begins[1:], names.size)
    slow = lasted[order[begins]] >= minimum_ns
    for begin, end in zip(begins[slow].tolist(), ends[slow].tolist(), strict=True):
        yield order[begin:end].tolist()


def _is_far_longer(lasted: Ints, first: int, others: list[int]) -> bool:
    return bool(lasted[first] >= _TIMES_THE_OTHERS * np.median(lasted[others]))


def loading_time(trace: Trace) -> Union:
    """When the runtime loaded code, as the profiler recorded it."""
    return time_of(trace, find_rows(trace, RECORDED, Kind.OVERHEAD))
