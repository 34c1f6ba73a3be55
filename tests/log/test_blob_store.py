"""The conformance suite of `BlobStore`."""

from __future__ import annotations

import pytest
from blake3 import blake3

from hilosync.errors import LogNotFound


@pytest.mark.parametrize("content", [b"", b"snapshot", bytes(range(256)) * 5000])
def test_a_blob_is_found_under_its_digest_by_everyone(opens, content: bytes):
    key = opens().blobs.put(content)
    assert key == blake3(content).hexdigest()
    assert opens().blobs.get(key) == content


def test_storing_a_blob_again_changes_nothing(opens):
    assert opens().blobs.put(b"chunk") == opens().blobs.put(b"chunk")
    assert opens().blobs.get(blake3(b"chunk").hexdigest()) == b"chunk"


@pytest.mark.parametrize("key", ["0" * 64, "", "x", "A" * 64, "../steps/" + "0" * 20, "0" * 64 + "\n"])
def test_what_was_never_stored_is_not_found(log, key: str):
    log.steps.append(0, b"genesis")
    with pytest.raises(LogNotFound, match="no blob"):
        log.blobs.get(key)
