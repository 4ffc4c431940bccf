"""The ledger: the step's time, partitioned. Each nanosecond has one owner."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from perfkit._location import Location
from perfkit.ledger._device_rows import device_rows
from perfkit.ledger._host_rows import host_rows
from perfkit.ledger.rows import LedgerRow
from perfkit.ledger.step_budget import CRITICAL, MAJORITY, SMALL, StepBudget
from perfkit.measures.results.measurements import Measurements

#: The limit explains up to twice its time of a row; what a row takes beyond that is unexplained. The limit counts the
#: minimum that an op computes and moves, at rates measured (or printed) for large products and plain copies: on a CPU
#: healthy ops reach 0.5 to 0.95 of it, written-out or badly shaped ones less than 0.3 (perfkit/rules/CALIBRATION.md).
NEAR_LIMIT = 0.5


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one step (or of the recording, where no steps are marked); they sum to ``wall_ns`` exactly.

    ``basis`` is what the time is of: the device's period, or the thread that trains. ``limits`` names where the limits
    come from, None where none are known; ``unknown`` says why limits are missing.
    """

    AVAILABLE_FROM: ClassVar[str] = "a recording with steps or events"

    wall_ns: int
    per: Literal["step", "recording", "program"]
    basis: Literal["device", "training thread"]
    rows: tuple[LedgerRow, ...]
    limits: str | None = None
    unknown: str | None = None

    @property
    def others_ns(self) -> int:
        """Time in which the thread that trains could run, and other programs had the core."""
        return sum(row.ns for row in self.rows if row.owner == "other programs")

    def as_wall(self, ns: float) -> int:
        """The wall time in which the thread itself has this time: other programs lengthen all parts of a step alike."""
        return min(self.wall_ns, round(ns * self.wall_ns / max(1, self.wall_ns - self.others_ns)))

    @classmethod
    def from_measurements(cls, found: Measurements) -> Ledger | None:
        """The ledger of the step that costs are counted by; None where nothing has a length."""
        budget = StepBudget.from_measurements(found)
        if budget is None:
            return None
        on_device = budget.device is not None
        partition = (device_rows if on_device else host_rows)(budget, found)
        return cls(
            wall_ns=budget.wall_ns,
            per=budget.per,
            basis="device" if on_device else "training thread",
            rows=tuple(sorted(partition.rows, key=lambda row: -row.ns)),
            limits=partition.limits,
            unknown=partition.unknown,
        )


class Claim(msgspec.Struct, frozen=True):
    """Time of one row that one rule's finding accounts for."""

    row: int
    rule: str
    ns: int


class RowAccount(msgspec.Struct, frozen=True):
    """How the time of one row is accounted for; the four parts sum to the row's."""

    row: LedgerRow
    claimed_ns: int
    at_limit_ns: int
    overhead_ns: int
    unexplained_ns: int


class Unexplained(msgspec.Struct, frozen=True):
    """Time at one place, or in one part of the step, that no finding accounts for and no limit explains.

    ``limit_share`` is the share of its limit that it reaches (0 to 1), None where it is not known for most of it.
    """

    name: str
    ns: int
    limit_share: float | None
    at: Location | None


def _unclaimed_share(account: RowAccount) -> float:
    """The share of a row's time that no finding claims, 0 to 1."""
    return 1 - account.claimed_ns / account.row.ns if account.row.ns else 0.0


