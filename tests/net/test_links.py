"""The links between sites are what was asked for. Bounds are wide: this is about the links, not about time."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hilosync.bench.links import Link, Network
from hilosync.errors import ConfigurationError

TALK = str(Path(__file__).with_name("site_talk.py"))


@pytest.fixture(scope="module")
def network():
    with Network() as network:
        server = network.add("server")
        process = server.popen([sys.executable, TALK, "serve"], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield network
        process.stdout.close()


def talk(site, *arguments) -> dict:
    process = begin(site, *arguments)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return json.loads(said)


def begin(site, what, *arguments) -> subprocess.Popen[bytes]:
    server = site.network.sites["server"]
    command = [sys.executable, TALK, what, server.address, *map(str, arguments)]
    return site.popen(command, stdout=subprocess.PIPE)


@pytest.mark.net
def test_a_rate_is_kept(network):
    site = network.add("rate", Link(mbit=20))
    found = talk(site, "fetch", 2_500_000)
    assert found["bytes"] == 2_500_000 and found["congestion"] == "cubic"
    assert 0.4 * 20e6 < 8 * found["bytes"] / found["seconds"] < 1.05 * 20e6


@pytest.mark.net
def test_a_delay_is_that_of_one_way(network):
    site = network.add("delay", Link(delay_ms=40))
    assert 0.080 <= talk(site, "echo", 20, 0.005)["rtt"] < 0.140


@pytest.mark.net
def test_a_share_of_the_packets_is_lost_each_way(network):
    site = network.add("loss", Link(loss=0.1))
    count, share = 2000, 0.9**2
    came = len(talk(site, "echo", count, 0.0002)["numbers"])
    assert abs(came - count * share) < 6 * math.sqrt(count * share * (1 - share))


@pytest.mark.net
def test_jitter_keeps_the_order_unless_told_otherwise(network):
    wandering = network.add("wandering", Link(delay_ms=20, jitter_ms=20))
    numbers = talk(wandering, "echo", 400, 0.001)["numbers"]
    assert numbers == list(range(400))
    shuffled = network.add("shuffled", Link(delay_ms=20, jitter_ms=20, reorder=True))
    numbers = talk(shuffled, "echo", 400, 0.001)["numbers"]
    assert sorted(numbers) == list(range(400)) != numbers


@pytest.mark.net
def test_a_cut_link_is_silent_and_carries_on_once_it_is_mended(network):
    site = network.add("cut", Link(mbit=10, delay_ms=5))
    transfer = begin(site, "fetch", 2_000_000)
    time.sleep(0.8)
    site.cut()
    time.sleep(0.3)  # for what was beyond the hub
    assert talk(site, "echo", 20, 0.01)["numbers"] == []
    assert transfer.poll() is None, "a cut must not look like an end"
    other = network.add("beside it")
    assert len(talk(other, "echo", 5, 0.01)["numbers"]) == 5
    site.mend()
    said, _ = transfer.communicate(timeout=60)
    assert json.loads(said)["bytes"] == 2_000_000
    assert len(talk(site, "echo", 20, 0.01)["numbers"]) == 20


@pytest.mark.net
def test_a_link_can_become_another(network):
    site = network.add("reshaped", Link(mbit=1, delay_ms=100, loss=0.5))
    site.reshape(Link())
    found = talk(site, "echo", 50, 0.001)
    assert len(found["numbers"]) == 50 and found["rtt"] < 0.1


@pytest.mark.net
def test_two_networks_have_nothing_in_common(network):
    with Network(congestion="reno") as other:
        alone = other.add("alone")
        assert alone.address == network.sites["server"].address
        command = [sys.executable, TALK, "fetch", alone.address, "1"]
        refused = alone.run(command, capture_output=True, text=True, timeout=60)
        assert refused.returncode == 1 and "ConnectionRefusedError" in refused.stderr


@pytest.mark.net
def test_a_name_is_given_once(network):
    with pytest.raises(ConfigurationError, match="a site 'server' already"):
        network.add("server")


@pytest.mark.net
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_network_whose_process_has_died(number):
    program = (
        "import subprocess, time\n"
        "from hilosync.bench.links import Network\n"
        "with Network() as network:\n"
        "    process = network.add('site').popen(['sh', '-c', 'sleep 300 & wait'])\n"
        "    time.sleep(0.2)\n"
        "    print(process.pid, network.forwarder.process_id, flush=True)\n"
        "    time.sleep(300)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        inhabitant, forwarder = map(int, process.stdout.readline().split())
    space = Path(f"/proc/{inhabitant}/ns/net")
    inside = inhabitants(space.readlink())
    assert len(inside) >= 2
    process.send_signal(number)
    process.wait(timeout=60)
    deadline = time.monotonic() + 60
    while any(alive(found) for found in (*inside, forwarder)):
        assert time.monotonic() < deadline, "something is left"
        time.sleep(0.02)


def inhabitants(space: Path) -> list[int]:
    """The processes in a network namespace."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if (process / "ns" / "net").readlink() == space:
                    found.append(int(process.name))
            except OSError:
                continue
    return found


def alive(number: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    "wrong", [{"mbit": 0}, {"mbit": math.nan}, {"delay_ms": -1}, {"loss": 1.0}, {"jitter_ms": 1e9}]
)
def test_a_link_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigurationError, match=r"expected 0\.01 to 100,000 Mbit/s"):
        Link(**wrong)
