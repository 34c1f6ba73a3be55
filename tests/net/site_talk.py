"""What the tests of links run inside sites; prints what it found as one line of JSON.

site_talk.py serve                      a server of bytes over TCP and an echo over UDP, until it is killed
site_talk.py fetch HOST BYTES           seconds until the connection stood, until BYTES had come
site_talk.py echo HOST COUNT PAUSE      numbers of the datagrams that came back, in that order, and median RTT
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import threading
import time

PORT = 9000
SO_RCVBUFFORCE = 33  # of Linux: more than users may have, so that nothing is lost while the machine is busy


def serve() -> None:
    echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    echo.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
    echo.bind(("0.0.0.0", PORT))
    threading.Thread(target=send_back, args=(echo,), daemon=True).start()
    with socket.create_server(("0.0.0.0", PORT)) as server:
        say("ready")
        while True:
            connection, _ = server.accept()
            threading.Thread(target=send, args=(connection,), daemon=True).start()


def send_back(echo: socket.socket) -> None:
    while True:
        echo.sendto(*echo.recvfrom(2048))


def send(connection: socket.socket) -> None:
    with connection, connection.makefile("rb") as asked:
        connection.sendall(bytes(int(asked.readline())))


def fetch(host: str, size: int) -> dict[str, object]:
    started = time.monotonic()
    with socket.create_connection((host, PORT), timeout=60.0) as connection:
        connected = time.monotonic()
        algorithm = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        connection.sendall(b"%d\n" % size)
        received = 0
        while piece := connection.recv(1 << 20):
            received += len(piece)
    return {
        "connect": connected - started,
        "seconds": time.monotonic() - connected,
        "bytes": received,
        "congestion": algorithm.rstrip(b"\0").decode(),
    }


def echo(host: str, count: int, pause: float) -> dict[str, object]:
    sent, trips, numbers = {}, [], []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
        asked.settimeout(1.0)

        def listen() -> None:
            while len(numbers) < count:
                try:
                    number = int(asked.recv(64))
                except TimeoutError:
                    if len(sent) == count:
                        return
                    continue
                trips.append(time.monotonic() - sent[number])
                numbers.append(number)

        listener = threading.Thread(target=listen)
        listener.start()
        for number in range(count):
            sent[number] = time.monotonic()
            asked.sendto(b"%d" % number, (host, PORT))
            time.sleep(pause)
        listener.join()
    return {"numbers": numbers, "rtt": statistics.median(trips) if trips else None}


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    elif sys.argv[1] == "fetch":
        say(json.dumps(fetch(sys.argv[2], int(sys.argv[3]))))
    else:
        say(json.dumps(echo(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))))
