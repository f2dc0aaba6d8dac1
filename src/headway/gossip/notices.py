"""Signs of life: who waits for a neighbour, or has sent what is still under way, says so now and then.

When a rank is silent its neighbours wait for it, and theirs for them: all would run out of time together. And where
bandwidth is poor a message may take longer than patience. So patience begins anew with every notice; only who neither
waits nor sends is given up.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque

import torch

from headway.collectives.wire import BrokenWire, Pending, Wire
from headway.gossip.edge import WAITING

_TAG = 2
_MOST_KEPT = 256
"""Far more than are given to a neighbour before it is given up."""


class Notices:
    """Gives notices to a neighbour, and hears the neighbour's.

    Args:
        wire: What carries the notices.
        peer: The neighbour.
    """

    def __init__(self, wire: Wire, peer: int) -> None:
        self._wire = wire
        self._peer = peer
        self._leaving: deque[Pending] = deque(maxlen=_MOST_KEPT)
        self.heard_at = 0.0
        """When the last notice came, by `time.monotonic`."""
        threading.Thread(target=self._listen, name=f"{WAITING}-notices-{peer}", daemon=True).start()

    def give(self) -> None:
        """Say that this rank is alive, and not to blame."""
        with contextlib.suppress(BrokenWire):  # who waits for the neighbour finds out
            self._leaving.append(self._wire.send(torch.zeros(4, dtype=torch.uint8), self._peer, _TAG))

    def _listen(self) -> None:
        notice = torch.zeros(4, dtype=torch.uint8)
        with contextlib.suppress(BrokenWire):
            while True:
                pending = self._wire.receive(notice, self._peer, _TAG)
                self._wire.wait_for_ever(pending)
                self.heard_at = time.monotonic()