class ClaimedLedger(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger with what findings claimed: claimed, at the limit, overhead and unexplained are the step, exactly.

    Nothing is claimed twice. Of what no finding claims, the time of rows up to twice their limit is ``at_limit_ns``, or
    ``overhead_ns`` where the limit is what calls cost whatever they compute. ``unquantified`` are the rules of problems
    whose cost is not known, and ``optional_ns`` is the most that a finding which is information may save.
    """

    AVAILABLE_FROM: ClassVar[str] = Ledger.AVAILABLE_FROM

    ledger: Ledger
    claims: tuple[Claim, ...] = ()
    unquantified: tuple[str, ...] = ()
    optional_ns: int = 0

    def accounts(self) -> list[RowAccount]:
        """Each row with its parts, in the ledger's order."""
        claimed = [0] * len(self.ledger.rows)
        for claim in self.claims:
            claimed[claim.row] += claim.ns
        accounts = []
        for row, taken in zip(self.ledger.rows, claimed, strict=True):
            rest = row.ns - taken
            # What is claimed and what is not have the same share of the limit.
            explained = min(rest, round((row.limit_ns or 0) * rest / row.ns / NEAR_LIMIT)) if row.ns else 0
            overhead = explained if row.bound == "overhead" else 0
            accounts.append(RowAccount(row, taken, explained - overhead, overhead, rest - explained))
        return accounts

    @property
    def claimed_ns(self) -> int:
        """Time that findings account for."""
        return sum(claim.ns for claim in self.claims)

    @property
    def at_limit_ns(self) -> int:
        """Time that no finding claims, of rows that compute or move memory, up to twice their limit."""
        return sum(account.at_limit_ns for account in self.accounts())

    @property
    def overhead_ns(self) -> int:
        """Time that no finding claims and calls cost at least, whatever they compute, up to twice that."""
        return sum(account.overhead_ns for account in self.accounts())

    @property
    def unexplained_ns(self) -> int:
        """Time that no finding claims, of rows beyond twice their limit, or whose limit is not known."""
        return sum(account.unexplained_ns for account in self.accounts())

    @property
    def is_at_limit(self) -> bool:
        """Whether the step is proven healthy: most of it near its limit, little of it overhead or unexplained.

        No problem may be of unknown cost, and no finding that is information may save more than a tenth of the step.
        The time of other programs is left out: it is not the program's. Where they had the core for most of the step,
        nothing is proven: what was timed in one step may be theirs.
        """
        own_ns = self.ledger.wall_ns - self.ledger.others_ns
        if own_ns < MAJORITY * self.ledger.wall_ns:
            return False
        rest_ns = self.unexplained_ns - self.ledger.others_ns
        is_little = max(rest_ns, self.overhead_ns) < CRITICAL * own_ns
        is_known = not self.unquantified and self.optional_ns < SMALL * self.ledger.wall_ns
        return self.at_limit_ns >= MAJORITY * own_ns and is_little and is_known

    @property
    def memory_ns(self) -> int:
        """The part of ``at_limit_ns`` that the memory's bandwidth limits, and not arithmetic."""
        return sum(account.at_limit_ns for account in self.accounts() if account.row.bound == "memory")

    @property
    def limit_share(self) -> float:
        """The share of the limit that the time at the limit reaches on average, `NEAR_LIMIT` to 1; 0.0 without any."""
        total = self.at_limit_ns
        limits = (
            (account.row.limit_ns or 0) * _unclaimed_share(account)
            for account in self.accounts()
            if account.row.bound != "overhead"
        )
        return min(1.0, sum(limits) / total) if total else 0.0

    def unexplained(self) -> list[Unexplained]:
        """The unexplained time by place and part of the step, largest first; without that of other programs."""
        sums: dict[tuple[str, Location | None], list[int]] = {}
        for account in self.accounts():
            row, ns = account.row, account.unexplained_ns
            if ns and row.owner != "other programs":
                entry = sums.setdefault((row.part, row.at), [0, 0, 0])
                entry[0] += ns
                if row.limit_ns is not None:
                    entry[1] += round(row.limit_ns * ns / row.ns)
                    entry[2] += ns
        parts = [
            Unexplained(name, ns, limit / known if known >= MAJORITY * ns else None, at)
            for (name, at), (ns, limit, known) in sums.items()
        ]
        return sorted(parts, key=lambda part: -part.ns)
