"""Heartbeats tell whether a rank is there, whatever its script does.

    question   i -> j   "are you there?"; at most one is open between two ranks
    answer     j -> i   sent by a thread of its own; says which executors of rank j wait in a call

They have connections of their own, on which no large message is in the way: over a slow link a rank that sends or
receives one still answers. A process that is gone is noticed by its closed connection, a host that is gone or a process
that was stopped by its silence.

Every rank is asked once a minute, since firewalls and address translators drop connections that are idle for long, and
say so to nobody: a rank that is alive would seem lost.

**Cost**: 2 messages of 72 bytes to each rank a minute; while some rank is waited for, the same to that one a few times
in each ``timeout_s``. The thread wakes up ten times a second.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from headway.collectives.wire import FOREVER_S, BrokenWire, Pending, Wire

_LOGGER = logging.getLogger("headway")
TICK_S = 0.1
MOST_CHANNELS = 8
_QUESTION_TAG, _ANSWER_TAG, _PROBE_TAG, _FIRST_NOTICE_TAG = 1, 2, 3, 16
_MOST_PROBES = 256
_KEEPING_ALIVE_S = 60.0
"""How long a connection may be idle; address translators keep one for some minutes."""
_STALLED_S = 0.5
"""A tick that comes later than this was held up, by a stopped process or a script that kept Python's lock."""


