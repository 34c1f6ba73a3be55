"""The processes of the network bench: a learner that appends what it is told to, and workers that read and verify.

Each event is a line of JSON on standard output, with times of the monotonic clock, which is one for all processes
and network namespaces of a machine. A process ends when its standard input does, so none outlives the bench.

Learner, on `{"payload": bytes}`: appends a record of that payload; on `{"snapshot": bytes}`: stores a snapshot of
its last version. Worker: follows the records; on `{"snapshot": version}`: fetches that snapshot meanwhile.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from hilosync.errors import HiLoError, LogUnavailable, PeerSilent
from hilosync.log import Log, StepLog, open_log
from hilosync.wire import (
    Chunk,
    Genesis,
    Manifest,
    PlanLayout,
    Record,
    Setup,
    TensorLayout,
    decode_genesis,
    decode_manifest,
    decode_record,
    elements_per_chunk,
    encode_chunk,
    encode_genesis,
    encode_manifest,
    encode_record,
    record_hash,
)

__all__ = ["SCALARS", "Chain", "follow"]

SCALARS = 7
"""Scalars per record: as many as AdamW's."""

_BUFFERS = ("params", "slots.m", "slots.v")

_PATIENCE = 3600.0
"""Seconds for which a storage that does not answer is asked again."""

_WAIT = 5.0

Answer = TypeVar("Answer")


class Chain:
    """Frames of a run one after the other: real but for the payloads, which are random bytes.

    What a compressor writes is entropy coded, so random bytes take as long on a network. Nothing here decodes them.
    """

    def __init__(self, blocks: int, seed: int):
        """
        Args:
            blocks: tensors of the adapter, each of which has a tag in a record.
            seed: of all bytes.
        """
        self._random = np.random.default_rng(seed)
        self._blocks = blocks
        self.genesis = Genesis(
            run=self._random.bytes(16).hex(),
            seed=seed,
            created_by="hilo bench network",
            plan=PlanLayout(blocks=tuple(TensorLayout(f"block.{n}", 4, 4) for n in range(blocks))),
            optimizer=Setup("adamw"),
            compressor=Setup("dense"),
        )
        self.version = 0
        self.last = encode_genesis(self.genesis)

    def extend(self, payload: int) -> bytes:
        """The next record, with a payload of so many bytes."""
        record = Record(
            run=self.genesis.run_id,
            epoch=1,
            version=self.version + 1,
            previous=record_hash(self.last),
            plan=bytes(16),
            configuration=bytes(16),
            scalars=np.zeros((1, SCALARS), np.float32),
            tags=np.zeros(self._blocks, np.uint16),
            payload=self._random.bytes(payload),
            digest=bytes(32),
        )
        self.version, self.last = self.version + 1, encode_record(record)
        return self.last

    def store_snapshot(self, log: Log, size: int) -> int:
        """Stores a snapshot of about `size` bytes for the last version; returns its bytes."""
        elements = elements_per_chunk(len(_BUFFERS))
        total = max(1, size // (4 * len(_BUFFERS)))
        keys, stored = [], 0
        for first in range(0, total, elements):
            count = min(elements, total - first)
            parts = [self._random.bytes(4 * count) for _ in _BUFFERS]
            content = encode_chunk(Chunk(self.genesis.run_id, self.version, first), _BUFFERS, parts)
            keys.append(log.blobs.put(content))
            stored += len(content)
        manifest = Manifest(
            run=self.genesis.run_id,
            plan=bytes(16),
            configuration=bytes(16),
            version=self.version,
            digest=bytes(32),
            elements=elements,
            chunks=tuple(keys),
        )
        log.snapshots.publish(self.version, encode_manifest(manifest))
        return stored


def follow(steps: StepLog, report: Callable[..., None], last: int | None = None) -> None:
    """Reads every record in turn, verifies it and reports its number and hash as the record itself has them.

    Args:
        steps: the records.
        report: called with `version`, `hash` and `bytes` of each record that is sound.
        last: the version after which to end; None for never.

    Raises:
        WireError: a record is damaged.
        PeerSilent: the storage has not answered for an hour.
    """
    version = 0
    while last is None or version <= last:
        wanted = version
        data = _patiently(lambda wanted=wanted: steps.read(wanted, wait=_WAIT))
        if data is None:
            continue
        if version == 0:
            decode_genesis(data)
            found = 0
        else:
            found = decode_record(data).version
        report(version=found, hash=record_hash(data).hex(), bytes=len(data))
        version += 1


def _fetch_snapshot(log: Log, version: int) -> int:
    """Reads a snapshot chunk after chunk, each verified by its hash; returns its bytes."""
    data = _patiently(lambda: log.snapshots.read(version))
    keys = decode_manifest(data or b"").chunks
    return sum(len(_patiently(lambda key=key: log.blobs.get(key))) for key in keys)


def _patiently(call: Callable[[], Answer]) -> Answer:
    """Calls until the storage answers, as a learner or a replica does."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return call()
        except LogUnavailable as error:
            if time.monotonic() > deadline:
                raise PeerSilent(f"the storage has not answered for {_PATIENCE:.0f} s: {error}") from error
            time.sleep(0.1)


_printing = threading.Lock()


def _report(**event: Any) -> None:
    line = json.dumps({"at": time.monotonic()} | event)
    with _printing:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def _learn(address: str, blocks: int, seed: int) -> None:
    log = open_log(address, create=True)
    chain = Chain(blocks, seed)
    _append(log, chain)
    for line in sys.stdin:
        command = json.loads(line)
        if "payload" in command:
            chain.extend(command["payload"])
            _append(log, chain)
        else:
            _report(snapshot=chain.version, bytes=chain.store_snapshot(log, command["snapshot"]))


def _append(log: Log, chain: Chain) -> None:
    begun = time.monotonic()
    _patiently(lambda: log.steps.append(chain.version, chain.last))
    _report(version=chain.version, hash=record_hash(chain.last).hex(), bytes=len(chain.last), begun=begun)


def _work(address: str) -> None:
    log = _patiently(lambda: open_log(address, wait=60.0))

    def obey() -> None:
        try:
            for line in sys.stdin:
                version = json.loads(line)["snapshot"]
                _report(snapshot=version, bytes=_fetch_snapshot(log, version))
        except HiLoError as error:
            _report(fault=f"{type(error).__name__}: {error}")
        os._exit(0)

    threading.Thread(target=obey, daemon=True).start()
    follow(log.steps, _report)


def _main(role: str, address: str, *numbers: str) -> None:
    try:
        if role == "learner":
            _learn(address, *map(int, numbers))
        else:
            _work(address)
    except HiLoError as error:
        _report(fault=f"{type(error).__name__}: {error}")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    _main(*sys.argv[1:])
