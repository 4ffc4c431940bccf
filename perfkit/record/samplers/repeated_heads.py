"""Keys and values that are copied for each head that shares them, before an attention that could share them itself.

`OpInputs` hands on the ops of one step, without views: a tensor is known by the memory that it shares.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from perfkit._code_owner import USER, function_name
from perfkit.record.program_values import is_tensor
from perfkit.record.samplers.call_paths import Site, location_of
from perfkit.run.records import RepeatedHeads

#: Copies that are followed in a step.
_MAX_COPIES = 10_000
#: Attention in one op, under inference_mode without the underscore. Products of batches are not looked at: what they
#: get several times may be no heads.
_ATTENTION = "scaled_dot_product_"
_COPYING = ("clone", "reshape", "contiguous")


class _HeadCopy(NamedTuple):
    """A tensor that has each part several times: its line, and how often."""

    site: Site
    times: int


class RepeatedHeadCounts:
    """Follows such copies through one step; keeps no tensor alive."""

    def __init__(self) -> None:
        #: By the address of the memory. What was freed is replaced by what is made there next.
        self._copies: dict[int, _HeadCopy] = {}
        #: Line of the attention -> lines of copies, times, the most queries, calls.
        self._found: dict[Site, tuple[set[Site], int, int, int]] = {}

    def add(self, func: Any, arguments: Any, out: Any, site: Site) -> None:
        """An op of a line of the user's has returned ``out`` for these positional arguments."""
        name = func.overloadpacket.__name__
        read = arguments[1:3] if name.lstrip("_").startswith(_ATTENTION) else ()
        copies = [copy for one in read if is_tensor(one) and (copy := self._copies.get(_address(one))) is not None]
        if copies:
            lines, times, queries, calls = self._found.get(site, (set[Site](), 0, 0, 0))
            lines.update(copy.site for copy in copies)
            queries = max(queries, int(arguments[0].shape[-2]))
            self._found[site] = lines, max(times, *(copy.times for copy in copies)), queries, calls + 1
        first = out[0] if isinstance(out, tuple) and out else out
        if is_tensor(first) and first.device.type == "cpu" and first.dim():
            times = _times(name, arguments)
            if times > 1 and len(self._copies) < _MAX_COPIES:
                self._copies[_address(first)] = _HeadCopy(site, times)
            else:
                self._copies.pop(_address(first), None)

    def rows(self) -> tuple[RepeatedHeads, ...]:
        """The lines whose attention gets such copies."""
        return tuple(
            RepeatedHeads(
                file=code.co_filename, line=line, function=function_name(code), owner=USER,
                copied_at=tuple(sorted(map(location_of, lines), key=lambda at: (at.file, at.line or 0))),
                times=times, queries=queries, calls=calls,
            )
            for (code, line), (lines, times, queries, calls) in self._found.items()
        )  # fmt: skip


def _times(name: str, arguments: Any) -> int:
    """How often an op copies each head, one copy after the other: what repeats all heads has them in another order."""
    source = arguments[0] if arguments else None
    if not is_tensor(source):
        return 1
    if name == "repeat_interleave":
        return arguments[1] if isinstance(arguments[1], int) else 1
    if name not in _COPYING or source.dim() < 4:
        return 1
    heads = zip(source.shape[1:-2], source.stride()[1:-2], strict=True)
    return max((int(length) for length, stride in heads if stride == 0), default=1)


def _address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())
