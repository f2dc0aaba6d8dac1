"""Who is missing? Ranks that wait in vain tell each other, so that all of them name the same lost ranks.

A rank that waits for long asks those it waits for whether they are there (see `heartbeats`). One whose connections are
closed is lost at once, one that stays silent for ``timeout_s`` is lost then; one that answers is waited for as long as
torch would wait, since it may be busy, and the log says so. Once one rank is lost, all others that owe an answer are
*suspects*: those that do not answer soon are lost with it, and those that do were only slow.

A rank that finds another one lost sends every rank a *notice* with all it knows to be lost, and closes its connections;
a rank that gets one while it waits does the same. Where all ranks answer, but nothing moves for as long as torch waits,
notices say which ranks each waits for. Missing are then all ranks that are waited for, except those that sent a notice:
these wait too. The same holds where a connection breaks and nobody knows why.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from headway.collectives.groups import FIRST_LOG_S, GRACE_S, LOG_GROWTH
from headway.collectives.heartbeats import Heartbeats
from headway.collectives.wire import BrokenWire, Pending, Wire
from headway.errors import ranks_in_words

_LOGGER = logging.getLogger("headway")
_WAITED_FOR, _LOST, _SILENT = 1, 2, 3
"""What a notice says of a rank; one that is silent is lost, too."""
_CALLS_APART = 2
"""How many calls a rank may be ahead of one that waits: the root of a broadcast is done when it has sent."""
_FINAL = 1 << 62
"""In place of a call's number: the sender makes no more calls, so this notice never gets old."""
_ASKING = 0.25
"""How often ranks are asked, as a fraction of the time without an answer after which they are lost."""
_LONGEST_BEFORE_ASKING_S = 1.0
_SUSPICIOUS = 0.5
"""Once a rank is silent for this fraction of the time, all are asked: ranks lost together are named together."""
_ANSWERING_S = 2.0
"""How long suspects have to answer once a rank is lost: the thread that answers may wait for a busy machine."""
_SETTLING_S = 0.05
_MOMENT_S, _MOMENTS_PER_PROBE = 0.01, 10


@dataclass(frozen=True)
class Call:
    """A running collective.

    Args:
        number: Its number, from 1.
        what: What it is, in words.
        among: The ranks that take part.
        waited_for: Returns the ranks that this one waits for at the moment.
        begun: When it began (`time.monotonic`).
    """

    number: int
    what: str
    among: frozenset[int]
    waited_for: Callable[[], frozenset[int]]
    begun: float = field(default_factory=time.monotonic)


