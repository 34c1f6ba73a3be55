"""Sites that are connected as machines in the world are: with a rate, a delay, jitter and loss, and cuts.

Each site is a network namespace of its own, with one link to a hub, through which it reaches the others:

    site "a"  wan ══ rate ══▶ delay, jitter ══▶ loss, cut │ hub │ loss, cut ══ rate ══▶ delay, jitter ══▶ wan  site "b"

The rate is made by the kernel's tbf, loss and cuts by its packet filter (nft) in the hub, delay and jitter by a
program that carries the packets between TUN devices (forwarder.c). Nothing of the machine's own network is touched:
a site reaches the other sites and itself, and nothing else. Everything ends with the process that made it.

    with Network() as network:
        server = network.add("server")
        worker = network.add("worker", Link(mbit=62.5, delay_ms=40, jitter_ms=10, loss=0.01))
        service = server.popen(["nats-server", "-c", "server.conf"])
        worker.popen(["hilo", "work", f"nats://{server.address}:4222/mine"])
        worker.cut()
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hilosync.bench.forwarder import Forwarder, find_compiler
from hilosync.bench.processes import end_processes
from hilosync.errors import ConfigurationError, HiLoError

__all__ = ["Link", "Network", "Site", "network_missing"]

_MTU = 1500
_SECONDS_TO_SET_UP = 30.0
_QUEUE_SECONDS = 0.1
"""How much a link's queue holds, in seconds at its rate: about one delay-bandwidth product of a wide-area path."""

_BURST_SECONDS = 0.002
_SHORTEST_BURST, _SHORTEST_QUEUE = 3 * _MTU, 16 * _MTU
_TRANSMIT_QUEUE = 10_000
"""Packets that wait for the forwarder where nothing else limits the rate."""


@dataclass(frozen=True)
class Link:
    """What lies between a site and the hub, the same in both directions.

    Attributes:
        mbit: rate in Mbit/s (10⁶ bits) of IP packets; None for no limit. The queue before it holds 100 ms.
        delay_ms: milliseconds that a packet takes one way, besides its transmission.
        jitter_ms: how far the delay varies around that, uniformly. Packets keep their order: the delay wanders
            along straight lines between random points 50 ms (or 4 jitters) apart.
        loss: share of the packets that is lost, each way.
        reorder: whether each packet's delay varies by itself, so that packets overtake one another.
    """

    mbit: float | None = None
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    reorder: bool = False

    def __post_init__(self) -> None:
        rate = 1.0 if self.mbit is None else self.mbit
        if not (
            0.01 <= rate <= 100_000
            and 0 <= self.delay_ms <= 60_000
            and 0 <= self.jitter_ms <= 60_000
            and 0 <= self.loss < 1
        ):
            raise ConfigurationError(
                f"{self}: expected 0.01 to 100,000 Mbit/s, 0 to 60,000 ms of delay and of jitter, and a loss of 0 to "
                "less than 1"
            )

    @property
    def queueing(self) -> list[str]:
        """The queueing discipline, as arguments of tc."""
        if self.mbit is None:
            return ["pfifo", "limit", str(_TRANSMIT_QUEUE)]
        rate = round(self.mbit * 1e6)
        burst = max(round(rate / 8 * _BURST_SECONDS), _SHORTEST_BURST)
        limit = max(round(rate / 8 * _QUEUE_SECONDS), _SHORTEST_QUEUE)
        return ["tbf", "rate", f"{rate}bit", "burst", f"{burst}b", "limit", f"{limit}b"]


