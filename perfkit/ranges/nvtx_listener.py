"""Listener: any tool that receives NVTX (Nsight Systems, Nsight Compute, an injection library).

NVTX decides once per process, at its first call, whether a tool is attached, from an environment variable that the tool
sets. Without that variable the nvtx package is not imported. The attributes of a range are built once and pushed
through the package's module functions: 23 ns per pair, against 44 through the methods of its Domain and 600 through
``nvtx.annotate``.
"""

from __future__ import annotations

import os
from typing import Any

from perfkit import _env
from perfkit._nvtx_names import DOMAIN
from perfkit.ranges import listeners
from perfkit.ranges.listeners import NVTX, Form
from perfkit.ranges.range_arguments import Payload

#: The first release whose compiled part has the functions used here.
_OLDEST = "0.2.14"

#: The compiled part of the nvtx package, once a tool is found attached.
_library: Any = None
#: Domains by name, kept for ever: nvtx destroys a dropped domain in the tool too.
_domains: dict[str, Any] = {}


def _ignore(*_arguments: object) -> None:
    return None


# The attributes are made once per range and given each payload in turn. Each push has them for itself meanwhile, so
# there are as many as threads have ever pushed at once. (Making them each time costs 1 us.)
_PUSH_PAYLOAD = """\
try:
    {kept} = {attributes}.pop()
except IndexError:
    {kept} = self.nvtx_attributes()[0]
{kept}.payload = self.payload
{push}({kept}, {handle})
{attributes}.append({kept})"""


class NvtxListener(listeners.RangeListener):
    """Pushes and pops ranges, or starts and ends those that may overlap."""

    bit = NVTX
    #: Each takes the attributes, if it begins something or marks an instant, and the domain's handle.
    calls = {
        "push": _ignore,
        "pop": _ignore,
        "start": lambda attributes, handle: (0,),
        "end": _ignore,
        "mark": _ignore,
    }

    def code(self, form: Form, mode: int) -> tuple[str, str]:
        """Push and pop per thread; a started range has an identifier to end it by."""
        if form == "overlapping":
            return "{kept} = {start}({attributes}, {handle})[0]", "{end}({kept}, {handle})"
        begin = _PUSH_PAYLOAD if form == "payload" else "{push}({attributes}, {handle})"
        return begin, "{pop}({handle})"

    def start(self) -> None:
        """Listen, if a tool is attached to this process."""
        global _library
        if listeners.disabled or not _env.nvtx_tool_attached() or os.environ.get("NVTX_DISABLE"):
            return
        try:
            import nvtx._lib.lib as library  # only where a tool is attached

            _library = library
            # Everything that `attributes` does is tried here, so that no range can fail at it later.
            attributes(DOMAIN, 0, None, DOMAIN, 0)
            attributes(DOMAIN, 0, None, DOMAIN, 0, keep=False)
            self.connect(
                push=library.push_range,
                pop=library.pop_range,
                start=library.start_range,
                end=library.end_range,
                mark=library.mark,
            )
        except Exception as error:  # noqa: BLE001 - nvtx is missing or built differently: training continues
            _library = None
            listeners.warn_once(
                f"an NVTX tool is attached but will see no ranges ({type(error).__name__}: {error}): "
                f"pip install 'nvtx>={_OLDEST}'"
            )
            return
        listeners.switch(NVTX, True)


LISTENER = NvtxListener()


def _domain(name: str) -> Any:
    """The domain of this name, whether or not ``nvtxDomainIsEnabled`` returns true for it.

    nvtx >= 0.2.12 returns a DummyDomain where it is false. Nsight Systems up to 2023.4 returns false and yet records
    every range. So the object is built here as its ``__new__`` would, without that check. It must be the first of its
    name: dropping another handle of the same name destroys the domain.
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
    """Event attributes and the domain's handle, as NVTX calls take them; (None, None) where no tool listens.

    ``keep=False`` leaves the name out of the domain's table of registered strings, which never shrinks.
    """
    if _library is None:
        return None, None
    found = _domain(domain)
    text = found.get_registered_string(name) if keep else _library.RegisteredString(found.handle, name)
    number = found.get_category_id(category) if category is not None else None
    return _library.EventAttributes(found, text, color, number, payload), found.handle
