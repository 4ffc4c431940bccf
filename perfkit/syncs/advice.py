"""What to change to remove a sync: one text per torch function, operation or kind, the most specific one first."""

from __future__ import annotations

from perfkit.run.records import SyncKind

_READ = "Keep the value on the device: detach() it, accumulate it, and read it every N steps."
_BRANCH = "Decide on the device (torch.where, multiply by the condition), or read the condition every N steps."
_MASK = "Use torch.where or masked_fill, or multiply by the mask: then the result's size does not depend on the data."
_UPLOAD = (
    "Load into pinned memory (DataLoader(pin_memory=True)) and copy with non_blocking=True, or create it on the device."
)
_DOWNLOAD = "Copy with non_blocking=True into pinned memory and read it one step later, or copy it every N steps only."

#: Part of the torch code that synced ("file:function") -> advice; more specific than the operation.
_BY_CODE: tuple[tuple[str, str], ...] = (
    ("grad_scaler.py:", "Create the optimizer with fused=True: GradScaler then does not read found_inf."),
    ("clip_grad.py:", "Keep error_if_nonfinite=False (the default), and check the norm every N steps."),
    ("transformer.py:", "Pass is_causal= to the call, and enable_nested_tensor=False to the encoder."),
    ("distributions/", "Create the distribution with validate_args=False in the training step."),
    ("lr_scheduler.py:ReduceLROnPlateau", "Step the plateau scheduler once per epoch, not once per step."),
    ("swa_utils.py:", "Update the averaged model every N steps."),
    ("lbfgs.py:", "LBFGS must read the loss; a first-order optimizer does not."),
    ("distributed_c10d.py:", "Move object collectives and barriers out of the step, and reduce tensors instead."),
)

_BY_OP: dict[str, str] = {
    "bool(tensor)": _BRANCH,
    "int index": "Index with index_select or gather, or keep the index as a Python int.",
    "arange(tensor)": "Keep the length as a Python int.",
    "boolean mask index": _MASK,
    "boolean mask assignment": "Use torch.where or masked_scatter: neither reads the number of selected elements.",
    "masked_select": _MASK,
    "masked_fill by a device value": "Use torch.where(mask, value, x), or a Python number as the value.",
    "nonzero": "Use torch.where with values, or nonzero_static(size=...) if the count is known.",
    "bincount": "Use scatter_add_ or histc into a tensor of known size.",
    "repeat_interleave": "Pass output_size=.",
    "one_hot": "Pass num_classes=.",
    "index_fill by a device value": "Use a Python number as the value, or index_copy_.",
    "index assignment of a host value": "Use index_fill_, which copies no number, or assign a device tensor.",
    "linspace between tensors": "Keep the ends as Python numbers, or scale torch.linspace(0, 1, steps) on the device.",
    "mode of long slices": "Count with torch.bincount(minlength=) or scatter_add_, and take argmax.",
    "equal": "Use (a == b).all() and keep the result on the device.",
    "allclose": "Use isclose().all() and keep the result on the device.",
    "the error check of a decomposition": "Use the _ex variant (torch.linalg.inv_ex, cholesky_ex) with "
    "check_errors=False.",
    "index by a host tensor or list": "Keep the index on the device, or index with a slice.",
    "index by a host mask": "Keep the mask on the device.",
    "histc without a range": "Pass min= and max=.",
    "normal with a std tensor": "Use mean + std * torch.randn_like(std).",
    "torch.save": "Save outside the step, or copy to pinned memory first and write the file in a thread.",
    "tensor(device=)": "Create the tensor on the device (torch.full, torch.arange), once, before the loop.",
}

_BY_KIND: dict[SyncKind, str] = {
    "read": _READ,
    "copy-h2d": _UPLOAD,
    "copy-d2h": _DOWNLOAD,
    "shape": "Use an operation whose result size does not depend on the data.",
    "print": "Log a detached value every N steps; printing a tensor reads it several times.",
    "explicit": "Remove it or move it out of the step; measure time with CUDA events.",
    "collective": "Move it out of the step, or call it every N steps.",
    "other": "Find the value, size or copy that the host needs at this line.",
}


def advise(kind: SyncKind, op: str, code: str = "", owner: str = "user") -> str:
    """What to change to remove a sync of this kind and operation.

    ``code`` is the torch code that synced, as ``folder/file.py:function`` ("" for the user's own call); ``owner`` is
    "user" or the library that synced; torch's options are in the text.
    """
    text = next((advice for part, advice in _BY_CODE if part in code), None) or _BY_OP.get(op) or _BY_KIND[kind]
    if owner in ("user", "torch"):
        return text
    return f"This sync is in {owner}: find its option to log or check less often. {text}"