class Network:
    """Sites around a hub, from `with` to its end: then their processes are ended, and all of it is gone.

    It is gone as well when this process dies in any other way. Two networks have nothing in common.

    Attributes:
        congestion: how TCP senders of the sites answer loss.
        sites: by name.
        forwarder: the process that makes and carries it all.
    """

    forwarder: Forwarder

    def __init__(self, congestion: str = "cubic") -> None:
        """Args: congestion: what TCP senders of the sites use, `cubic` as most machines do, or `bbr`, say."""
        self.congestion = congestion
        self.sites: dict[str, Site] = {}
        self._processes: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Network:
        """Makes the hub.

        Raises:
            ConfigurationError: this machine or user cannot; `network_missing` says why.
        """
        self.forwarder = Forwarder()
        try:
            self._set_up(self.forwarder.hub, ["ip", "link", "set", "lo", "up"])
            self._set_up(self.forwarder.hub, ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])
        except BaseException:
            self.forwarder.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            end_processes(self._processes)
        finally:
            self.forwarder.close()

    def add(self, name: str, link: Link | None = None) -> Site:
        """A new site; without a link to speak of, it reaches the hub at once."""
        if name in self.sites:
            raise ConfigurationError(f"there is a site {name!r} already: give this one another name")
        number = len(self.sites)
        entering = self.forwarder.entering(self.forwarder.ask("site"))
        site = Site(self, name, number, entering, link or Link())
        ends = (
            (entering, "wan", site.address, site.gateway),
            (self.forwarder.hub, site.device, site.gateway, site.address),
        )
        for where, device, own, other in ends:
            lines = [
                f"link set {device} mtu {_MTU} txqueuelen {_TRANSMIT_QUEUE} up",
                f"addr add {own}/32 peer {other}/32 dev {device}",
            ]
            if device == "wan":
                # Only a route can choose the congestion control here without changing the machine.
                lines += ["link set lo up", f"route add default dev wan congctl {self.congestion}"]
            self._set_up(where, ["ip", "-batch", "-"], "\n".join(lines))
        self.sites[name] = site
        self._shape(site)
        return site

    def _shape(self, site: Site) -> None:
        link = site.link
        for where, device in ((site.entering, "wan"), (self.forwarder.hub, site.device)):
            self._set_up(where, ["tc", "qdisc", "replace", "dev", device, "root", *link.queueing])
        delay, jitter = round(1000 * link.delay_ms), round(1000 * link.jitter_ms)
        self.forwarder.ask(f"delay {site.number} {delay} {jitter} {int(link.reorder)}")
        self._filter()

    def _filter(self) -> None:
        """Replaces all rules at once. They forget nothing and know no connections: what is cut is silent."""
        lines = ["add table ip links", "delete table ip links", "add table ip links"]
        lines.append("add chain ip links forward { type filter hook forward priority 0; policy accept; }")
        for site in self.sites.values():
            lost = f"numgen random mod 1000000 < {round(1e6 * site.link.loss)}"
            for direction in ("iifname", "oifname"):
                if site.is_cut:
                    lines.append(f"add rule ip links forward {direction} {site.device} drop")
                elif site.link.loss:
                    lines.append(f"add rule ip links forward {direction} {site.device} {lost} drop")
        self._set_up(self.forwarder.hub, ["nft", "-f", "-"], "\n".join(lines) + "\n")

    def _set_up(self, where: list[str], command: list[str], lines: str = "") -> None:
        ended = subprocess.run(
            [*where, *command], input=lines, capture_output=True, text=True, timeout=_SECONDS_TO_SET_UP, check=False
        )
        if ended.returncode != 0:
            said = (ended.stderr or ended.stdout).strip().splitlines() or ["no word from it"]
            raise ConfigurationError(f"the kernel refuses a part of a link: {' '.join(command)}: {said[0]}")


class Site:
    """A place with an address of its own. Made by `Network.add`.

    Attributes:
        name: its name.
        number: its number in the network.
        address: under which the other sites reach it.
        gateway: the hub's address on its link.
        device: the hub's end of its link.
        entering: what to put before a command to run it here.
        link: what lies between it and the hub.
        network: whose site it is.
        is_cut: whether nothing passes.
    """

    def __init__(self, network: Network, name: str, number: int, entering: list[str], link: Link):
        self.name = name
        self.number = number
        self.address = f"10.77.{number}.2"
        self.gateway = f"10.77.{number}.1"
        self.device = f"site{number}"
        self.entering = entering
        self.link = link
        self.is_cut = False
        self.network = network

    def popen(self, arguments: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.Popen[Any]:
        """Starts a process here; it is ended with the network, if it has not ended before.

        Args:
            arguments: the command.
            options: as for `subprocess.Popen`.
        """
        process = subprocess.Popen([*self.entering, *arguments], **options)
        self.network._processes.append(process)
        return process

    def run(self, arguments: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.CompletedProcess[Any]:
        """Runs a command here and waits for it; options as for `subprocess.run`."""
        return subprocess.run([*self.entering, *arguments], **options)

    def cut(self) -> None:
        """From now on nothing passes in either direction. Nobody is told: whoever sends hears nothing."""
        self.is_cut = True
        self.network._filter()

    def mend(self) -> None:
        """Undoes `cut`."""
        self.is_cut = False
        self.network._filter()

    def reshape(self, link: Link) -> None:
        """Replaces the link. What is on its way arrives as it would have; what is queued may be lost."""
        self.link = link
        self.network._shape(self)


@cache
def network_missing() -> str | None:
    """Why this machine or user cannot make a `Network` with every kind of link; None if it can. Tries it once."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces with links need root"
    for program, package in (("ip", "iproute2"), ("tc", "iproute2"), ("nft", "nftables")):
        if shutil.which(program) is None:
            return f"the `{program}` command is not installed (package {package})"
    if find_compiler() is None:
        return "there is no C compiler for the forwarder"
    if not Path("/dev/net/tun").exists():
        return "this kernel has no TUN devices (/dev/net/tun)"
    try:
        with Network() as network:
            network.add("probe", Link(mbit=10, delay_ms=1, jitter_ms=1, loss=0.1)).cut()
    except (HiLoError, OSError, subprocess.SubprocessError) as error:
        return f"this machine cannot make links: {error}"
    return None
