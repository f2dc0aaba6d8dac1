"""The relay: one compiled loop that reads packets from every host's TUN device and writes them to their target's.

It sleeps in ``ppoll`` until a packet can be read or one is due; it never spins. libc is called through its symbols,
which LLVM finds in the running process, so that the compiled loop can be cached.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import carray, types

from headway._compile import compiled
from headway.lab.queues import admit, may_admit, next_delivery, release
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
"""A window of hundreds of packets read in one go would delay deliveries by milliseconds."""

_LONGEST_SLEEP_S = 0.010
"""So that a change of ``control.running`` is seen."""

_WINDOW_S = 1.0
SATURATED_LOAD = 0.85
SATURATED_LATENESS_S = 0.002


@dataclass(frozen=True, kw_only=True)
class RelayLoad:
    """How hard the relay works: past saturation, figures are the relay's and not the network's."""

    cpu_share: float
    """Of one core."""
    mean_lateness_s: float
    num_packets: int
    num_failed_writes: int
    """Packets that a host's device did not take, which should be none."""

    @property
    def is_saturated(self) -> bool:
        """Whether the relay was too busy to be the network it should be."""
        return (
            self.cpu_share > SATURATED_LOAD or self.mean_lateness_s > SATURATED_LATENESS_S or self.num_failed_writes > 0
        )


class LoadMeter:
    """Reads the load of the last second or so, and remembers the busiest."""

    def __init__(self, network: Network, cpu_s: Callable[[], float]) -> None:
        self._network, self._cpu_s = network, cpu_s
        self._last = self._reading()
        self.now = self.busiest = _load_between(self._last, self._last)

    def read(self) -> RelayLoad:
        """Return the load of the last full window; call it often."""
        reading = self._reading()
        if reading.time_s - self._last.time_s >= _WINDOW_S:
            self._take(reading)
        return self.now

    def finish(self) -> RelayLoad:
        """Return the load of the busiest window, the last and perhaps shorter one included."""
        self._take(self._reading())
        return self.busiest

    def _take(self, reading: _Reading) -> None:
        self.now = _load_between(self._last, reading)
        self.busiest = max(self.busiest, self.now, key=lambda load: (load.is_saturated, load.cpu_share))
        self._last = reading

    def _reading(self) -> _Reading:
        control = self._network.control[0]
        return _Reading(
            time.monotonic(),
            self._cpu_s(),
            float(control["late_s"]),
            int(control["num_delivered"]),
            int(control["num_failed_writes"]),
        )


class _Reading(NamedTuple):
    time_s: float
    cpu_s: float
    late_s: float
    num_delivered: int
    num_failed_writes: int


def _load_between(before: _Reading, after: _Reading) -> RelayLoad:
    num_packets = after.num_delivered - before.num_delivered
    return RelayLoad(
        cpu_share=(after.cpu_s - before.cpu_s) / max(after.time_s - before.time_s, 1e-3),
        mean_lateness_s=(after.late_s - before.late_s) / max(num_packets, 1),
        num_packets=num_packets,
        num_failed_writes=after.num_failed_writes - before.num_failed_writes,
    )


