"""What a `nats:` address says: servers, run, credentials, and how long to be patient."""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from hilosync.errors import ConfigurationError

__all__ = ["NatsAddress", "parse_nats_address"]

_FORM = "nats://host:port/run"
_OPTIONS = ("ca", "creds", "hub", "replicas", "timeout")
_TOKEN = r"[A-Za-z0-9_-]{1,64}"


@dataclass(frozen=True)
class NatsAddress:
    """Where a run is, and as whom to come. Printing one shows no secret.

    Attributes:
        servers: ``host:port`` of one or more servers of one cluster.
        run: the run's name, a part of every stream's and subject's name.
        tls: whether the connection must be encrypted; a server may ask for it in any case.
        ca: file with the certificates to trust; None for those of the system.
        user, password, token: what the server asks for, or None.
        creds: file with a user's JWT and seed, or None.
        timeout: seconds that one call may take, reconnecting and trying again included.
        replicas: copies of each stream in a cluster, when this address makes them.
        hub: JetStream domain of the learner's streams, if the server is a leaf node of another domain.
    """

    servers: tuple[str, ...]
    run: str
    tls: bool = False
    ca: str | None = None
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    creds: str | None = field(default=None, repr=False)
    timeout: float = 60.0
    replicas: int = 1
    hub: str | None = None

    @property
    def url(self) -> str:
        """The address without credentials, for messages."""
        hub = f"?hub={self.hub}" if self.hub else ""
        return f"{'tls' if self.tls else 'nats'}://{','.join(self.servers)}/{self.run}{hub}"

    def connect_options(self) -> dict[str, Any]:
        """What the client is told about credentials and encryption.

        Raises:
            ConfigurationError: a file that it names is not there or holds no certificate.
        """
        options: dict[str, Any] = {"user": self.user, "password": self.password, "token": self.token}
        if self.creds is not None:
            if not Path(self.creds).is_file():
                raise ConfigurationError(f"{self.url}: creds: expected a credentials file, there is no {self.creds}")
            options["user_credentials"] = self.creds
        if self.tls or self.ca is not None:
            try:
                options["tls"] = ssl.create_default_context(cafile=self.ca)
            except (OSError, ssl.SSLError) as error:
                raise ConfigurationError(f"{self.url}: ca: expected a file of certificates: {error}") from error
        return {name: value for name, value in options.items() if value is not None}


def parse_nats_address(scheme: str, rest: str) -> NatsAddress:
    """Reads what follows ``nats:`` or ``tls:``: ``//[user:password@]host[:port][,host…]/run[?option=value&…]``.

    A name before ``@`` without a password is a token. What the address leaves out is taken from
    `HILO_NATS_CREDS`, `HILO_NATS_TOKEN`, or `HILO_NATS_USER` and `HILO_NATS_PASSWORD`, where a process list
    does not show it.

    Raises:
        ConfigurationError: it has another form. The message does not repeat the address, which may hold a secret.
    """
    match = re.fullmatch(r"//(?:([^@/?]*)@)?([^@/?]+)/([^/?]*)/?(?:\?(.*))?", rest)
    if match is None:
        raise ConfigurationError(f"log address: expected {_FORM}, or tls: in the place of nats:")
    login, hosts, run, query = match.groups()
    if re.fullmatch(_TOKEN, run) is None:
        raise ConfigurationError(
            f"log address: run {run[:80]!r}: expected 1 to 64 letters, digits, '_' or '-', as in {_FORM}"
        )
    options = _options(query or "")
    known: dict[str, Any] = {name: options.get(name) for name in ("ca", "creds", "hub")}
    if known["hub"] is not None and re.fullmatch(_TOKEN, known["hub"]) is None:
        raise ConfigurationError("log address: hub: expected the name of a JetStream domain")
    return NatsAddress(
        servers=tuple(_server(host) for host in hosts.split(",")),
        run=run,
        tls=scheme == "tls",
        timeout=_number(options, "timeout", 60.0, 0.1, 3600.0),
        replicas=int(_number(options, "replicas", 1.0, 1.0, 5.0)),
        **(_credentials(login, known.pop("creds")) | known),
    )


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise ConfigurationError(f"log address: unknown option {unknown[0]!r}: expected one of {', '.join(_OPTIONS)}")
    return options


def _credentials(login: str | None, creds: str | None) -> dict[str, str | None]:
    if creds is not None:
        return {"creds": creds}
    if login:
        user, colon, password = login.partition(":")
        return {"user": unquote(user), "password": unquote(password)} if colon else {"token": unquote(user)}
    found = {name: os.environ.get(f"HILO_NATS_{name.upper()}") for name in ("creds", "token", "user", "password")}
    if found["creds"]:
        return {"creds": found["creds"]}
    return {"token": found["token"]} if found["token"] else {"user": found["user"], "password": found["password"]}


def _server(host: str) -> str:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?", host)
    if match is None or not 0 < int(match[2] or 4222) < 65536:
        raise ConfigurationError(f"log address: server {host[:80]!r}: expected host or host:port, as in {_FORM}")
    return f"{match[1]}:{match[2] or 4222}"


def _number(options: dict[str, str], name: str, default: float, least: float, most: float) -> float:
    try:
        number = float(options.get(name, default))
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise ConfigurationError(
            f"log address: {name}={options[name][:20]!r}: expected a number from {least:g} to {most:g}"
        )
    return number
