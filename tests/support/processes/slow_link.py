"""A network that takes its time, in a network namespace of its own, for one command.

    unshare --net python -m tests.support.processes.slow_link 20 COMMAND ...

runs the command where packets to `FAR` take 20 ms and then arrive at `NEAR`, as if they came from
`FAR`: a server on `NEAR` and a client that connects to it by the name `FAR` are 20 ms apart. Needs
root, `ip` and /dev/net/tun; unlike `tc netem` it needs nothing of the kernel that may be left out.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

NEAR: Final = "10.99.0.1"
FAR: Final = "10.99.0.2"

_DEVICE: Final = "slow0"
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN: Final = 0x0001
_IFF_NO_PI: Final = 0x1000
_ADDRESSES: Final = slice(12, 20)  # of an IPv4 header: source, destination
_IPV4: Final = 4
_MAX_PACKET: Final = 65536
_ETH_P_IP: Final = 0x0800
_SO_RCVBUFFORCE: Final = 33

_MODULE: Final = "tests.support.processes.slow_link"
_IN_NAMESPACE: Final = ("unshare", "--net", sys.executable, "-m", _MODULE)


def why_not() -> str | None:
    """Returns what is missing for `in_namespace` here; None if nothing is."""
    if not (shutil.which("ip") and shutil.which("unshare")):
        return "iproute2 and util-linux are not installed"
    probe = (*_IN_NAMESPACE, "0", "true")
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return f"no network of its own: {done.stderr.strip()[-300:]}" if done.returncode else None


def in_namespace(delay_ms: int, *command: str) -> str:
    """Runs a command there and returns its output; raises CalledProcessError if it fails."""
    link = (*_IN_NAMESPACE, str(delay_ms))
    return subprocess.run([*link, *command], stdout=subprocess.PIPE, text=True, check=True).stdout


def listener() -> socket.socket:
    """Returns a socket that hears every packet of the link, and keeps some thousand of them."""
    heard = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_IP))
    heard.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 16 << 20)
    heard.bind((_DEVICE, _ETH_P_IP))
    heard.setblocking(False)
    return heard


def arrived(heard: socket.socket) -> Iterator[bytes]:
    """The packets that have come over the link so far, each once."""
    while True:
        try:
            packet, address = heard.recvfrom(_MAX_PACKET)
        except BlockingIOError:
            return
        if address[2] != socket.PACKET_OUTGOING:  # it has been on its way for a while
            yield packet


def reflect(device: int, delay_s: float) -> None:
    """Gives packets back, with source and destination exchanged, after a while. Never ends.

    The exchange leaves all checksums as they are: they are sums.
    """
    flying: deque[tuple[float, bytes]] = deque()
    arrived = threading.Condition()

    def land() -> None:
        while True:
            with arrived:
                arrived.wait_for(lambda: flying)
                due, packet = flying.popleft()
            time.sleep(max(0.0, due - time.monotonic()))
            os.write(device, packet)

    threading.Thread(target=land, daemon=True).start()
    while True:
        packet = bytearray(os.read(device, _MAX_PACKET))
        if packet[0] >> 4 != _IPV4:  # neighbour discovery and the like
            continue
        addresses = packet[_ADDRESSES]
        packet[_ADDRESSES] = addresses[4:] + addresses[:4]
        with arrived:
            flying.append((time.monotonic() + delay_s, bytes(packet)))
            arrived.notify()


def main() -> None:
    """Makes the device and runs the command."""
    delay_ms, *command = sys.argv[1:]
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", _DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    for arguments in (
        ("addr", "add", f"{NEAR}/24", "dev", _DEVICE),
        ("link", "set", _DEVICE, "up"),
        ("link", "set", "lo", "up"),
    ):
        subprocess.run(["ip", *arguments], check=True)
    # Else small packets that the device has not taken yet become one, whatever the server wishes.
    Path("/proc/sys/net/ipv4/tcp_autocorking").write_text("0", encoding="ascii")
    delay_s = int(delay_ms) / 1000
    threading.Thread(target=reflect, args=(device, delay_s), daemon=True).start()
    raise SystemExit(subprocess.run(command, cwd=Path.cwd(), check=False).returncode)


if __name__ == "__main__":
    main()
