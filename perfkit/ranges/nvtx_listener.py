"""Listener: any tool that receives NVTX (Nsight Systems, Nsight Compute, an injection library).

Whether a tool is there is decided once per process, at its first NVTX call, from an environment
variable that the tool sets; without that variable the nvtx package is not even imported. The attributes
of a range are built once and pushed through the package's module functions: 23 ns a pair, against 44
through the methods of its Domain and 600 through ``nvtx.annotate``.
"""

from __future__ import annotations

import os
from typing import Any

from perfkit import _env
from perfkit.ranges import calls, listeners
from perfkit.ranges.arguments import DOMAIN, Payload

#: The first release whose compiled part is as it is used here.
_OLDEST = "0.2.14"

#: The compiled part of the nvtx package, once a tool is found attached.
_library: Any = None
#: Domains by name, kept for ever: a domain that is dropped is destroyed in the tool too.
_domains: dict[str, Any] = {}


def start() -> None:
    """Listen, if a tool is attached to this process."""
    global _library
    if listeners.disabled or not _env.nvtx_tool_attached() or os.environ.get("NVTX_DISABLE"):
        return
    try:
        import nvtx._lib.lib as library

        _library = library
        # All that `attributes` will ever do is tried here, so that no range can fail at it later.
        _attributes(DOMAIN, 0, None, DOMAIN, 0)
        _library.RegisteredString(_domain(DOMAIN).handle, DOMAIN)
        calls.push, calls.pop = library.push_range, library.pop_range
        calls.start, calls.end = library.start_range, library.end_range
        calls.mark = library.mark
    except Exception as error:  # noqa: BLE001 - absent, or an nvtx that is built differently: training goes on
        listeners.tell(
            f"an NVTX tool is attached but will see no ranges ({type(error).__name__}: {error}): "
            f"pip install 'nvtx>={_OLDEST}'"
        )
        return
    listeners.listen(listeners.NVTX, True)


def _domain(name: str) -> Any:
    """The domain of this name, whatever ``nvtxDomainIsEnabled`` says.

    nvtx >= 0.2.12 asks it and hands out a DummyDomain for "no"; Nsight Systems up to 2023.4 says no and
    yet takes every range. So the object is built here as its ``__new__`` would, without asking. It must be
    the first of its name: a handle that is made, asked and dropped destroys the domain.
    """
    domain = _domains.get(name)
    if domain is None:
        domain = object.__new__(_library.Domain)
        domain.handle = _library.DomainHandle(name)
        domain.__init__(name)
        _domains[name] = domain
    return domain


def attributes(
    name: str, color: int | None, category: str | None, domain: str, payload: Payload | None, *, keep: bool = True
) -> tuple[Any, Any]:
    """What `calls.push` takes: event attributes and the domain's handle; (None, None) where no tool listens.

    ``keep=False`` leaves the name out of the domain's table of registered strings, which never shrinks.
    """
    return (
        _attributes(name, color, category, domain, payload, keep=keep)
        if listeners.mode & listeners.NVTX
        else (None, None)
    )


def _attributes(
    name: str, color: int | None, category: str | None, domain: str, payload: Payload | None, *, keep: bool = True
) -> tuple[Any, Any]:
    found = _domain(domain)
    text = found.get_registered_string(name) if keep else _library.RegisteredString(found.handle, name)
    number = found.get_category_id(category) if category is not None else None
    return _library.EventAttributes(found, text, color, number, payload), found.handle