class Relay:
    """The loop in a thread of its own; it holds no GIL."""

    def __init__(self, network: Network, tun_fds: Sequence[int], *, seed: int = 0) -> None:
        self._network = network
        self._tun_fds = np.asarray(tun_fds, np.int32)
        self._seed = seed % 2**32
        self._thread = threading.Thread(target=self._run, name="headway-relay", daemon=True)
        self._has_begun = threading.Event()
        self.is_realtime = False
        """Whether the relay comes before all other processes; if not, workers have to be nice."""

    def start(self) -> None:
        """Start relaying."""
        self._thread.start()
        self._has_begun.wait()

    def stop(self) -> None:
        """Stop, and wait until the loop has ended."""
        self._network.control["running"] = 0
        if self._thread.is_alive():
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether the loop runs."""
        return self._thread.is_alive()

    @property
    def failed_host(self) -> int | None:
        """The host whose device failed and ended the loop, if one did."""
        host = int(self._network.control["failed_host"][0])
        return None if host == NOTHING else host

    def meter(self) -> LoadMeter:
        """Return a meter of the load from now on."""
        return LoadMeter(self._network, self._cpu_s)

    def _cpu_s(self) -> float:
        thread = self._thread.ident
        return time.clock_gettime(time.pthread_getcpuclockid(thread)) if thread and self._thread.is_alive() else 0.0

    def _run(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # sleep to the nanosecond, not to the next 50 µs
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            self.is_realtime = True
        self._has_begun.set()
        _relay(self._network, self._tun_fds, np.zeros(len(self._tun_fds), _POLL), self._seed)


def warm_up(network: Network) -> None:
    """Compile the loop, or load it from the cache: connections would time out while it compiles."""
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
    """Return whether this is a TCP segment without data whose only flag (but PSH and ECN) is ACK.

    Such packets do not wait behind data at the sender. A real host keeps its device queue short (TCP small queues), so
    that acknowledgements hardly wait; a TUN takes packets off the socket's account, and whole windows pile up in it.
    For a pure acknowledgement it is harmless to overtake data of its own connection; any other packet would look lost.
    """
    if size_bytes > 120 or payload[9] != 6:
        return False
    tcp = (payload[0] & 15) * 4
    return bool(size_bytes == tcp + (payload[tcp + 12] >> 4) * 4 and payload[tcp + 13] & 0x17 == 0x10)


@compiled
def _target_of(network: Any, payload: Any, size_bytes: int) -> Any:
    """Return the host that an IPv4 packet is for; NOTHING for IPv6, multicast and addresses of no host."""
    if size_bytes < 20 or payload[0] >> 4 != 4:
        return NOTHING
    address = (np.int64(payload[16]) << 24) | (np.int64(payload[17]) << 16) | (np.int64(payload[18]) << 8)
    target = (address | np.int64(payload[19])) - network.hosts[0].address  # hosts have consecutive addresses
    return target if 0 <= target < len(network.hosts) else NOTHING


@compiled
def _flow_of(payload: Any, size_bytes: int) -> int:
    """Return a number that tells connections apart: the ports, which TCP and UDP have in the same place."""
    ports = (payload[0] & 15) * 4
    if size_bytes < ports + 4:
        return 0
    source_port = (np.int64(payload[ports]) << 8) | np.int64(payload[ports + 1])
    target_port = (np.int64(payload[ports + 2]) << 8) | np.int64(payload[ports + 3])
    return int((source_port * 31 + target_port) % 65521)


@compiled
def _read_from(network: Any, tun_fds: Any, source: int, now_s: float) -> bool:
    """Admit some of what a host has queued, as far as its quota allows; return False when the device is gone."""
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

    A write takes the receiver's whole TCP path, so the clock is read again for each.
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
    """Wait until a packet can be read or an event is due. A sender without quota is not polled."""
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
    np.random.seed(seed)  # noqa: NPY002 (numba's generator, which is of this thread alone)
    control = network.control[0]
    timespec, timeout = np.zeros(2, np.int64), np.zeros(2, np.int64)
    polls["events"][:] = _POLLIN
    first = 0
    while control.running != 0:
        now_s = _deliver_due(network, tun_fds, timespec)
        if _sleep(network, tun_fds, polls, timeout, now_s) <= 0:
            continue
        first = (first + 1) % len(polls)  # another host each time: none is always read last
        for offset in range(len(polls)):
            source = (first + offset) % len(polls)
            if polls[source].revents == 0:
                continue
            now_s = _monotonic_s(timespec)
            if polls[source].revents & _POLL_FAILURES or not _read_from(network, tun_fds, source, now_s):
                control.failed_host = source
                return
