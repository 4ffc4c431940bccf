"""``perfkit latency``: how long a model takes at each batch size."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from perfkit import _env
from perfkit.errors import UsageError
from perfkit.latency import measure_latency
from perfkit.reports.console import stdout_console


@click.command
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option("--batch-sizes", default="1,8,64", show_default=True, help="Measure these batch sizes.")
@click.option("--device", help="Move the model to this device first: cuda, cuda:1, cpu.")
@click.option("--gradients", is_flag=True, help="Call the model without torch.inference_mode().")
@click.option("--budget", default=30.0, show_default=True, help="Limit the measurement to this many seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, times in ns.")
def latency(target: str, batch_sizes: str, device: str | None, gradients: bool, budget: float, as_json: bool) -> int:
    """Measure a model's latency, throughput and memory by batch size, and report up to which size batching pays.

    A measurement that does not settle is marked with ? and reported as not stable, with the likely cause.

    MODULE:FUNCTION: Measure what this function without arguments returns: (model, example), or a callable that takes a
    batch size. The module is searched from the current folder; train.py:make works too.
    """
    sizes = _sizes(batch_sizes)
    _env.require_torch("perfkit latency")
    model, example = _call_target(target)
    measured = measure_latency(
        _to_device(model, device), example, sizes, inference_mode=not gradients, budget_s=budget, progress=True
    )
    console = stdout_console()
    if as_json:
        click.echo(measured.to_json())
    elif console.options.ascii_only:
        click.echo(str(measured).replace("µ", "u").encode("ascii", "replace").decode())
    else:
        console.print(measured.table())
    return 0


def _sizes(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    # Not int(): it accepts 1_0, digits of other scripts, and thousands of digits.
    if not all(part.isascii() and part.isdigit() and len(part) < 10 and int(part) > 0 for part in parts):
        raise UsageError(f"--batch-sizes takes positive whole numbers with commas, as in 1,8,64; got {text!r}")
    return [int(part) for part in parts]


def _call_target(target: str) -> tuple[Callable[..., Any], Any]:
    """Call the user's function; its model and its example."""
    module_name, _, name = target.rpartition(":")
    if not module_name or not name.isidentifier():
        raise UsageError(f"the target must be module:function or train.py:function, got {target!r}")
    module = _imported(module_name)
    make = getattr(module, name, None)
    if make is None:
        raise UsageError(f"{module_name} has no {name}")
    if not callable(make):
        raise UsageError(f"{target} must be a function, it is a {type(make).__name__}")
    try:
        made = make()
    except Exception as error:
        raise UsageError(f"{target}() raised {type(error).__name__}: {error}{_place_of(error)}") from error
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        return made
    if callable(made) and not _is_module(made):
        return made, lambda size: (size,)
    raise UsageError(
        f"{target} must return (model, example), or a callable that takes a batch size; it returned a "
        f"{type(made).__name__}"
    )


def _imported(module_name: str) -> ModuleType:
    try:
        if not module_name.endswith((".py", ".pyw")):
            sys.path.insert(0, os.getcwd())  # as python -m does
            return importlib.import_module(module_name)
        path = Path(module_name)
        if not path.is_file():
            raise UsageError(f"the file {module_name} does not exist")
        sys.path.insert(0, str(path.resolve().parent))  # as python train.py does
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None, "a file that ends in .py has a loader"
        assert spec.loader is not None, "likewise"
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"{module_name} cannot be imported: {type(error).__name__}: {error}{_place_of(error)}"
        ) from error
    return module


def _place_of(error: Exception) -> str:
    """The innermost place of the error, as text; empty if it is in the import system."""
    trace, last = error.__traceback__, None
    while trace is not None:
        last, trace = trace, trace.tb_next
    if last is None or last.tb_frame.f_code.co_filename.startswith("<"):
        return ""
    return f" ({Path(last.tb_frame.f_code.co_filename).name}:{last.tb_lineno})"


def _is_module(made: Any) -> bool:
    import torch  # the command line starts without it

    return isinstance(made, torch.nn.Module)


def _to_device(model: Callable[..., Any], device: str | None) -> Callable[..., Any]:
    if device is None:
        return model
    if not _is_module(model):
        raise UsageError("--device needs a torch.nn.Module: move any other model inside the function")
    import torch  # the command line starts without it

    try:
        return model.to(torch.device(device))  # type: ignore[attr-defined,no-any-return]  # a module, see above
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"the model cannot be moved to --device {device}: {first}") from error
