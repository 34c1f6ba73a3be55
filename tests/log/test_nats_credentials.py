"""Who may do what with `deploy/nats/secure.conf`: TLS, a learner, and workers that may not write the log."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

import pytest
from nats_server import NatsServer
from nats_tokens import operator_mode

from hilosync.errors import LogUnavailable
from hilosync.log import Delivery, Order, open_log

pytestmark = pytest.mark.nats


def write_certificate(folder: Path) -> None:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    begin = datetime.datetime(2020, 1, 1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=36500))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(encoding))
    (folder / "key.pem").write_bytes(
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secure")
    write_certificate(folder)
    environment = {
        "HILO_NATS_CERT": str(folder / "certificate.pem"),
        "HILO_NATS_KEY": str(folder / "key.pem"),
        "HILO_LEARNER_PASSWORD": "of-the-learner",
        "HILO_WORKER_PASSWORD": "of-the-workers",
    }
    server = NatsServer(folder, "secure.conf", environment=environment)
    server.certificate = folder / "certificate.pem"
    yield server
    server.kill()


def opened(server: NatsServer, login: str, create: bool = False, options: str = ""):
    return open_log(server.url(f"?ca={server.certificate}{options}", "shared", login, "tls"), create=create)


@pytest.fixture(scope="module")
def learner(secure):
    log = opened(secure, "learner:of-the-learner@", create=True)
    log.steps.append(0, b"genesis")
    return log


def test_a_worker_takes_part_with_few_rights(secure, learner):
    learner.steps.append(1, b"one")
    key = learner.blobs.put(b"chunk")
    learner.mailbox.offer([Order(1, 0)])
    worker = opened(secure, "worker:of-the-workers@")
    assert worker.steps.read(0) + worker.steps.read(1) == b"genesisone"
    assert worker.blobs.get(key) == b"chunk"
    assert worker.mailbox.take("w.1") == Order(1, 0)
    worker.mailbox.deliver(Delivery("w.1", Order(1, 0), b"answer"))
    worker.mailbox.post("w.1", b"well")
    assert [delivery.content for delivery in learner.mailbox.collect(1)] == [b"answer"]
    assert learner.mailbox.notices() == {"w.1": b"well"}


def test_a_worker_cannot_write_what_the_learner_writes(secure, learner):
    worker = opened(secure, "worker:of-the-workers@")
    head = learner.steps.head()
    for call, subject in (
        (lambda: worker.steps.append(head + 1, b"forged"), "hilo.shared.steps"),
        (lambda: worker.blobs.put(b"forged"), r"hilo.shared.blobs.*"),
        (lambda: worker.mailbox.offer([Order(9, 9)]), r"hilo.shared.orders.9-9-0"),
        (lambda: worker.snapshots.publish(1, b"forged"), r"hilo.shared.snapshots.*"),
    ):
        with pytest.raises(LogUnavailable, match=rf"these credentials may not publish to {subject}"):
            call()
    assert learner.steps.head() == head
    assert learner.mailbox.take("w") is None


@pytest.mark.parametrize("login", ["", "learner:wrong@", "nobody:x@", "token@"])
def test_wrong_credentials_are_refused_and_not_shown(secure, learner, login: str):
    with pytest.raises(LogUnavailable, match="the server refuses these credentials; give others") as caught:
        opened(secure, login)
    assert "wrong" not in str(caught.value)


def test_a_certificate_that_is_not_trusted_is_refused(secure, learner):
    with pytest.raises(LogUnavailable, match=r"cannot connect: .*certificate"):
        open_log(secure.url(run="shared", login="learner:of-the-learner@", scheme="tls"))


def test_a_credentials_file_opens_a_server_in_operator_mode(starts_nats, tmp_path, monkeypatch):
    configuration, credentials = operator_mode()
    server = starts_nats(changes=[("jetstream {", f"{configuration}\njetstream {{")])
    (tmp_path / "me.creds").write_text(credentials)
    (tmp_path / "other.creds").write_text(operator_mode()[1])
    url = server.url()
    log = open_log(f"{url}?creds={tmp_path}/me.creds", create=True)
    log.steps.append(0, b"genesis")
    monkeypatch.setenv("HILO_NATS_CREDS", f"{tmp_path}/me.creds")
    assert open_log(url).steps.read(0) == b"genesis"
    with pytest.raises(LogUnavailable, match="the server refuses these credentials"):
        open_log(f"{url}?creds={tmp_path}/other.creds")
