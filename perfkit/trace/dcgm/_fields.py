"""Which of DCGM's fields are read, by their names in each format, and what their values mean.

Source: DCGM 4 (github.com/NVIDIA/DCGM): numbers and names in dcgmlib/dcgm_fields.h, which has the older names too, the
headers of `dcgmi dmon` in dcgmlib/src/dcgm_fields.cpp, blank values in dcgmlib/dcgm_structs.h.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class DcgmField(NamedTuple):
    """A field: its number, its header in `dcgmi dmon`, its names in Prometheus text, and what its unit is times one."""

    number: int
    header: str
    names: tuple[str, ...]
    #: Of `perfkit.run.records.NodeSample` or `NodeHealth`; "reasons" is a bit mask.
    quantity: str
    scale: float = 1


_MIB = 2**20
FIELDS = (
    DcgmField(100, "SMCLK", ("DCGM_FI_DEV_SM_CLOCK",), "sm_mhz"),
    DcgmField(101, "MMCLK", ("DCGM_FI_DEV_MEM_CLOCK",), "memory_mhz"),
    DcgmField(112, "DVCCTR", ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"), "reasons"),
    DcgmField(113, "SMMAX", ("DCGM_FI_DEV_MAX_SM_CLOCK",), "max_sm_mhz"),
    DcgmField(114, "MMMAX", ("DCGM_FI_DEV_MAX_MEM_CLOCK",), "max_memory_mhz"),
    DcgmField(150, "TMPTR", ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"), "temperature_c"),
    DcgmField(155, "POWER", ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS"), "power_w"),
    DcgmField(
        164,
        "EPLMT",
        ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS"),
        "power_limit_w",
    ),
    DcgmField(203, "GPUTL", ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO"), "utilization"),
    DcgmField(230, "XIDER", ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR"), "xid"),
    DcgmField(252, "FBUSD", ("DCGM_FI_DEV_FB_USED",), "memory_bytes", _MIB),
    DcgmField(311, "EDVTL", ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",), "ecc_errors"),
)
#: What a user asks dmon for.
DMON_FIELDS = ",".join(str(field.number) for field in FIELDS)

BY_HEADER = {field.header: field for field in FIELDS}
BY_NAME = {name: field for field in FIELDS for name in field.names}

#: Values from here on mean "blank", "not found", "not supported" or "not permitted" (DCGM_FP64_BLANK, which integers
#: that say so, DCGM_INT64_BLANK, are beyond too). The smaller DCGM_INT32_BLANK is printed by no field of these.
_BLANK = 140737488355328.0


def value_of(text: str, field: DcgmField) -> float | None:
    """A printed value in the quantity's unit; None for one that means that there is none.

    Raises:
        ValueError: the text is not a number.
    """
    if text == "N/A":
        return None
    number = float(text)
    if not math.isfinite(number) or number >= _BLANK or number < 0:
        return None
    return number * field.scale