class Heartbeats:
    """Asks and answers, on a thread; executors of the same ranks may share one, each by a channel of its own.

    Args:
        wire: Connections that nothing else uses.
        rank: This rank.
        num_ranks: The number of ranks.
    """

    def __init__(self, wire: Wire, rank: int, num_ranks: int) -> None:
        self.wire = wire
        self.rank = rank
        self.peers = tuple(peer for peer in range(num_ranks) if peer != rank)
        # Of each peer: which of its channels wait, and last, since it is written last, whether a message has come.
        self._questions = torch.zeros(num_ranks, MOST_CHANNELS + 1, dtype=torch.int64)
        self._answers = torch.zeros(num_ranks, MOST_CHANNELS + 1, dtype=torch.int64)
        self._receives: dict[tuple[int, int], Pending] = {}
        self._sends: dict[tuple[int, int], Pending] = {}
        self._probes: deque[Pending] = deque(maxlen=_MOST_PROBES)
        self._asked_at: dict[int, float] = {}
        """When the question that a peer has not answered yet was sent."""
        self._heard_at: dict[int, float] = {}
        self._waits: dict[int, list[int]] = {}
        """Which channels of a peer were waiting when it last answered."""
        self._channels: dict[int, tuple[Callable[[float], None], Callable[[], bool]]] = {}
        self._num_channels = 0
        self._all_asked_at = time.monotonic()
        self._logged: set[tuple[object, type[Exception]]] = set()
        """The kinds of errors that the log has told of: they may come back ten times a second."""
        self._closing = threading.Event()
        for peer in self.peers:
            self._post(self._questions, peer, _QUESTION_TAG)
            self._post(self._answers, peer, _ANSWER_TAG)
        self._thread = threading.Thread(target=self._beat, name="headway-heartbeats", daemon=True)
        self._thread.start()

    @classmethod
    def on(cls, group: dist.ProcessGroup) -> Heartbeats:
        """Return heartbeats on a process group of their own."""
        return cls(Wire(group, FOREVER_S), group.rank(), group.size())

    def open_channel(self, tick: Callable[[float], None], is_waiting: Callable[[], bool]) -> int:
        """Return the number of a new channel, the same on all ranks.

        Args:
            tick: Called on the thread with the time (`time.monotonic`), ten times a second.
            is_waiting: Returns whether this rank waits in a call.
        """
        channel, self._num_channels = self._num_channels, self._num_channels + 1
        if channel >= MOST_CHANNELS:
            raise ValueError(f"{MOST_CHANNELS} executors share these heartbeats already: let others have their own")
        self._channels = {**self._channels, channel: (tick, is_waiting)}
        return channel

    def close_channel(self, channel: int) -> None:
        """Call its functions no more."""
        self._channels = {number: each for number, each in self._channels.items() if number != channel}

    @staticmethod
    def notice_tags(channel: int) -> tuple[int, int]:
        """Return the tags of a channel's own messages on the wire."""
        return _FIRST_NOTICE_TAG + 2 * channel, _FIRST_NOTICE_TAG + 2 * channel + 1

    def ask(self, peers: Iterable[int], interval_s: float, now: float) -> None:
        """Ask ranks whether they are there, except those that were asked, or have answered, a moment ago."""
        for peer in peers:
            if peer not in self._asked_at and now - self._heard_at.get(peer, -math.inf) > interval_s:
                self._asked_at[peer] = now if self._send(peer, _QUESTION_TAG) else -math.inf

    def silence_s(self, peer: int, now: float) -> float:
        """Return how long a rank has left a question unanswered; infinite if its connection is closed."""
        return max(now - self._asked_at.get(peer, now), 0.0)

    def is_waiting(self, peer: int, channel: int) -> bool | None:
        """Return whether a rank waited in a call when it last answered; None if it never has."""
        waits = self._waits.get(peer)
        return None if waits is None else bool(waits[channel])

    def is_connected(self, peer: int) -> bool:
        """Return False if the connection to a rank is closed."""
        try:
            self._probes.append(self.wire.send(torch.zeros(1, dtype=torch.uint8), peer, _PROBE_TAG))
        except BrokenWire:
            return False
        return True

    def close(self) -> None:
        """End the thread, and close the connections."""
        self._closing.set()
        self._thread.join()
        self.wire.close(self.peers)
        self.wire.release()
        self._receives.clear()
        self._sends.clear()
        self._probes.clear()

    def poll(self, now: float) -> None:
        """Answer questions, note answers, and let every channel look after its calls; called on the thread.

        Whatever is wrong with one of these, the others go on: peers would take this rank for lost.
        """
        with self._going_on("answers"):
            self._answer()
        with self._going_on("questions"):
            self._note_answers(now)
            self._keep_alive(now)
        for channel, (tick, _) in self._channels.items():
            with self._going_on(channel):
                tick(now)

    def _answer(self) -> None:
        for peer in _arrived(self._questions):
            self._post(self._questions, peer, _QUESTION_TAG)
            self._send(peer, _ANSWER_TAG)

    def _note_answers(self, now: float) -> None:
        for peer in _arrived(self._answers):
            self._waits[peer] = self._answers[peer].tolist()
            self._heard_at[peer] = now
            self._asked_at.pop(peer, None)
            self._post(self._answers, peer, _ANSWER_TAG)

    def _keep_alive(self, now: float) -> None:
        if now - self._all_asked_at > _KEEPING_ALIVE_S:
            self._all_asked_at = now
            self.ask(self.peers, 0.0, now)

    @contextmanager
    def _going_on(self, part: object) -> Iterator[None]:
        """Log an error instead of raising it: the first of its kind in each part."""
        try:
            yield
        except Exception as error:
            kind = part, type(error)
            if kind not in self._logged:
                self._logged.add(kind)
                _LOGGER.exception("heartbeats go on after an error")

    def discount_stall(self, held_up_s: float) -> None:
        """Count no time in which this rank could not have heard an answer."""
        if held_up_s > _STALLED_S:
            self._asked_at = {peer: asked + held_up_s for peer, asked in self._asked_at.items()}

    def _beat(self) -> None:
        before = time.monotonic()
        while not self._closing.wait(TICK_S):
            now = time.monotonic()
            self.discount_stall(now - before - TICK_S)
            self.poll(now)
            before = now

    def _post(self, rows: Tensor, peer: int, tag: int) -> None:
        rows[peer] = 0
        try:
            self._receives[peer, tag] = self.wire.receive(rows[peer], peer, tag)
        except BrokenWire:  # asked once more, it is found to be gone
            self._receives.pop((peer, tag), None)

    def _send(self, peer: int, tag: int) -> bool:
        """Send a question or an answer; return whether the connection is open."""
        numbers = torch.zeros(MOST_CHANNELS + 1, dtype=torch.int64)
        for channel, (_, is_waiting) in self._channels.items():
            numbers[channel] = is_waiting()
        numbers[-1] = 1
        try:
            self._sends[peer, tag] = self.wire.send(self.wire.as_bytes(numbers), peer, tag)
        except BrokenWire:
            return False
        return True


def _arrived(rows: Tensor) -> list[int]:
    """Return the peers whose message has arrived: receives are not waited for, their memory tells."""
    marks = rows[:, -1]
    return torch.nonzero(marks).flatten().tolist() if bool(marks.any()) else []
