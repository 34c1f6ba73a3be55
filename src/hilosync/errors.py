"""Every error that HiLo raises on purpose, in one drawn hierarchy.

::

    HiLoError                     exit code of the `hilo` command
    ├── ConfigurationError  (2)   what the user asked for cannot be done
    │   ├── UnknownName           no compressor, optimizer, task … of that name
    │   ├── BudgetTooSmall        no payload of this compressor fits the byte budget
    │   ├── PlanError             the adapter cannot be served (DoRA, trainable bias …)
    │   ├── PlanMismatch          log and model disagree about the adapter's tensors
    │   ├── RunMismatch           the log belongs to another run or configuration
    │   ├── BadTicket             a join ticket that is mistyped, or of another format
    │   └── ModelNotFound         no model at that path or hub id
    ├── LogError            (2)   the log could not do what was asked
    │   ├── LogUnavailable        disk full, permission denied
    │   │   └── LogUnreachable    nobody answers; the same call may succeed later
    │   ├── LogNotFound           there is no run at this address
    │   ├── Fenced                another learner has written this version
    │   └── Truncated             the record is older than the log's retention
    ├── DiskUnavailable     (2)   a checkpoint's disk is full, or forbids what must be done
    ├── WireError           (1)   bytes that are not what they claim to be
    │   ├── MalformedRecord       bad magic, length, hash or field
    │   ├── MalformedPayload      a compressor's payload that cannot be decoded
    │   ├── MalformedRollouts     a worker's delivery that cannot be decoded or trained on
    │   ├── ChainBroken           the record does not follow the one before it
    │   └── BadSignature          not signed by the run's learner
    ├── Diverged            (1)   same records, other bits: names version and tensors
    ├── TornState           (1)   a step was interrupted half-way; heal the replica, resume the learner
    ├── NonFinite           (2)   NaN or Inf in a gradient, with the tensor's name
    ├── UnsafeArithmetic    (2)   this machine does not round as IEEE 754 asks
    └── PeerSilent          (3)   nothing heard from the other side within the limit

A message says what was expected, what came, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "BadSignature",
    "BadTicket",
    "BudgetTooSmall",
    "ChainBroken",
    "ConfigurationError",
    "DiskUnavailable",
    "Diverged",
    "Fenced",
    "HiLoError",
    "LogError",
    "LogNotFound",
    "LogUnavailable",
    "LogUnreachable",
    "MalformedPayload",
    "MalformedRecord",
    "MalformedRollouts",
    "ModelNotFound",
    "NonFinite",
    "PeerSilent",
    "PlanError",
    "PlanMismatch",
    "RunMismatch",
    "TornState",
    "Truncated",
    "UnknownName",
    "UnsafeArithmetic",
    "WireError",
]


class HiLoError(Exception):
    """Root of all errors that HiLo raises on purpose."""

    exit_code = 1


class ConfigurationError(HiLoError):
    """What the user asked for cannot be done."""

    exit_code = 2


class UnknownName(ConfigurationError):
    """There is no compressor, optimizer, task, … of this name."""

    def __init__(self, kind: str, name: str, known: Sequence[str]):
        super().__init__(f"unknown {kind} {name!r}: expected one of {', '.join(sorted(known))}")


class BudgetTooSmall(ConfigurationError):
    """No payload of this compressor fits the byte budget."""


class PlanError(ConfigurationError):
    """The adapter has parts that HiLo cannot synchronize or an engine cannot serve."""


class PlanMismatch(ConfigurationError):
    """The log and the model disagree about the adapter's tensors."""


class RunMismatch(ConfigurationError):
    """The log belongs to another run, or the run was configured differently."""


class BadTicket(ConfigurationError):
    """A join ticket that is mistyped or incomplete, or of a format that this program does not read."""


class ModelNotFound(ConfigurationError):
    """There is no model at this local path or hub id."""


class LogError(HiLoError):
    """The log could not do what was asked of it."""

    exit_code = 2


class LogUnavailable(LogError):
    """The storage or service behind the log refused or did not answer."""


class LogUnreachable(LogUnavailable):
    """Nobody answers at the moment: a network or a service is down. The same call may succeed later."""


class LogNotFound(LogError):
    """There is no run at this address."""


class Fenced(LogError):
    """Another learner has already written this version; this one must stop."""


class Truncated(LogError):
    """The record is older than what the log retains; re-base from a snapshot."""


class DiskUnavailable(HiLoError):
    """The folder of a process's checkpoints refused: disk full, permission denied."""

    exit_code = 2


class WireError(HiLoError):
    """Bytes that are not what they claim to be."""


class MalformedRecord(WireError):
    """A record with a bad magic number, length, hash or field."""


class MalformedPayload(WireError):
    """A compressor's payload that cannot be decoded."""


class MalformedRollouts(WireError):
    """A worker's delivery that cannot be decoded, or that answers another question than was asked."""


class ChainBroken(WireError):
    """A record that does not follow the one before it."""


class BadSignature(WireError):
    """A record that the run's learner did not sign."""


class Diverged(HiLoError):
    """A replica applied the learner's record and holds other bits.

    Attributes:
        version: first policy version at which the digests differ.
        tensors: names of the tensors that differ, in plan order.
    """

    def __init__(self, version: int, tensors: Sequence[str], expected: bytes, found: bytes):
        self.version = version
        self.tensors = tuple(tensors)
        where = ", ".join(tensors[:3]) + (f" and {len(tensors) - 3} more" if len(tensors) > 3 else "")
        super().__init__(
            f"version {version} diverged in {where or 'no tensor whose tag differs'}: the learner's digest is "
            f"{expected.hex()[:16]}…, this replica's {found.hex()[:16]}…; it must not serve this version"
        )


class TornState(HiLoError):
    """Applying a record was interrupted, so parameters and slots belong to no version."""


class NonFinite(HiLoError):
    """A gradient holds NaN or Inf, so the step cannot be encoded."""

    exit_code = 2


class UnsafeArithmetic(HiLoError):
    """This machine or process does not round as IEEE 754 asks (flush-to-zero, fused multiply-add …)."""

    exit_code = 2


class PeerSilent(HiLoError):
    """Nothing was heard from the other side within the stated limit."""

    exit_code = 3
