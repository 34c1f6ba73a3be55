"""What one TCP connection makes of the links of `hilosync.bench.links`: the table of docs/networks.md.

python scripts/measure_links.py            # about two minutes; needs root
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from hilosync.bench.links import Link, Network, network_missing

TALK = str(Path(__file__).parents[1] / "tests" / "net" / "site_talk.py")

LINKS = {
    "no limit": (Link(), 100e6),
    "62.5 Mbit/s": (Link(mbit=62.5), 20e6),
    "62.5 Mbit/s, 40 ms": (Link(mbit=62.5, delay_ms=40), 20e6),
    "62.5 Mbit/s, 40 ms, jitter 10 ms": (Link(mbit=62.5, delay_ms=40, jitter_ms=10), 20e6),
    "62.5 Mbit/s, 40 ms, loss 1 %": (Link(mbit=62.5, delay_ms=40, loss=0.01), 4e6),
    "62.5 Mbit/s, 40 ms, jitter 10 ms, loss 1 %": (Link(mbit=62.5, delay_ms=40, jitter_ms=10, loss=0.01), 4e6),
    "1 Mbit/s": (Link(mbit=1), 0.5e6),
}


def main() -> None:
    missing = network_missing()
    if missing:
        sys.exit(missing)
    for congestion in ("cubic", "bbr"):
        with Network(congestion) as network:
            server = network.add("server")
            process = server.popen([sys.executable, TALK, "serve"], stdout=subprocess.PIPE)
            assert process.stdout is not None
            process.stdout.readline()
            for name, (link, size) in LINKS.items():
                site = network.add(name, link)
                found = [talk(site, server, size) for _ in range(3)]
                rates = sorted(8e-6 * each["bytes"] / each["seconds"] for each in found)
                connect = sorted(1e3 * each["connect"] for each in found)
                print(f"{congestion:6} {name:44} connected in {connect[1]:5.1f} ms, {rates[1]:6.1f} Mbit/s", flush=True)


def talk(site, server, size: float) -> dict:
    command = [sys.executable, TALK, "fetch", server.address, str(int(size))]
    return json.loads(site.run(command, capture_output=True, timeout=300, check=True).stdout)


if __name__ == "__main__":
    main()
