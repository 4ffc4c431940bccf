"""Damaged versions of a Kineto trace, as profilers and file systems damage it: made at run time from a complete one.

Each damage takes the decoded file and returns the events that are left, None where it does not apply. `CUTS` are shares
of the text at which a file is cut.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Damage = Callable[[list[Event]], list[Event] | None]

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
KERNELS = {"kernel", "Kernel"}
RUNTIME = {"cuda_runtime", "cuda_driver", "hip_runtime", "Runtime", "Driver"}
COMMUNICATION = re.compile("nccl", re.IGNORECASE)
CUTS = (0.25, 0.6, 0.9)


def read(path: Path) -> dict[str, Any]:
    """The decoded file."""
    raw = path.read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    return found


def write(path: Path, content: dict[str, Any], events: list[Event]) -> Path:
    """Writes the file with these events instead of its own."""
    path.write_text(json.dumps(content | {"traceEvents": events}))
    return path


def cut(path: Path, content: dict[str, Any], share: float) -> Path:
    """Writes this share of the file's text."""
    text = json.dumps(content)
    path.write_text(text[: round(share * len(text))])
    return path


def _is(event: Event, categories: set[str]) -> bool:
    return event.get("cat") in categories


def _without(events: list[Event], lost: Callable[[Event], bool]) -> list[Event] | None:
    kept = [event for event in events if not lost(event)]
    return kept if len(kept) < len(events) else None


def no_kernels(events: list[Event]) -> list[Event] | None:
    return _without(events, lambda event: _is(event, KERNELS))


def every_second_kernel(events: list[Event]) -> list[Event] | None:
    kernels = [id(event) for event in events if _is(event, KERNELS)]
    lost = set(kernels[1::2])
    return _without(events, lambda event: id(event) in lost)


def no_device_events(events: list[Event]) -> list[Event] | None:
    return _without(events, lambda event: _is(event, DEVICE))


def device_properties_alone(events: list[Event]) -> list[Event] | None:
    """As where only the host was recorded: neither calls of the runtime nor device events."""
    return _without(events, lambda event: _is(event, DEVICE | RUNTIME | {"ac2g", "async_gpu"}))


def one_stream(events: list[Event]) -> list[Event] | None:
    """Without the busiest stream."""
    streams = Counter((event.get("pid"), event.get("tid")) for event in events if _is(event, DEVICE))
    if not streams:
        return None
    lost = streams.most_common(1)[0][0]
    return _without(events, lambda event: _is(event, DEVICE) and (event.get("pid"), event.get("tid")) == lost)


def second_stream(events: list[Event]) -> list[Event] | None:
    """Without the second busiest stream."""
    streams = Counter((event.get("pid"), event.get("tid")) for event in events if _is(event, KERNELS))
    if len(streams) < 2:
        return None
    lost = streams.most_common(2)[1][0]
    return _without(events, lambda event: _is(event, DEVICE) and (event.get("pid"), event.get("tid")) == lost)


def end_of_the_device(events: list[Event]) -> list[Event] | None:
    """The last 40 % of the device's time, while the host's events go on."""
    work = [event for event in events if _is(event, DEVICE)]
    if not work:
        return None
    times = [float(event["ts"]) for event in work]
    limit = min(times) + 0.6 * (max(times) - min(times))
    return _without(events, lambda event: _is(event, DEVICE) and float(event["ts"]) > limit)


def start_of_the_device(events: list[Event]) -> list[Event] | None:
    """The first 40 % of the device's time."""
    work = [event for event in events if _is(event, DEVICE)]
    if not work:
        return None
    times = [float(event["ts"]) for event in work]
    limit = min(times) + 0.4 * (max(times) - min(times))
    return _without(events, lambda event: _is(event, DEVICE) and float(event["ts"]) < limit)


def collectives_on_the_device(events: list[Event]) -> list[Event] | None:
    return _without(events, lambda event: _is(event, KERNELS) and bool(COMMUNICATION.search(str(event.get("name")))))


def every_third_step(events: list[Event]) -> list[Event] | None:
    steps = [event for event in events if str(event.get("name", "")).startswith("ProfilerStep")]
    numbers = sorted({str(event["name"]) for event in steps if event.get("dur")}, key=lambda name: (len(name), name))
    if len(numbers) < 3:
        return None
    lost = set(numbers[1::3]) - {numbers[-1]}
    return _without(events, lambda event: event.get("name") in lost)


def _unlinked(every: int) -> Damage:
    def damage(events: list[Event]) -> list[Event] | None:
        number = 0
        changed = []
        for event in events:
            if _is(event, DEVICE) and event.get("args"):
                number += 1
                if number % every == 0:
                    args = {key: value for key, value in event["args"].items() if key not in _IDS}
                    event = event | {"args": args}
            changed.append(event)
        return changed if number else None

    return damage


_IDS = {"correlation", "external id", "External id"}

DAMAGES: dict[str, Damage] = {
    "no kernels": no_kernels,
    "every second kernel": every_second_kernel,
    "no device events": no_device_events,
    "device properties alone": device_properties_alone,
    "one stream": one_stream,
    "second stream": second_stream,
    "end of the device": end_of_the_device,
    "start of the device": start_of_the_device,
    "collectives on the device": collectives_on_the_device,
    "every third step": every_third_step,
    "no correlation ids": _unlinked(1),
    "half of the correlation ids": _unlinked(2),
}
