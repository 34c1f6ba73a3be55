"""Feeds mutated frames to every decoder: each is read, or refused with HiLo's own error, fast and in little memory.

    python scripts/fuzz_frames.py --count 1000000 --seed 0

Mutations of the golden frames (tests/wire/golden): flipped bits, cut, repeated and exchanged pieces, extreme
integers, half of them with their hashes made right again, so that they pass the first checks. A finding is
written to `--corpus` and ends the run with exit code 1; what lies there already is tried first.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import resource
import sys
import time
from collections import Counter
from pathlib import Path

from blake3 import blake3

from hilosync.errors import BadTicket, ConfigurationError, MalformedRecord
from hilosync.wire import decode_genesis, decode_manifest, decode_record, decode_ticket

GOLDEN = Path(__file__).parents[1] / "tests" / "wire" / "golden"
SLOWEST = 1.0
"""Seconds that one frame may take."""
LARGEST = 256 << 20
"""Bytes that the process may allocate beside what it began with; every golden frame is below 4 KiB."""
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 63, (1 << 64) - 1)


def decode_ticket_bytes(data: bytes) -> object:
    """A ticket is text."""
    return decode_ticket(data.decode("utf-8", "replace"))


def corpus_of(name: str) -> bytes:
    """A golden frame."""
    path = GOLDEN / name
    return path.read_bytes().strip() if path.suffix == ".txt" else bytes.fromhex(path.read_text())


TARGETS = {
    "genesis.hex": (decode_genesis, (48, 16)),
    "record.hex": (decode_record, (184, 136)),
    "record_signed.hex": (decode_record, (184, 136)),
    "manifest.hex": (decode_manifest, None),
    "ticket.txt": (decode_ticket_bytes, None),
    "ticket_signed.txt": (decode_ticket_bytes, None),
}
"""Decoder of each golden frame; where its header ends and its body's hash begins, if that can be made right again."""


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One to eight random edits."""
    result = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(result) + 1)
        length = rng.choice((1, 2, 4, 8, 32, 200))
        kind = rng.randrange(6)
        if kind == 0 and result:
            result[at % len(result)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del result[at : at + length]
        elif kind == 2:
            result[at:at] = rng.randbytes(length)
        elif kind == 3:
            result[at:at] = result[max(0, at - length) : at]
        elif kind == 4:
            size = rng.choice((1, 2, 4, 8))
            result[at : at + size] = (rng.choice(EXTREMES) % (1 << 8 * size)).to_bytes(size, "little")
        else:
            other = rng.randrange(len(result) + 1)
            result[at : at + length] = result[other : other + length]
    return bytes(result)


def rehashed(data: bytes, header_bytes: int, hash_at: int) -> bytes:
    """The frame with the hashes that an author of false frames would give it."""
    if len(data) <= header_bytes + 8:
        return data
    start = header_bytes + (64 if data[4] and data[6] & 1 else 0) + 8
    header = data[:hash_at] + blake3(data[start:]).digest() + data[hash_at + 32 : header_bytes]
    signature = data[header_bytes : start - 8]
    return header + signature + blake3(header + signature).digest(8) + data[start:]


def trouble_with(decode, data: bytes) -> str | None:
    """What is wrong with how a decoder takes these bytes, or None."""
    started = time.perf_counter()
    try:
        decode(data)
        outcome = None
    except (MalformedRecord, BadTicket, ConfigurationError):
        outcome = None
    except BaseException as error:  # whatever else it is, it is the finding
        outcome = f"{type(error).__name__}: {error}"
    if outcome is None and time.perf_counter() - started > SLOWEST:
        outcome = f"took {time.perf_counter() - started:.1f} s"
    return outcome


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", type=Path, default=Path("runs/fuzz"))
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    seeds = {name: corpus_of(name) for name in TARGETS}
    kept = [(path.name.partition("-")[0], path.read_bytes()) for path in sorted(arguments.corpus.glob("*-*"))]
    tried: Counter[str] = Counter()
    findings, started = 0, time.monotonic()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + LARGEST, resource.RLIM_INFINITY))
    for number in range(len(kept) + arguments.count):
        if number < len(kept):
            name, data = kept[number]
        else:
            name = rng.choice(list(TARGETS))
            data = mutated(seeds[name], rng)
            frame = TARGETS[name][1]
            if frame is not None and rng.random() < 0.5:
                data = rehashed(data, *frame)
        trouble = trouble_with(TARGETS[name][0], data)
        tried[name] += 1
        if trouble is not None:
            findings += 1
            arguments.corpus.mkdir(parents=True, exist_ok=True)
            path = arguments.corpus / f"{name}-{hashlib.sha256(data).hexdigest()[:16]}"
            path.write_bytes(data)
            print(f"{path}: {trouble}")
        if number % 100_000 == 0:
            print(f"{number} frames, {findings} findings, {time.monotonic() - started:.0f} s", file=sys.stderr)
    print(f"{sum(tried.values())} frames, {findings} findings, {time.monotonic() - started:.0f} s: {dict(tried)}")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
