from __future__ import annotations

from dataclasses import replace

import pytest
from small_run import genesis_of, gradient

from hilosync.errors import BadSignature, ConfigurationError
from hilosync.protocol import LearnerMachine, ReplicaMachine, Run
from hilosync.protocol.evidence import gather_evidence
from hilosync.wire import decode_record, encode_record, public_key_of, signer

PRIVATE_KEY = bytes(range(32))
OTHER_KEY = bytes(range(1, 33))


def signed_run() -> Run:
    return Run.of(genesis_of(key=public_key_of(PRIVATE_KEY).hex()))


def test_a_signed_run_is_followed_and_its_records_stay_within_the_budget(rng):
    run = signed_run()
    learner, replica = LearnerMachine(run, sign=signer(PRIVATE_KEY)), ReplicaMachine(run)
    for version in (1, 2, 3):
        data = learner.propose(gradient(rng)).data
        learner.accept(version)
        assert len(data) <= run.record_limit
        replica.receive(data)
        assert (replica.version, replica.digest) == (version, learner.digest)


def test_the_key_changes_no_digest():
    assert ReplicaMachine(signed_run()).digest == ReplicaMachine(Run.of(genesis_of())).digest


def test_a_record_without_the_runs_signature_is_refused_and_changes_nothing(rng):
    run = signed_run()
    data = LearnerMachine(run, sign=signer(PRIVATE_KEY)).propose(gradient(rng)).data
    unsigned = encode_record(replace(decode_record(data), signature=None))
    stranger = encode_record(decode_record(data), signer(OTHER_KEY))
    replica = ReplicaMachine(run)
    for forged, message in ((unsigned, "record 1 is unsigned"), (stranger, "record 1 is not signed by")):
        with pytest.raises(BadSignature, match=message):
            replica.receive(forged)
        with pytest.raises(BadSignature, match=message):
            gather_evidence(run, 1, forged, None, replica.digest)
    assert replica.version == 0
    replica.receive(data)
    assert replica.version == 1


def test_a_learner_signs_exactly_where_the_genesis_names_a_key():
    with pytest.raises(ConfigurationError, match="give the learner the run's private key"):
        LearnerMachine(signed_run())
    with pytest.raises(ConfigurationError, match="records are not signed"):
        LearnerMachine(Run.of(genesis_of()), sign=signer(PRIVATE_KEY))
