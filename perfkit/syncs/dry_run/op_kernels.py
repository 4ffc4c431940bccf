"""What a dry run does at each op: mark the results of marked inputs, and report the op if the table says it syncs.

Ops are intercepted by kernels under a dispatch key of torch that no program uses (it exists for torch's own tests). The
key is included only for the thread of a dry run; other threads and programs never reach the kernels. The alternative,
a `TorchDispatchMode`, costs more: here views, composite ops and the in-place ops of optimizers, which neither change a
mark nor sync, pass the key without leaving C++.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from perfkit._torch_versions import writes
from perfkit.errors import UsageError
from perfkit.syncs.dry_run.device_marks import mark_on_device, on_device
from perfkit.syncs.dry_run.op_table import Rule, rule_for
from perfkit.syncs.dry_run.thread_state import DryRun, takes_device_tensor, this_thread

# Private to torch; a test fails when they move, and `start` then raises instead of watching nothing. The key
# is above autograd, autocast and user modes.
_KEY_NAME = "TESTING_ONLY_GenericMode"
_functorch: Any = torch._C._functorch
_include: Any = getattr(torch._C, "_dispatch_tls_set_dispatch_key_included", None)


def _find_key() -> Any:
    try:
        return torch._C._dispatch_key_parse(_KEY_NAME)
    except (AttributeError, RuntimeError):
        return None


_KEY: Any = _find_key()
_Tensor = torch.Tensor
_without_function_modes = torch._C.DisableTorchFunction

#: The node of a backward that runs on this thread; None: none does, or this torch does not tell.
_current_node: Any = getattr(torch._C, "_current_autograd_node", lambda: None)
#: Nodes that ask on the host whether the result is a number, and compute with masks on CUDA
#: (``evenly_distribute_backward`` in torch/csrc/autograd/FunctionsManual.cpp).
_OF_HOSTS = frozenset(("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"))

#: Op -> positions of the results that are on the host although the inputs are on the device.
_HOST_RESULTS = {"aten::_pack_padded_sequence": (1,)}

#: Parts of the names of ops that accept host tensors (indices, lengths, sizes) together with device tensors.
_TAKE_BOTH = ("index", "pack", "ctc_loss", "nested", "copy_", "set_", "segment", "rnn", "lstm", "_like", "masked_fill")

#: In-place ops of optimizers and accumulations: their kernels call nothing that syncs. They change a mark only if
#: Python calls them, which `function_calls` handles.
_SIMPLE_IN_PLACE = frozenset(
    f"aten::{name}_" for name in ("add", "sub", "mul", "div", "lerp", "addcmul", "addcdiv", "zero", "sqrt", "relu")
)


@dataclass(slots=True, eq=False)
class _Op:
    """What the kernel needs to know of an op; all but the name is read when the op runs for the first time."""

    name: str
    #: Calls the op; None until the schema was read.
    call: Any = None
    rule: Rule | None = field(init=False)
    reads_scalar: bool = field(init=False)
    copies: bool = field(init=False)
    #: Whether it writes its second argument into its first one.
    writes: bool = field(init=False)
    takes_tensors: bool = field(init=False)
    #: Whether CUDA refuses the op if one of its tensors is on the host and has dimensions.
    one_device: bool = field(init=False)
    #: Position and name of the `out=` arguments, which on CUDA must be on the same device as the others.
    written: tuple[tuple[int, str], ...] = field(init=False)
    #: Per result: whether it is new memory (no view, no returned argument). Empty if none is.
    fresh: tuple[bool, ...] = field(init=False)
    #: Whether the op has one result and that is new memory: the most frequent case.
    one_fresh: bool = field(init=False)

    def read_schema(self) -> None:
        """Find the op by its name and read its schema."""
        name, _, overload = self.name.removeprefix("aten::").partition(".")
        func = getattr(getattr(torch.ops.aten, name), overload or "default")
        schema = func._schema
        host = _HOST_RESULTS.get(schema.name, ())
        fresh = tuple(result.alias_info is None and n not in host for n, result in enumerate(schema.returns))
        arguments = enumerate(schema.arguments)
        written = tuple((n, a.name) for n, a in arguments if writes(a))
        tensors = [str(argument.type) for argument in schema.arguments if "Tensor" in str(argument.type)]
        self.rule = rule_for(schema.name, schema.overload_name)
        self.reads_scalar = schema.name == "aten::_local_scalar_dense"
        self.copies = schema.name == "aten::copy_"
        self.writes = self.copies or schema.name == "aten::fill_"
        self.takes_tensors = bool(tensors)
        self.one_device = tensors.count("Tensor") > 1 and not any(part in schema.name for part in _TAKE_BOTH)
        self.written = () if schema.name.endswith("_") else written
        self.fresh = fresh if any(fresh) else ()
        self.one_fresh = fresh == (True,)
        self.call = func._op


def _at_op(op: _Op, *args: Any, **kwargs: Any) -> Any:
    """The kernel of every op that does not pass."""
    if op.call is None:
        op.read_schema()
    # Off while the op runs: the ops it calls are part of it.
    _include(_KEY, False)
    try:
        # In a backward the function mode is on, and would receive each read of a storage.
        with _without_function_modes():
            run = this_thread.run
            if run is None:  # a thread that torch started from one with a dry run
                return op.call(*args, **kwargs)
            # Usually the first argument is enough.
            if not (args and isinstance(args[0], _Tensor) and on_device(args[0])) and not takes_device_tensor(
                args, kwargs
            ):
                result = op.call(*args, **kwargs)
                if not op.takes_tensors and run.factory_is_on_device():
                    # On CUDA this factory inside a composite would have made its tensor on the device.
                    _mark_results(op, result)
                return result
            run.device_uses += 1
            if op.rule is not None:
                cause = run.apply_rule(op.rule, op.name, args, kwargs)
                if cause is not None and not (_stays_on_device(run, op, args) or _is_of_hosts(run)):
                    run.sync(run.name_read(cause) if op.reads_scalar else cause)
            if op.one_device and run.simulate and not run.mutes:
                for arg in args:
                    if isinstance(arg, _Tensor) and not on_device(arg) and arg.dim():
                        run.note_mixed(op.name)
            result = op.call(*args, **kwargs)
            if op.one_fresh:
                mark_on_device(result)
            elif op.fresh:
                _mark_results(op, result)
            if op.written and not run.simulate:
                # `torch.add(a, b, out=total)` in a script on the CPU: on CUDA `total` would be on the device too.
                for position, name in op.written:
                    mark_on_device(args[position] if position < len(args) else kwargs.get(name))
            return result
    finally:
        _include(_KEY, True)


def _stays_on_device(run: DryRun, op: _Op, args: tuple[Any, ...]) -> bool:
    """Whether a write between host and device in the dry run is inside the device on CUDA."""
    if not op.writes:
        return False
    if not run.simulate:
        # A script on the CPU does not say where its other tensors would be on CUDA: one that receives a device tensor
        # would be there too, as for `total += loss`, and such a script makes no copy to the device.
        mark_on_device(args[0])
        return True
    if run.calls:
        # x[i] = 1.0 is a fill on CUDA.
        call, call_args, _ = run.calls[-1]
        return op.copies and call is torch.Tensor.__setitem__ and not isinstance(call_args[2], torch.Tensor)
    if run.in_backward and op.copies:
        # C++ copies gradients into buffers that it created unmarked (DDP's buckets).
        mark_on_device(args[0])
    return run.in_backward and op.copies


def _is_of_hosts(run: DryRun) -> bool:
    """Whether a node of a backward runs that reads a value on the host and none on CUDA."""
    node = _current_node() if run.in_backward else None
    return node is not None and node.name() in _OF_HOSTS


def _mark_results(op: _Op, result: Any) -> None:
    if len(op.fresh) < 2:
        if op.one_fresh:
            mark_on_device(result)
    else:
        for item, is_fresh in zip(result, op.fresh, strict=True):
            if is_fresh:
                mark_on_device(item)


# -- registering the kernels

_libraries: list[torch.library.Library] = []


def _passes(name: str) -> bool:
    """Whether an op needs no kernel: it has no rule, and is composite, or creates no tensor with new memory."""
    schema = torch._C._get_schema(*(name.split(".", 1) if "." in name else (name, "")))
    if rule_for(schema.name, schema.overload_name) is not None:
        return False
    if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
        return True
    if schema.name in _SIMPLE_IN_PLACE:
        return True
    return not any(map(writes, schema.arguments)) and all(
        "Tensor" not in str(r.type) or r.alias_info is not None for r in schema.returns
    )


def _register() -> None:
    """Register the kernels, once per process: it takes about 100 ms, and they are inert without the key."""
    if _libraries:
        return
    library: Any = torch.library.Library  # Any: torch leaves it untyped
    aten, every = library("aten", "IMPL"), library("_", "IMPL")
    # Ops of extensions and of the program pass: they are made of torch's. Torch 2.4 has no `Library.fallback`.
    every.m.fallback_fallthrough(_KEY_NAME)
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::") and not _passes(name):
            aten.impl(name.removeprefix("aten::"), functools.partial(_at_op, _Op(name)), _KEY_NAME)
    _libraries.extend((aten, every))


def start() -> None:
    """Run the kernels at the ops of this thread, until `stop`.

    Raises:
        UsageError: this torch does not have the dispatch key.
    """
    if _KEY is None or _include is None:
        raise UsageError(
            f"the dry run does not work with torch {torch.__version__}, which has no dispatch key {_KEY_NAME}: "
            'use torch 2.4 to 2.15, or mode="cuda" on a machine with a GPU'
        )
    _register()
    _include(_KEY, True)


def stop() -> None:
    """Run no kernels at the ops of this thread."""
    if _KEY is not None and _include is not None:
        _include(_KEY, False)


def in_transform(arguments: tuple[Any, ...]) -> bool:
    """Whether a call of the autograd engine is part of a transform of `torch.func`.

    A number that was multiplied with a tensor is a wrapped tensor without memory in that backward, and torch reads its
    value to hand it to a kernel in Python, which is an error. The function that ``vjp`` returns runs outside of it.
    """
    if _functorch.peek_interpreter_stack() is not None:
        return True
    several = (one for one in arguments if type(one) is tuple)
    wrapped = _functorch.is_functorch_wrapped_tensor
    return any(isinstance(one, _Tensor) and wrapped(one) for values in several for one in values)


@contextmanager
def paused() -> Iterator[None]:
    """Run no kernels at the ops of this thread meanwhile."""
    _include(_KEY, False)
    try:
        yield
    finally:
        _include(_KEY, True)


def registered() -> bool:
    """Whether the kernels are registered: from the first dry run to the end of the process, inert between runs."""
    return bool(_libraries)
