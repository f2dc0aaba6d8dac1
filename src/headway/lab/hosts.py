"""Emulated hosts: a network namespace each, held open by a file descriptor, with one TUN device inside.

Nothing has a name in the file system: namespace and device vanish with the last process and descriptor, even after
``kill -9``.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import queue
import struct
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from headway.errors import LabError
from headway.lab.workers import start_process

T = TypeVar("T")

INTERFACE = "hw0"
TUN_PATH = "/dev/net/tun"
SUBNET = "10.77.0.0/16"
_FIRST_ADDRESS = (10 << 24) | (77 << 16) | 1
"""Namespaces are isolated, so every lab uses the same addresses."""

MAX_HOSTS = 250

CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000

_QUEUE_PACKETS = 20_000
"""A TUN device drops what does not fit its queue, and TCP cannot see it fill: it must hold all open windows."""

_libc = ctypes.CDLL(None, use_errno=True)


def address_number(rank: int) -> int:
    """Return the IPv4 address of a host as a number."""
    return _FIRST_ADDRESS + rank


def address(rank: int) -> str:
    """Return the IPv4 address of a host.

    >>> address(0)
    '10.77.0.1'
    """
    return ".".join(str(byte) for byte in address_number(rank).to_bytes(4, "big"))


def tcp_settings(window_bytes: int, *, is_lossless: bool) -> dict[str, str]:
    """Return kernel settings that let one connection fill the link of largest bandwidth-delay product, and no more.

    A wider window than needed only fills queues. A send buffer also includes the kernel's overhead per packet, and a
    receiver first announces half of its buffer.
    """
    send_bytes = int(min(2.7 * window_bytes, 64e6))
    settings = {
        # Every kernel has it and every namespace may set it. It reacts to loss, not to delay.
        "ipv4/tcp_congestion_control": "reno",
        "ipv4/tcp_rmem": f"4096 {2 * send_bytes} {2 * send_bytes}",
        "ipv4/tcp_wmem": f"4096 {send_bytes} {send_bytes}",
        "ipv4/tcp_slow_start_after_idle": "0",
        "ipv4/tcp_no_metrics_save": "1",  # a new connection must not inherit the round trip of an old phase
        "ipv6/conf/all/disable_ipv6": "1",
        "ipv6/conf/default/disable_ipv6": "1",
    }
    if is_lossless:
        settings["ipv4/tcp_early_retrans"] = "0"  # a long queue is not loss: no tail loss probes
    return settings


def route_metrics(window_packets: int, *, is_lossless: bool) -> dict[str, int]:
    """Return metrics of the route: wide initial windows and, where nothing is lost, a long rto_min (in ms)."""
    window = min(max(window_packets, 10), 1000)
    return {"initcwnd": window, "initrwnd": window, **({"rto_min": 1000} if is_lossless else {})}


class Host:
    """One host. Everything in its namespace is done by one thread, since a namespace belongs to a thread.

    The thread lives as long as the host: the kernel kills the processes that it started when it ends, however the
    launcher dies.
    """

    def __init__(self, rank: int, *, mtu_bytes: int, settings: dict[str, str], metrics: dict[str, int]) -> None:
        self.rank = rank
        self.address = address(rank)
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"headway-host-{rank}", daemon=True)
        self._thread.start()
        self._namespace_fd = self.tun_fd = -1
        try:
            self.call(lambda: self._create(mtu_bytes, settings, metrics))
        except BaseException:
            self.close()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in the namespace of the host."""
        outcome: Future[T] = Future()
        self._calls.put((function, outcome))
        return outcome.result()

    def popen(self, command: list[str], *, niceness: int = 0, **options: Any) -> subprocess.Popen[bytes]:
        """Start a process on the host; it leads a session of its own and is killed with the launcher."""
        return self.call(lambda: start_process(command, niceness=niceness, **options))

    def close(self) -> None:
        """Remove device and namespace; all processes of the host must have ended."""
        if self._thread.is_alive():
            self._calls.put(None)
            self._thread.join()
        for descriptor in (self.tun_fd, self._namespace_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self.tun_fd = self._namespace_fd = -1

    def _serve(self) -> None:
        while (item := self._calls.get()) is not None:
            function, outcome = item
            try:
                outcome.set_result(function())
            except BaseException as error:  # handed to the caller
                outcome.set_exception(error)

    def _create(self, mtu_bytes: int, settings: dict[str, str], metrics: dict[str, int]) -> None:
        from pyroute2.netlink.exceptions import NetlinkError

        try:
            if _libc.unshare(CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "a new network namespace")
            self._namespace_fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            self.tun_fd = os.open(TUN_PATH, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(self.tun_fd, _TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), _IFF_TUN | _IFF_NO_PI))
            for name, value in settings.items():
                path = Path("/proc/sys/net") / name  # of the calling thread's namespace
                if path.exists():
                    path.write_text(value)
            self._configure_interface(mtu_bytes, metrics)
        except (OSError, NetlinkError) as error:
            raise LabError(
                f"Host {self.rank} could not be made: {error}. The lab needs the right to make namespaces and TUN "
                "devices and to write to /proc/sys/net: in a container, start it with --privileged."
            ) from error

    def _configure_interface(self, mtu_bytes: int, metrics: dict[str, int]) -> None:
        from pyroute2 import IPRoute

        with IPRoute() as netlink:  # its socket belongs to the namespace of this thread
            netlink.link("set", index=1, state="up")
            (device,) = netlink.link_lookup(ifname=INTERFACE)
            netlink.link("set", index=device, mtu=mtu_bytes, txqlen=_QUEUE_PACKETS)
            netlink.link("set", index=device, state="up")
            netlink.addr("add", index=device, address=self.address, prefixlen=32)
            netlink.route("add", dst=SUBNET, oif=device, prefsrc=self.address, scope="link", metrics=metrics)
