from __future__ import annotations

import pytest
from blake3 import blake3

import hilosync as hilo
from hilosync.errors import BadSignature, ConfigurationError
from hilosync.log import open_log
from hilosync.wire import decode_record, encode_record, public_key_of, signer

KEY = blake3(b"learner").digest()
SETTINGS = {"optimizer": hilo.AdamW(lr=1e-2), "compressor": hilo.Spar(budget=700)}


def test_a_signed_run_is_served_and_resumed_with_its_key_alone(model, another_model, memory, backward, tmp_path):
    learner = hilo.Learner(model, **SETTINGS, log=memory, checkpoint=tmp_path / "learner", signing_key=KEY)
    backward(model)
    learner.step()
    assert learner.run.genesis.key == public_key_of(KEY).hex()
    replica = hilo.Replica.join(memory)
    assert (replica.advance(), replica.digest) == (1, learner.digest)

    with pytest.raises(ConfigurationError, match="give the learner the run's private key"):
        hilo.Learner.resume(another_model, **SETTINGS, log=memory, checkpoint=tmp_path / "learner")
    with pytest.raises(ConfigurationError, match="give it the run's own private key"):
        hilo.Learner.resume(
            another_model, **SETTINGS, log=memory, checkpoint=tmp_path / "learner", signing_key=bytes(32)
        )
    resumed = hilo.Learner.resume(
        another_model, **SETTINGS, log=memory, checkpoint=tmp_path / "learner", signing_key=KEY
    )
    backward(another_model)
    resumed.step()
    assert (replica.advance(), replica.digest) == (2, resumed.digest)


def test_a_record_that_a_stranger_appended_is_never_applied(model, memory, backward):
    learner = hilo.Learner(model, **SETTINGS, log=memory, signing_key=KEY)
    backward(model)
    learner.step()
    replica = hilo.Replica.join(memory)
    replica.advance()
    backward(model)
    learner.step()
    log = open_log(memory)
    own = decode_record(log.steps.read(2))
    forged = encode_record(own, signer(bytes(32)))

    class Forged:
        def read(self, version, wait=0.0):
            return forged if version == 2 else log.steps.read(version, wait)

        def __getattr__(self, name):
            return getattr(log.steps, name)

    follower = hilo.Replica.join(memory)
    object.__setattr__(follower.log, "steps", Forged())
    with pytest.raises(BadSignature, match="record 2"):
        follower.advance()
    assert follower.version == 1
