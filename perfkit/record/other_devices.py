"""Training on a device that is neither CUDA's nor ROCm's: perfkit times the host, and says what it cannot.

On MPS there are events (``torch.mps.event.Event``), but none that can be a device clock, which must not make the host
wait: ``elapsed_time`` commits the stream and waits for it (``synchronize(COMMIT_AND_WAIT)``), each ``record`` ends the
joining of kernels into one encoder, and the times are the host's, taken by a listener after the device has passed the
event. ``torch.mps.profiler`` writes signposts for Instruments, which torch cannot read back. Source: torch,
aten/src/ATen/mps/MPSEvent.mm (2.x), read, not run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perfkit.record.program_values import is_fake, unseen

#: What torch's tensors live on where perfkit measures everything; ROCm's devices are called cuda too.
_MEASURED = ("cpu", "cuda")


@unseen
def trained_on(optimizers: Iterable[Any]) -> tuple[str, ...]:
    """The types of the devices, other than CUDA's, that hold parameters of these optimizers; "fake" without values."""
    # The first parameter of each group: a large model has thousands.
    firsts = (group["params"][0] for one in optimizers for group in one.param_groups if group["params"])
    kinds = ("fake" if is_fake(first) else first.device.type for first in firsts)
    return tuple(dict.fromkeys(kind for kind in kinds if kind not in _MEASURED))


def missing_on(kinds: Iterable[str]) -> str:
    """What perfkit does not measure on devices of these types, as a sentence."""
    return (
        f"the model is on {', '.join(kinds)}: perfkit measures the host and its phases there; device times, device "
        "memory, syncs and the state of the card are measured with CUDA and ROCm alone"
    )