class Watch:
    """Judges, on the thread of the heartbeats, whether the ranks that a call waits for are lost.

    Args:
        wire: Carries the calls; closed where one of them must end.
        heartbeats: Asks ranks whether they are there, and carries the notices.
        timeout_s: How long a rank may be silent.
        names: The names of ranks in the log: their numbers among all processes.
        is_quiet: Whether to log nothing, since calls wait for long in any case.
    """

    def __init__(
        self, wire: Wire, heartbeats: Heartbeats, timeout_s: float, names: Sequence[int], *, is_quiet: bool = False
    ) -> None:
        self._wire = wire
        self._heartbeats = heartbeats
        self._rank, self._peers = heartbeats.rank, heartbeats.peers
        self._timeout_s = timeout_s
        self._names = names
        self._is_quiet = is_quiet
        # Two rows per peer, since its last notice may follow one about a call: what the notice says of each rank
        # (_WAITED_FOR, ...), then the number of the call.
        self._notices = torch.zeros(2, len(names), len(names) + 1, dtype=torch.int64)
        self._receives: dict[tuple[int, int], Pending] = {}
        self._sends: list[Pending] = []
        self._call = Call(0, "", frozenset(), frozenset)
        self._lost: frozenset[int] = frozenset()
        """The ranks that this one has found to be lost."""
        self._silent: frozenset[int] = frozenset()
        """Those of them that are lost because they did not answer."""
        self._suspects: dict[int, float] | None = None
        """Once a rank is lost: the others that owed an answer then, and how long they had been silent."""
        self._unreachable: frozenset[int] = frozenset()
        """The ranks that a notice could not be sent to; a call may well go on without them."""
        self._has_notices = False
        self._has_closed = False
        self._last_notice = 0
        """The number of the call that the last notice was about."""
        self._next_log_s = FIRST_LOG_S
        self._sending = threading.Lock()
        self.is_waiting = False
        self._channel = heartbeats.open_channel(self._tick, lambda: self.is_waiting)
        self._tags = heartbeats.notice_tags(self._channel)
        self._post()

    def begin(self, call: Call) -> None:
        """Watch a call; forget notices about earlier calls, which succeeded in the end."""
        self._call = call
        self._next_log_s = FIRST_LOG_S
        self._suspects = None
        if self._has_notices:
            self._post()
        self.is_waiting = True

    def end(self) -> None:
        """Stop watching the call."""
        self.is_waiting = False

    def find_missing(self, broken: BrokenWire, waited_for: Iterable[int]) -> frozenset[int]:
        """Return the missing ranks after a wait has failed; then close all connections, so that no rank waits for us.

        An empty set means that all other ranks are there, and have given up on this one.
        """
        self.is_waiting = False
        own = frozenset(waited_for)
        if not broken.timed_out:
            own = own if broken.peer is None else frozenset([broken.peer])
            self._settle(own)
            self._send_notice(waited_for=own, lost=self._lost)
            self._lost |= self._unreachable
            self._wait_for_notices()
            self._send_notice(waited_for=own, lost=self._lost)
        self._wire.close(self._peers)
        alive = self._notifiers()
        lost = (self._lost | self._reported_as(_LOST)) - alive - {self._rank}
        if lost:
            return lost
        missed = own | self._reported_as(_WAITED_FOR)
        came_late = self._rank in missed and not broken.timed_out
        missing = missed - alive - {self._rank}
        return missing if missing or came_late else own

    @property
    def silent_for_s(self) -> float | None:
        """How long ranks were silent, if any of those that are lost were."""
        return self._timeout_s if self._silent | self._reported_as(_SILENT) else None

    def leave(self) -> None:
        """Tell all ranks that this one makes no more calls, and close the connections."""
        self._send_notice(waited_for=frozenset(), lost=frozenset([self._rank]))
        self._wire.close(self._peers)

    def close(self) -> None:
        """Watch no more."""
        self._heartbeats.close_channel(self._channel)
        self._call = Call(0, "", frozenset(), frozenset)  # the last one may hold what keeps connections open
        self._receives.clear()
        self._sends.clear()

    def _tick(self, now: float) -> None:
        """Look after the running call, if there is one."""
        call = self._call
        self._has_notices = bool(self._notices[..., -1].any())
        if not self.is_waiting:
            return
        since = max(call.begun, self._wire.waiting_since)
        waited_for = call.waited_for() - {self._rank}
        if now - since > min(_ASKING * self._timeout_s, _LONGEST_BEFORE_ASKING_S):
            self._judge(waited_for, now, now - since)
        if self._lost or self._senders(_FINAL) & call.among:
            self._give_up(waited_for)
        elif self._senders(max(call.number, 1)) or now > since + self._wire.patience_s:
            self._send_notice(waited_for=waited_for, lost=frozenset())

    def _give_up(self, waited_for: frozenset[int]) -> None:
        """End the call, which then finds out who is missing; all ranks do so."""
        self._send_notice(waited_for=waited_for, lost=self._lost)
        if not self._has_closed:
            self._has_closed = True
            self._wire.close(self._peers)

    def _judge(self, waited_for: frozenset[int], now: float, waited_s: float) -> None:
        """Ask the ranks that are waited for, and find out which are lost."""
        heartbeats, timeout_s = self._heartbeats, self._timeout_s
        heartbeats.ask(waited_for, _ASKING * timeout_s, now)
        silent_s = max((heartbeats.silence_s(peer, now) for peer in waited_for), default=0.0)
        if silent_s > _SUSPICIOUS * timeout_s:
            heartbeats.ask(self._peers, _ASKING * timeout_s, now)
        if math.isinf(silent_s) or silent_s > timeout_s < waited_s:
            self._find_lost({peer: heartbeats.silence_s(peer, now) for peer in self._peers})
            return
        self._suspects = None
        if waited_s > self._next_log_s and not self._is_quiet:
            self._log(waited_for, waited_s)

    def _find_lost(self, silences_s: dict[int, float]) -> None:
        """Note which ranks are lost, as soon as every suspect has answered, or has had the time to."""
        timeout_s, suspects = self._timeout_s, self._suspects
        if suspects is None:
            least_s = _ASKING * timeout_s
            suspects = {peer: each_s for peer, each_s in silences_s.items() if least_s < each_s <= timeout_s}
        alive = self._notifiers() | {peer for peer, each_s in suspects.items() if silences_s[peer] < each_s}
        self._suspects = suspects = {peer: each_s for peer, each_s in suspects.items() if peer not in alive}
        if all(silences_s[peer] >= each_s + _ANSWERING_S for peer, each_s in suspects.items()):
            overdue = {peer for peer, each_s in silences_s.items() if each_s > timeout_s}
            self._lost = frozenset(overdue | suspects.keys())
            self._silent = frozenset(peer for peer in self._lost if silences_s[peer] < math.inf)

    def _log(self, waited_for: frozenset[int], waited_s: float) -> None:
        """Say which ranks are alive, but have not come to this call."""
        busy = sorted(peer for peer in waited_for if self._heartbeats.is_waiting(peer, self._channel) is False)
        if busy:
            self._next_log_s *= LOG_GROWTH
            _LOGGER.warning(
                "rank %d has waited %.0f s for %s in %s: alive, but busy elsewhere; given up after %.0f s",
                self._names[self._rank],
                waited_s,
                ranks_in_words(self._names[peer] for peer in busy),
                self._call.what,
                self._wire.patience_s,
            )

    def _settle(self, suspects: frozenset[int]) -> None:
        """Find out which ranks are gone for good: their other connections break at about the same time."""
        end = time.monotonic() + _SETTLING_S
        while suspects and not self._lost and time.monotonic() < end:
            self._lost = frozenset(peer for peer in suspects if not self._heartbeats.is_connected(peer))
            time.sleep(_MOMENT_S)

    def _post(self) -> None:
        """Post receives for the notices of every peer, except those that are about this call."""
        for kind, tag in enumerate(self._tags):
            for peer in self._peers:
                number = int(self._notices[kind, peer, -1])
                if (kind, peer) in self._receives and (number == 0 or number >= self._call.number - _CALLS_APART):
                    continue
                self._notices[kind, peer] = 0
                with contextlib.suppress(BrokenWire):  # a peer that is gone is noticed when it is needed
                    target = self._notices[kind, peer]
                    self._receives[kind, peer] = self._heartbeats.wire.receive(target, peer, tag)

    def _send_notice(self, *, waited_for: frozenset[int], lost: frozenset[int]) -> None:
        """Send a notice to all peers, once per call; one that names lost ranks is the last."""
        number = _FINAL if lost else self._call.number
        with self._sending:
            if self._last_notice >= number:
                return
            self._last_notice = number
        notice = torch.zeros(self._notices.shape[-1], dtype=torch.int64)
        notice[list(waited_for)] = _WAITED_FOR
        notice[list(lost)] = _LOST
        notice[list(lost & self._silent)] = _SILENT
        notice[-1] = number
        for peer in self._peers:
            try:
                pending = self._heartbeats.wire.send(self._wire.as_bytes(notice), peer, self._tags[number == _FINAL])
            except BrokenWire:
                self._unreachable |= {peer}
            else:
                self._sends.append(pending)

    def _wait_for_notices(self) -> None:
        """Give all ranks that are not known to be lost time to answer; a rank outside of a call will not."""
        for moment in range(int(GRACE_S / _MOMENT_S)):
            if moment % _MOMENTS_PER_PROBE == 0:
                self._lost |= {peer for peer in self._unsettled() if not self._heartbeats.is_connected(peer)}
            if not self._unsettled():
                return
            time.sleep(_MOMENT_S)

    def _unsettled(self) -> frozenset[int]:
        return frozenset(self._peers) - self._notifiers() - self._reported_as(_LOST) - self._lost

    def _senders(self, number: int) -> frozenset[int]:
        """Return the ranks that sent a notice about this call or a later one."""
        return frozenset(torch.nonzero((self._notices[..., -1] >= number).any(dim=0)).flatten().tolist())

    @property
    def _oldest(self) -> int:
        """The oldest call of which a notice matters: peers may be behind or ahead."""
        return max(self._call.number - _CALLS_APART, 1)

    def _notifiers(self) -> frozenset[int]:
        """Return the ranks whose notices say that they are there; one that leaves says so of itself."""
        left = frozenset(peer for peer in self._peers if bool((self._notices[:, peer, peer] >= _LOST).any()))
        return self._senders(self._oldest) - left

    def _reported_as(self, state: int) -> frozenset[int]:
        """Return the ranks of which any notice says this, or worse."""
        states = self._notices[self._notices[..., -1] >= self._oldest][:, :-1]
        return frozenset(torch.nonzero((states >= state).any(dim=0)).flatten().tolist())
