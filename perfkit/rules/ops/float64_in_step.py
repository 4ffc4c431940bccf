"""The step computes in float64.

Problem: float64 moves twice the bytes of float32, fits half as many numbers into a processor's vectors, and on most
GPUs runs at 1/32 to 1/64 of float32's speed. Training hardly ever needs it.

How it shows: ops of the step that read tensors of type double, or kernels that compute in it; changing them would save
5% of the step or more.

Causes: numpy's arrays are float64, so the tensors of `torch.from_numpy` are too; `.double()` added to silence a type
error; a constant or a window in float64 that turns everything it touches into float64.

Fix: convert once, where the data comes in.

    x = torch.from_numpy(array).float()                      # or array.astype(np.float32)
    self.register_buffer("window", torch.hann_window(512))   # float32; not torch.from_numpy(np.hanning(512))

Saving: on a CPU 42 to 80% of the time of these ops: half the bytes and twice the numbers per vector make it 50%; less
where an op's fixed cost is much of it, more where float32 has a faster kernel or one operand was converted in every
call. On a GPU half the bytes
save half, and products as much as the peak in float64 is below that in float32: nothing on a card for computing (H200),
all but 1/32 on others.

Source: measured on one CPU (eleven ops with their backward); data sheets of devices (perfkit/limits/device_peaks.py).
The threshold is 5% of the step. On an H200 distances in float64 took 60% of a step, and 7% were saved. Where a line
in float64 factorizes or inverts matrices (seen on a CPU) this is information: the error grows with the condition number
(Higham 2002, Accuracy and Stability of Numerical Algorithms, chapters 9 and 10), and may be too large in float32.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import StepBudget
from perfkit.limits.device_peaks import peaks_of
from perfkit.measures.results.device import DeviceTime
from perfkit.measures.results.kernels import Kernels
from perfkit.measures.results.patterns import Patterns
from perfkit.measures.results.work import StepWork
from perfkit.rules._settings import first_call
from perfkit.run.records import DOUBLES, Rank

ID = "float64-in-step"
CLAIMS = COMPUTING

#: What float32 saves of the time in float64, at the low end and at the high end (measured on a CPU, see above).
_SAVING = (0.42, 0.8)
#: On a device: what half the bytes save, and what is left of products where the peaks of a card are not known.
_BYTES = 0.5
_PRODUCTS = 1 / 32
#: How the names of ops begin that lose as many digits as a matrix is ill-conditioned.
_FACTORIZATIONS = (
    "aten::cholesky",
    "aten::inverse",
    "aten::linalg_cholesky",
    "aten::linalg_det",
    "aten::linalg_eig",
    "aten::linalg_inv",
    "aten::linalg_ldl",
    "aten::linalg_lstsq",
    "aten::linalg_lu",
    "aten::linalg_pinv",
    "aten::linalg_qr",
    "aten::linalg_slogdet",
    "aten::linalg_solve",
    "aten::linalg_svd",
    "aten::logdet",
    "aten::slogdet",
    "aten::triangular_solve",
)


def check(
    step: StepBudget,
    patterns: Patterns | None = None,
    kernels: Kernels | None = None,
    rank: Rank | None = None,
    work: StepWork | None = None,
) -> Iterator[Finding]:
    """Find the time in float64: by ops and their types, else by the names of kernels."""
    wide = [one for one in patterns.dtypes if one.dtype == "float64"] if patterns is not None else []
    if patterns is not None and patterns.dtypes:
        spent = step.of_pattern(sum(one.ns for one in wide), patterns)
        source = f"{patterns.source}: ops that read doubles"
    elif kernels is not None:
        spent = step.of_kernels(kernels.precisions_ns.get("float64", 0), kernels)
        source = "kernels with double in their name"
    else:
        return
    low, high = _SAVING if step.device is None else _on_device(step.device)
    if step.is_negligible(high * spent):
        return
    known = sorted(((one, one.at) for one in wide if one.at is not None), key=lambda each: -each[0].ns)
    enters = next((at for one, at in known if one.mixed), None)
    lines = {(at.file, at.line) for _, at in known}
    factorization = next(
        (
            row.op.removeprefix("aten::")
            for row in (work.rows if work is not None else ())
            if row.op.startswith(_FACTORIZATIONS) and row.at is not None and (row.at.file, row.at.line) in lines
        ),
        None,
    )
    yield step.finding(
        cost=high * spent,
        saving=(low * spent, high * spent),
        spent=known[0][1] if known else None,
        change=_birth(rank, enters),
        message=f"Ops in float64 take {step.percent(spent)} of the {step.per}; float32 takes about half.",
        advice=(
            "Convert to float32 where the data comes in: torch.from_numpy(x).float(), buffers in float32."
            if factorization is None
            else f"Try float32 for all but {factorization} and its matrices, which may need the precision."
        ),
        severity=None if factorization is None else "info",
        evidence=(
            Evidence.ms("time in float64", spent, source),
            *(
                Evidence("line of float64", f"{at.file}:{at.line}", "", f"{ms(one.ns)} of the recorded step")
                for one, at in known[:4]
            ),
        ),
    )


def _on_device(device: DeviceTime) -> tuple[float, float]:
    """The saving on a device, as a share of the time in float64: of what reads memory, and of products."""
    peaks = peaks_of(device.name or "")
    known = peaks.tflops if peaks is not None else {}
    of_products = 1 - min(1.0, known["float64"] / known["float32"]) if {"float64", "float32"} <= known.keys() else None
    of_products = 1 - _PRODUCTS if of_products is None else of_products
    return min(_BYTES, of_products), max(_BYTES, of_products)


def _birth(rank: Rank | None, enters: Location | None) -> Location | None:
    """The user's line that makes doubles: one that names the type, else one that takes numpy's.

    Of several the first whose tensor the program has while it trains. Where none is known, the line of ops where
    doubles meet float32; where all is float64, the first of them.
    """
    if rank is None:
        return enters
    arrays = rank.calls.get("from_numpy", ())
    only = arrays[0] if len(arrays) == 1 else None
    return first_call(rank, "float64", "double", DOUBLES) or only or enters or next(iter(arrays), None)
