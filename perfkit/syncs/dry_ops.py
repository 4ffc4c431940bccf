"""What a dry run does at each op: hand the marks on from inputs to results, ask the table whether it syncs.

Ops are seen through a dispatch key of torch's that no program uses (it is there for torch's own tests): kernels
under that key, and the key included for the thread of the dry run only. Of the two ways to see ops this is
the cheaper one (a `TorchDispatchMode` is the other): views, ops made of others and the in-place ops of
optimizers cannot change a mark nor sync, and pass the key without leaving C++. Threads and programs without
a dry run never include the key, so for them nothing is there.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from perfkit.errors import UsageError
from perfkit.syncs.device_marks import on_device, put_all_on_device, put_on_device
from perfkit.syncs.dry_state import DryRun, current, takes_device_tensor
from perfkit.syncs.op_table import Rule, rule_for

# Private to torch; a test tells when they move, and `start` then says so instead of watching nothing. The key
# lies above autograd, autocast and user modes.
_KEY_NAME = "TESTING_ONLY_GenericMode"
_include: Any = getattr(torch._C, "_dispatch_tls_set_dispatch_key_included", None)


def _find_key() -> Any:
    try:
        return torch._C._dispatch_key_parse(_KEY_NAME)
    except (AttributeError, RuntimeError):
        return None


_KEY: Any = _find_key()
_Tensor = torch.Tensor
_without_function_modes = torch._C.DisableTorchFunction

#: Results that stay on the host though the inputs are on the device: op -> their positions.
_HOST_RESULTS = {"aten::_pack_padded_sequence": (1,)}

#: Parts of the names of ops that may take tensors of the host beside those of the device: indices, lengths, sizes.
_TAKE_BOTH = ("index", "pack", "ctc_loss", "nested", "copy_", "set_", "segment", "rnn", "lstm", "_like", "masked_fill")

#: In-place ops of optimizers and accumulations: their kernels call nothing that syncs, and they change no mark
#: but where Python calls one, which `dry_calls` sees.
_SIMPLE_IN_PLACE = frozenset(
    f"aten::{name}_" for name in ("add", "sub", "mul", "div", "lerp", "addcmul", "addcdiv", "zero", "sqrt", "relu")
)


class _Op:
    """What must be known of an op; most of it is looked up when the op runs for the first time."""

    __slots__ = (
        "call",
        "copies",
        "fresh",
        "name",
        "one_device",
        "one_fresh",
        "reads_scalar",
        "rule",
        "takes_tensors",
        "written",
    )

    #: Calls the op; None until it is looked up.
    call: Any
    rule: Rule | None
    reads_scalar: bool
    copies: bool
    takes_tensors: bool
    #: Whether CUDA refuses the op where one of its tensors is on the host and has dimensions.
    one_device: bool
    #: Position and name of the `out=` arguments, which on CUDA must be where the others are.
    written: tuple[tuple[int, str], ...]
    #: Per result: is it new memory (no view, not an argument given back)? Empty where none is.
    fresh: tuple[bool, ...]
    #: Whether the op gives back one value, and that is new memory: the most frequent case.
    one_fresh: bool

    def __init__(self, name: str) -> None:
        self.name = name
        self.call = None

    def look_up(self) -> None:
        """Find the op by its name and read its schema."""
        name, _, overload = self.name.removeprefix("aten::").partition(".")
        func = getattr(getattr(torch.ops.aten, name), overload or "default")
        schema = func._schema
        host = _HOST_RESULTS.get(schema.name, ())
        fresh = tuple(result.alias_info is None and n not in host for n, result in enumerate(schema.returns))
        arguments = enumerate(schema.arguments)
        written = tuple((n, a.name) for n, a in arguments if a.alias_info is not None and a.alias_info.is_write)
        tensors = [str(argument.type) for argument in schema.arguments if "Tensor" in str(argument.type)]
        self.rule = rule_for(schema.name, schema.overload_name)
        self.reads_scalar = schema.name == "aten::_local_scalar_dense"
        self.copies = schema.name == "aten::copy_"
        self.takes_tensors = bool(tensors)
        self.one_device = tensors.count("Tensor") > 1 and not any(part in schema.name for part in _TAKE_BOTH)
        self.written = () if schema.name.endswith("_") else written
        self.fresh = fresh if any(fresh) else ()
        self.one_fresh = fresh == (True,)
        self.call = func._op


def _at_op(op: _Op, *args: Any, **kwargs: Any) -> Any:
    """The kernel of every op that is not let through, in place of its own."""
    if op.call is None:
        op.look_up()
    # Off while the op runs: an op is one, whatever it calls inside.
    _include(_KEY, False)
    try:
        # In a backward the function mode is on here, and would hear of each storage that is looked at.
        with _without_function_modes():
            run = current()
            if run is None:  # a thread that torch started from one with a dry run
                return op.call(*args, **kwargs)
            # Mostly the first argument tells.
            if not (args and isinstance(args[0], _Tensor) and on_device(args[0])) and not takes_device_tensor(
                args, kwargs
            ):
                result = op.call(*args, **kwargs)
                if not op.takes_tensors and run.composite_is_on_device():
                    # On CUDA this factory inside a composite would have made its tensor on the device.
                    _mark_results(op, result)
                return result
            run.device_uses += 1
            if op.rule is not None:
                cause = run.judge(op.rule, op.name, args, kwargs)
                if cause is not None and not _stays_on_device(run, op, args):
                    run.sync(run.name_read(cause) if op.reads_scalar else cause)
            if op.one_device and run.simulate and not run.muted_now:
                for arg in args:
                    if isinstance(arg, _Tensor) and not on_device(arg) and arg.dim():
                        run.note_mixed(op.name)
            result = op.call(*args, **kwargs)
            if op.one_fresh:
                put_all_on_device(result)
            elif op.fresh:
                _mark_results(op, result)
            if op.written and not run.simulate:
                # `torch.add(a, b, out=total)` in a script on the CPU: on CUDA `total` must be on the device too.
                for position, name in op.written:
                    put_all_on_device(args[position] if position < len(args) else kwargs.get(name))
            return result
    finally:
        _include(_KEY, True)


def _stays_on_device(run: DryRun, op: _Op, args: tuple[Any, ...]) -> bool:
    """Whether a copy_ that crosses the marks is none on CUDA."""
    if not op.copies:
        return False
    if run.calls:
        # x[i] = 1.0 is a fill on CUDA.
        call, call_args, _ = run.calls[-1]
        return call is torch.Tensor.__setitem__ and not isinstance(call_args[2], torch.Tensor)
    if run.in_backward:
        # C++ moves gradients into buffers that it made out of our sight (DDP's buckets).
        put_on_device(args[0])
    return run.in_backward


def _mark_results(op: _Op, result: Any) -> None:
    if len(op.fresh) < 2:
        if op.one_fresh:
            put_all_on_device(result)
    else:
        for item, is_fresh in zip(result, op.fresh, strict=True):
            if is_fresh:
                put_all_on_device(item)


# Registering.

_libraries: list[torch.library.Library] = []


def _passes(name: str) -> bool:
    """Whether an op needs no look: it has no rule, and is made of others, or makes no tensor in memory of its own."""
    schema = torch._C._get_schema(*(name.split(".", 1) if "." in name else (name, "")))
    if rule_for(schema.name, schema.overload_name) is not None:
        return False
    if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
        return True
    if schema.name in _SIMPLE_IN_PLACE:
        return True
    writes = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    return not writes and all("Tensor" not in str(r.type) or r.alias_info is not None for r in schema.returns)


def _register() -> None:
    """Register the kernels, once for the process: it takes some 100 ms, and they are inert by themselves."""
    if _libraries:
        return
    library: Any = torch.library.Library  # Any: torch leaves it untyped
    let_through = torch.library.fallthrough_kernel
    aten, every = library("aten", "IMPL"), library("_", "IMPL")
    # Other ops (of extensions, of the program) are looked into: theirs are made of torch's.
    every.fallback(let_through, _KEY_NAME)
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::") and not _passes(name):
            aten.impl(name.removeprefix("aten::"), functools.partial(_at_op, _Op(name)), _KEY_NAME)
    _libraries.extend((aten, every))


def start() -> None:
    """See the ops of this thread, until `stop`.

    Raises:
        UsageError: this torch has no such key any more, so that nothing could be seen.
    """
    if _KEY is None or _include is None:
        raise UsageError(
            f"the dry run does not work with torch {torch.__version__}, which has no dispatch key {_KEY_NAME}: "
            "use torch 2.11 to 2.13, or mode='cuda' on a machine with a GPU"
        )
    _register()
    _include(_KEY, True)


def stop() -> None:
    """See no more ops of this thread."""
    if _KEY is not None and _include is not None:
        _include(_KEY, False)


def registered() -> bool:
    """Whether the kernels are there: from the first dry run on, for the life of the process, and inert between runs."""
    return bool(_libraries)
