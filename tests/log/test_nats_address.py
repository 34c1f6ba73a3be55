"""Addresses of NATS logs: their forms, what they refuse, and that they show no secret. No server is needed."""

from __future__ import annotations

import sys

import pytest

from hilosync.errors import ConfigurationError, LogUnavailable
from hilosync.log import open_log
from hilosync.log.nats.address import parse_nats_address


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch):
    for name in ("CREDS", "TOKEN", "USER", "PASSWORD"):
        monkeypatch.delenv(f"HILO_NATS_{name}", raising=False)


@pytest.mark.parametrize(
    ("rest", "url"),
    [
        ("//host/run", "nats://host:4222/run"),
        ("//host:1234/run_1-a/", "nats://host:1234/run_1-a"),
        ("//a,b:1,c/run", "nats://a:4222,b:1,c:4222/run"),
        ("//[::1]:4223/run", "nats://[::1]:4223/run"),
        ("//me:secret@host/run?timeout=5&replicas=3", "nats://host:4222/run"),
        ("//host/run?hub=hub", "nats://host:4222/run?hub=hub"),
    ],
)
def test_an_address_names_servers_and_a_run(rest: str, url: str):
    assert parse_nats_address("nats", rest).url == url


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ("host/run", "expected nats://host:port/run"),
        ("//host", "expected nats://host:port/run"),
        ("///run", "expected nats://host:port/run"),
        ("//host/", "run '': expected 1 to 64 letters"),
        ("//host/a.b", "run 'a.b': expected 1 to 64 letters"),
        ("//host/a/b", "expected nats://host:port/run"),
        ("//host/" + "x" * 65, "expected 1 to 64 letters"),
        ("//host:0/run", "expected host or host:port"),
        ("//host:99999/run", "expected host or host:port"),
        ("//ho st/run", "expected host or host:port"),
        ("//host/run?password=x", "unknown option 'password': expected one of ca, creds, hub"),
        ("//host/run?timeout=soon", "timeout='soon': expected a number from 0.1 to 3600"),
        ("//host/run?replicas=9", "replicas='9': expected a number from 1 to 5"),
        ("//host/run?hub=a.b", "hub: expected the name of a JetStream domain"),
    ],
)
def test_another_form_is_refused_with_the_reason(rest: str, reason: str):
    with pytest.raises(ConfigurationError, match=reason.replace("?", r"\?")):
        open_log(f"nats:{rest}", create=True)


def test_credentials_come_from_the_address_or_the_environment(monkeypatch):
    given = parse_nats_address("nats", "//me:p%40ss@host/run")
    assert (given.user, given.password, given.token) == ("me", "p@ss", None)
    assert parse_nats_address("nats", "//s3cret@host/run").token == "s3cret"
    assert parse_nats_address("nats", "//host/run?creds=me.creds").creds == "me.creds"
    monkeypatch.setenv("HILO_NATS_USER", "worker")
    monkeypatch.setenv("HILO_NATS_PASSWORD", "hidden")
    assert parse_nats_address("nats", "//host/run").password == "hidden"
    monkeypatch.setenv("HILO_NATS_TOKEN", "token")
    assert parse_nats_address("nats", "//host/run").token == "token"
    monkeypatch.setenv("HILO_NATS_CREDS", "all.creds")
    assert parse_nats_address("nats", "//host/run").creds == "all.creds"
    assert parse_nats_address("nats", "//me:own@host/run").creds is None


def test_neither_the_printed_address_nor_an_error_holds_a_secret():
    address = parse_nats_address("nats", "//me:s3cret@host/run")
    assert "s3cret" not in f"{address!r} {address} {address.url}"
    for rest in ("//me:s3cret@host/a.b", "//me:s3cret@ho st/run", "//me:s3cret@host", "//s3cret@host/run?no=1"):
        with pytest.raises(ConfigurationError) as caught:
            open_log(f"nats:{rest}")
        assert "s3cret" not in str(caught.value)
    with pytest.raises(LogUnavailable) as unavailable:
        open_log("nats://me:s3cret@127.0.0.1:1/run")
    assert "s3cret" not in str(unavailable.value)


def test_files_that_are_not_there_are_named():
    with pytest.raises(ConfigurationError, match=r"creds: expected a credentials file, there is no nobody\.creds"):
        open_log("nats://host/run?creds=nobody.creds")
    with pytest.raises(ConfigurationError, match="ca: expected a file of certificates"):
        open_log("tls://host/run?ca=nothing.pem")


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "nats.aio.client", None)
    with pytest.raises(ConfigurationError, match=r"needs nats-py: pip install 'hilosync\[nats\]'"):
        open_log("nats://127.0.0.1/run")
