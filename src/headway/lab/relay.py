"""The relay: a compiled loop that reads packets from the hosts' TUN devices and writes them to their targets'.

It sleeps in ``ppoll`` until a packet can be read or one is due; it never spins. libc is called through its symbols,
which LLVM finds in the running process, so that the compiled loop can be cached.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numba import carray, types

from headway._compile import compiled
from headway.lab.queues import admit, may_admit, next_delivery, release
from headway.lab.results import LoadMeter
from headway.lab.state import NOTHING, Network

_read = types.ExternalFunction("read", types.intp(types.intc, types.intp, types.uintp))
_write = types.ExternalFunction("write", types.intp(types.intc, types.intp, types.uintp))
_ppoll = types.ExternalFunction("ppoll", types.intc(types.intp, types.uintp, types.intp, types.intp))
_clock_gettime = types.ExternalFunction("clock_gettime", types.intc(types.intc, types.intp))
_errno_location = types.ExternalFunction("__errno_location", types.CPointer(types.intc)())

_CLOCK_MONOTONIC = 1
_POLLIN, _POLL_FAILURES = 0x001, 0x008 | 0x010 | 0x020
_EINTR, _EAGAIN = 4, 11
_PR_SET_TIMERSLACK = 29

_POLL = np.dtype([("fd", "i4"), ("events", "i2"), ("revents", "i2")])

_READS_PER_TURN = 4
"""Reading a window of hundreds of packets in one go would delay deliveries by milliseconds."""

_LONGEST_SLEEP_S = 0.010
"""So that a change of ``control.running`` is noticed."""


class Relay:
    """The loop on a thread of its own, without the GIL."""

    def __init__(self, network: Network, tun_fds: Sequence[int], *, seed: int = 0) -> None:
        self._network = network
        self._tun_fds = np.asarray(tun_fds, np.int32)
        self._seed = seed % 2**32
        self._thread = threading.Thread(target=self._run, name="headway-relay", daemon=True)
        self._has_begun = threading.Event()
        self.is_realtime = False
        """Whether the relay has real-time priority; if not, workers need a lower one."""

    def start(self) -> None:
        """Start the loop."""
        self._thread.start()
        self._has_begun.wait()

    def stop(self) -> None:
        """Stop the loop, and wait until it has ended."""
        self._network.control["running"] = 0
        if self._thread.is_alive():
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether the loop runs."""
        return self._thread.is_alive()

    @property
    def failed_host(self) -> int | None:
        """The host whose device failed and ended the loop, if any."""
        host = int(self._network.control["failed_host"][0])
        return None if host == NOTHING else host

    def meter(self) -> LoadMeter:
        """Return a meter of the load from now on."""
        return LoadMeter(self._network, self._cpu_s)

    def _cpu_s(self) -> float:
        thread = self._thread.ident
        return time.clock_gettime(time.pthread_getcpuclockid(thread)) if thread and self._thread.is_alive() else 0.0

    def _run(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # the default lets sleeps end 50 µs late
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            self.is_realtime = True
        self._has_begun.set()
        _relay(self._network, self._tun_fds, np.zeros(len(self._tun_fds), _POLL), self._seed)


def warm_up(network: Network) -> None:
    """Compile the loop or load it from the cache: connections would time out while it compiles."""
    network.control["running"] = 0
    _relay(network, np.zeros(len(network.hosts), np.int32), np.zeros(len(network.hosts), _POLL), 0)
    network.control["running"] = 1


@compiled
def _monotonic_s(timespec: Any) -> Any:
    _clock_gettime(_CLOCK_MONOTONIC, timespec.ctypes.data)
    return timespec[0] + timespec[1] * 1e-9


@compiled
def _errno() -> Any:
    return carray(_errno_location(), 1)[0]


@compiled
def _is_pure_ack(payload: Any, size_bytes: int) -> bool:
    """Return whether this is a TCP segment without data whose only flag (except PSH and ECN) is ACK.

    Such packets do not wait behind data at the sender. A real host keeps its device queue short (TCP small queues), so
    that acknowledgements hardly wait; a TUN device does not count against the socket, and whole windows pile up in it.
    A pure acknowledgement may overtake data of its own connection; any other overtaken packet would look lost.
    """
    if size_bytes > 120 or payload[9] != 6:
        return False
    tcp = (payload[0] & 15) * 4
    return bool(size_bytes == tcp + (payload[tcp + 12] >> 4) * 4 and payload[tcp + 13] & 0x17 == 0x10)


@compiled
def _target_of(network: Any, payload: Any, size_bytes: int) -> Any:
    """Return the target host of an IPv4 packet; NOTHING for IPv6, multicast and unknown addresses."""
    if size_bytes < 20 or payload[0] >> 4 != 4:
        return NOTHING
    address = (np.int64(payload[16]) << 24) | (np.int64(payload[17]) << 16) | (np.int64(payload[18]) << 8)
    target = (address | np.int64(payload[19])) - network.hosts[0].address  # hosts have consecutive addresses
    return target if 0 <= target < len(network.hosts) else NOTHING


@compiled
def _flow_of(payload: Any, size_bytes: int) -> int:
    """Return a number that identifies a connection, from its ports, which TCP and UDP have in the same place."""
    ports = (payload[0] & 15) * 4
    if size_bytes < ports + 4:
        return 0
    source_port = (np.int64(payload[ports]) << 8) | np.int64(payload[ports + 1])
    target_port = (np.int64(payload[ports + 2]) << 8) | np.int64(payload[ports + 3])
    return int((source_port * 31 + target_port) % 65521)


@compiled
def _read_from(network: Any, tun_fds: Any, source: int, now_s: float) -> bool:
    """Admit some of the packets that a host has queued, within its quota; return False when the device is gone."""
    for _ in range(_READS_PER_TURN):
        if not may_admit(network, source):
            return True
        payload = network.payloads[network.control[0].free_slot]
        size_bytes = _read(tun_fds[source], payload.ctypes.data, payload.size)
        if size_bytes <= 0:
            return bool(size_bytes < 0 and (_errno() == _EAGAIN or _errno() == _EINTR))
        target = _target_of(network, payload, size_bytes)
        if target != NOTHING:
            flow = _flow_of(payload, size_bytes)
            admit(network, source, target, size_bytes, flow, _is_pure_ack(payload, size_bytes), now_s)
    return True


@compiled
def _deliver_due(network: Any, tun_fds: Any, timespec: Any) -> Any:
    """Write every packet that is due; return the time.

    A write runs the receiver's whole TCP path, so the clock is read again for each.
    """
    control = network.control[0]
    while True:
        now_s = _monotonic_s(timespec)
        slot = next_delivery(network, now_s)
        if slot == NOTHING:
            return now_s
        packet = network.packets[slot]
        control.late_s += now_s - packet.last_s
        control.num_delivered += 1
        if _write(tun_fds[packet.target], network.payloads[slot].ctypes.data, packet.size_bytes) != packet.size_bytes:
            control.num_failed_writes += 1
        release(network, slot)


@compiled
def _sleep(network: Any, tun_fds: Any, polls: Any, timeout: Any, now_s: float) -> Any:
    """Wait until a packet can be read or an event is due. A sender whose quota is used up is not polled."""
    for source in range(len(polls)):
        polls[source].fd = tun_fds[source] if may_admit(network, source) else -1
        polls[source].revents = 0
    sleep_s = _LONGEST_SLEEP_S
    if network.control[0].num_events > 0:
        sleep_s = min(sleep_s, max(0.0, network.events[0].time_s - now_s))
    timeout[0] = 0
    timeout[1] = np.int64(sleep_s * 1e9)
    return _ppoll(polls.ctypes.data, len(polls), timeout.ctypes.data, 0)


@compiled
def _relay(network: Any, tun_fds: Any, polls: Any, seed: int) -> None:
    """Run until ``control.running`` is 0, or a device fails."""
    np.random.seed(seed)  # noqa: NPY002 (numba's generator, of this thread only)
    control = network.control[0]
    timespec, timeout = np.zeros(2, np.int64), np.zeros(2, np.int64)
    polls["events"][:] = _POLLIN
    first = 0
    while control.running != 0:
        now_s = _deliver_due(network, tun_fds, timespec)
        if _sleep(network, tun_fds, polls, timeout, now_s) <= 0:
            continue
        first = (first + 1) % len(polls)  # start with another host each time, so that none is always last
        for offset in range(len(polls)):
            source = (first + offset) % len(polls)
            if polls[source].revents == 0:
                continue
            now_s = _monotonic_s(timespec)
            if polls[source].revents & _POLL_FAILURES or not _read_from(network, tun_fds, source, now_s):
                control.failed_host = source
                return
