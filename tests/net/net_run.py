"""A run of HiLo whose learner, workers and log live in sites of a network, as real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hilosync.bench.links import Link, Network, Site
from hilosync.bench.nats_server import find_nats_server, free_port, server_configuration, started_server
from hilosync.bench.s3_server import s3_environment
from hilosync.log import Log, open_log
from hilosync.wire import decode_record

LIMIT = 500.0
"""Seconds after which whatever is waited for has failed."""

SMALL = ["--batches", "2", "--prompts", "2", "--samples", "2", "--people", "2", "--rank", "8", "--problems", "4"]
SMALL += ["--evaluate-every", "100"]

WIDE_AREA = Link(mbit=62.5, delay_ms=40, jitter_ms=10, loss=0.01)

_NATS_PORT = 4222


class Party:
    """A process of the run and what it says."""

    def __init__(self, number: int, output: Path, code: Path):
        self._number = number
        self._output = output
        self._code = code

    @property
    def said(self) -> str:
        return self._output.read_text("utf-8", errors="replace")

    @property
    def has_ended(self) -> bool:
        return self._code.exists()

    def kill(self) -> None:
        """Kills it and waits until it is gone."""
        os.kill(self._number, signal.SIGKILL)
        self._wait(lambda: self.has_ended, "end")

    def versions(self) -> dict[int, str]:
        """The versions that a worker has held, in its own words, with the beginnings of their digests.

        Each must have come once, and after as many checks as there were records: nothing was left out or
        applied twice.
        """
        found = re.findall(r": version (\d+) digest (\w+) checks (\d+)", self.said)
        versions = [int(version) for version, _, _ in found]
        assert versions == sorted(set(versions)), self.said
        assert [int(checks) for _, _, checks in found] == versions, self.said
        return {int(version): digest for version, digest, _ in found}

    def wait_for(self, text: str) -> None:
        """Waits until it has said something, which it must do before it ends."""
        self._wait(lambda: text in self.said or self.has_ended, f"say {text!r}")
        assert text in self.said, f"it ended before it said {text!r}:\n{self.said}"

    def end(self, code: int = 0) -> str:
        """Waits until it has ended with this exit code, and returns all that it said."""
        self._wait(lambda: self.has_ended, "end")
        assert int(self._code.read_text()) == code, self.said
        assert "Traceback" not in self.said, self.said
        return self.said

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT
        while not done():
            assert time.monotonic() < deadline, f"it did not {what} within {LIMIT} s:\n{self.said}"
            time.sleep(0.05)

    def summary(self) -> dict:
        return json.loads(self.end().splitlines()[-1])


class Hilo:
    """Starts `hilo`, which takes a long time to import, from one process that has imported it."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._count = 0
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).with_name("zygote.py"))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def begin(self, site: Site | None, *arguments: object, **variables: str) -> Party:
        """Starts it in a site, or on this machine."""
        self._count += 1
        output, code = (self._folder / f"{self._count}.{suffix}" for suffix in ("log", "code"))
        output.touch()
        asked = {
            "space": None if site is None else site.entering[-1],
            "arguments": list(map(str, arguments)),
            "variables": variables,
            "output": str(output),
            "code": str(code),
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(asked)}\n")
        self._process.stdin.flush()
        return Party(int(self._process.stdout.readline()), output, code)

    def learn(self, site: Site | None, url: str, versions: int, *options: object, **variables: str) -> Party:
        return self.begin(site, "learn", url, "--versions", versions, "--json", *SMALL, *options, **variables)

    def work(self, site: Site | None, url: str, *options: object, **variables: str) -> Party:
        name = "worker" if site is None else site.name
        return self.begin(site, "work", url, "--name", name, *options, **variables)

    def close(self) -> None:
        """Starts nothing more."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(LIMIT)
        self._process.stdout.close()


class NatsPlace:
    """A NATS server in a site, which can be killed and started again."""

    def __init__(self, site: Site, folder: Path):
        self.url = f"nats://{site.address}:{_NATS_PORT}/mine"
        self.site = site
        self._folder = folder
        self.start()

    def start(self) -> None:
        self.process = self.site.popen(self._command(self.site.address, _NATS_PORT), stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + LIMIT
        probe = f"import socket; socket.create_connection(('{self.site.address}', {_NATS_PORT}), 1)"
        while self.site.run([sys.executable, "-c", probe], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            assert self.process.poll() is None and time.monotonic() < deadline, "the server does not start"
            time.sleep(0.05)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @contextmanager
    def opened(self) -> Iterator[Log]:
        """The log, from what the killed server has left on its disk."""
        self.kill()
        port = free_port()
        command = self._command("127.0.0.1", port)
        with started_server(command, port, self._folder / "server.log"):
            yield open_log(f"nats://127.0.0.1:{port}/mine")

    def _command(self, address: str, port: int) -> list[str]:
        program = find_nats_server()
        assert program is not None
        configuration = self._folder / f"{address}.conf"
        configuration.write_text(server_configuration(address, port, self._folder / "stored"))
        return [program, "-c", str(configuration)]


@contextmanager
def nats_network(folder: Path, *links: Link) -> Iterator[tuple[NatsPlace, Site, list[Site]]]:
    """A server, a learner's site, and workers' sites: all but the server behind a link of their own.

    Args:
        folder: for the server's files.
        links: the learner's, then one for each worker.
    """
    with Network() as network:
        place = NatsPlace(network.add("server"), folder)
        learner = network.add("learner", links[0])
        yield place, learner, [network.add(f"worker-{number}", link) for number, link in enumerate(links[1:], 1)]


class S3Place:
    """An S3 service in a site."""

    url = "s3://hilo/mine"

    def __init__(self, site: Site):
        command = [sys.executable, "-m", "hilosync.bench.s3_server", site.address, "hilo"]
        self._process = site.popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        with self._process.stdout as said:
            self.environment = s3_environment(f"http://{site.address}:{int(said.readline())}")


def digests_of(log: Log) -> list[str]:
    """The digest in every record."""
    head = log.steps.head()
    records = [log.steps.read(version) for version in range(1, head + 1)]
    assert log.steps.highest() <= head
    return [decode_record(record).digest.hex() for record in records if record is not None]
