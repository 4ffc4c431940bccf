"""What to change so that a sync goes away: one text per cause, by the torch code that synced, the op, the kind."""

from __future__ import annotations

from perfkit.run.records import SyncKind

_READ = "Keep the value on the device: detach() and accumulate it, and read it every N steps."
_BRANCH = "Decide on the device (torch.where, multiply by the condition), or read the condition every N steps."
_MASK = "Use torch.where, masked_fill or multiply by the mask: the result's size then needs no read."
_UPLOAD = (
    "Load from pinned memory (DataLoader(pin_memory=True)) and copy with non_blocking=True, or create it on the device."
)
_DOWNLOAD = "Copy with non_blocking=True into pinned memory and read it a step later, or only every N steps."

#: Torch code that synced (the end of "file:function") -> advice; it knows more than the op does.
_BY_CODE: tuple[tuple[str, str], ...] = (
    ("grad_scaler.py:", "Build the optimizer with fused=True: GradScaler then does not read found_inf."),
    ("clip_grad.py:", "Leave error_if_nonfinite=False, and check the norm every N steps."),
    ("transformer.py:", "Pass is_causal= explicitly, and enable_nested_tensor=False to the encoder."),
    ("distributions/", "Build the distribution with validate_args=False in the training step."),
    ("lr_scheduler.py:ReduceLROnPlateau", "Step the plateau scheduler once per epoch, not once per step."),
    ("swa_utils.py:", "Update the averaged model every N steps."),
    ("lbfgs.py:", "LBFGS reads the loss by design; a first-order optimizer does not."),
    ("distributed_c10d.py:", "Move object collectives and barriers out of the step; reduce tensors instead."),
)

_BY_OP: dict[str, str] = {
    "bool(tensor)": _BRANCH,
    "int index": "Index with index_select or gather, or keep the index as a Python int.",
    "arange(tensor)": "Keep the length as a Python int beside the tensor.",
    "boolean mask index": _MASK,
    "boolean mask assignment": "Use torch.where or masked_scatter: neither needs the number of hits on the host.",
    "masked_select": _MASK,
    "masked_fill by a device value": "Use torch.where(mask, value, x), or a Python number as the value.",
    "nonzero": "Use torch.where with values, or nonzero_static(size=...) where the count is known.",
    "bincount": "Use scatter_add_ or histc into a tensor of known size.",
    "repeat_interleave": "Pass output_size=.",
    "one_hot": "Pass num_classes=.",
    "multinomial": "Sample with Gumbel noise and argmax: (logits - (-log(rand)).log()).argmax(-1).",
    "equal": "Compare with (a == b).all() and keep the answer on the device.",
    "allclose": "Compare with isclose().all() and keep the answer on the device.",
    "the error check of a decomposition": "Use the _ex variant (torch.linalg.inv_ex, cholesky_ex) with "
    "check_errors=False.",
    "embedding with max_norm": "Normalize the weights every N steps instead of max_norm=.",
    "index by a host tensor or list": "Keep the index on the device, or index with a slice.",
    "index by a host mask": "Keep the mask on the device.",
    "histc without a range": "Pass min= and max=.",
    "normal with a std tensor": "Use mean + std * torch.randn_like(std).",
    "torch.save": "Save outside the step, or copy to pinned memory first and write in a thread.",
    "tensor(device=)": "Create it on the device (torch.full, torch.arange), once, outside the loop.",
}

_BY_KIND: dict[SyncKind, str] = {
    "read": _READ,
    "copy-h2d": _UPLOAD,
    "copy-d2h": _DOWNLOAD,
    "shape": "Use a variant whose result has a size known beforehand.",
    "print": "Log a detached value every N steps; printing a tensor reads it several times.",
    "explicit": "Remove it, or move it out of the step; use CUDA events to measure time.",
    "collective": "Move it out of the step, or every N steps.",
    "other": "Look for a value, a size or a copy that the host needs at this line.",
}


def advise(kind: SyncKind, op: str, code: str = "", owner: str = "user") -> str:
    """What to change for a sync of this kind and op.

    ``code`` is the torch code that synced, as ``folder/file.py:function`` ("" where it was the user's
    own call); ``owner`` names the library where the sync is not the user's.
    """
    text = next((advice for part, advice in _BY_CODE if part in code), None) or _BY_OP.get(op) or _BY_KIND[kind]
    if owner == "user":
        return text
    return f"It is {owner}'s: look for its option to log or check less often. {text}"
