"""Ranks that have lost one meet at the store and agree on who goes on; ranks from outside are let in there.

    NUMBER/here/RANK    this rank has come to a meeting
    NUMBER/chair        the rank that waits for the others, and says who takes part: the first that came
    NUMBER/members      what it says
    asking/RANK         a rank from outside asks to be let in, by a word of its own
    let_in/WORD         the number of the meeting that has let it in
    num_asked           how many times a rank has asked

and, for all runs of these ranks,

    process/RANK        the first process of this rank
    run                 the number of the latest run

Whoever comes too late finds itself left out, and asks to be let in.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

from torch._C._distributed_c10d import PrefixStore

from headway.collectives.groups import FIRST_LOG_S, LOG_GROWTH
from headway.collectives.members import Members, without_server
from headway.elastic.starting import attempt
from headway.errors import HeadwayError, PeerLost, ranks_in_words

_LOGGER = logging.getLogger("headway")
_GRACE_S = 2.0
"""How long to wait for ranks that are said to be lost: they may only have left the exchange, to let others in."""
_TICK_S = 0.02
_MOST_MEETINGS = 100
"""Meetings in a row whose chair was lost."""


@dataclass(frozen=True)
class Meeting:
    """What a meeting has agreed on: who goes on, and which of them were let in."""

    members: Members
    guests: tuple[int, ...]


@cache
def _name_of_process(pid: int) -> str:
    """Return a name that no other process has, nor one that was forked from it."""
    return f"{pid}/{uuid.uuid4().hex}"


class Meetings:
    """The meetings of a run, as one rank attends them.

    **Cost** of a meeting: some messages to the store, and the wait for the slowest rank; of `has_guests`, one.

    Args:
        members: All ranks of the run, those that are lost included.
        timeout_s: How long ranks are waited for in a meeting.
    """

    def __init__(self, members: Members, timeout_s: float) -> None:
        store = PrefixStore(f"headway/meetings/{attempt()}", without_server(members.store))
        self._all = replace(members, store=store, group=None)
        self._name = members.names[members.rank]
        self._timeout_s = timeout_s
        self._number = 0
        self._names = members.names
        """The ranks that take part."""
        self._num_let_in = 0
        with self._at_store():
            me = store.compare_set(f"process/{self._name}", "", _name_of_process(os.getpid())).decode()
            self.is_back = me != _name_of_process(os.getpid())
            """Whether an earlier process of this rank has taken part: this one must ask to be let in."""
            if self.is_back:
                run = store.get("run").decode()
            else:
                run = str(next(members.numbers))
                store.set("run", run)
        self._store = PrefixStore(run, store)

    def has_guests(self) -> bool:
        """Return whether a rank asks to be let in."""
        with self._at_store():
            return self._store.add("num_asked", 0) > self._num_let_in

    def meet(self, lost: Collection[int] = ()) -> Meeting:
        """Agree with the others on who goes on; all that are left call it.

        Args:
            lost: The ranks that this one holds for lost.

        Raises:
            HeadwayError: The store is gone.
        """
        for _ in range(_MOST_MEETINGS):
            self._number += 1
            with self._at_store():
                meeting = self._attend(frozenset(lost))
            if meeting is not None:
                return meeting
        raise HeadwayError(f"{_MOST_MEETINGS} meetings of ranks came to nothing: whoever led them was lost")

    def ask(self) -> Meeting:
        """Ask to be let in, and wait until the others meet.

        Raises:
            PeerLost: Nobody has met for as long as torch waits.
        """
        word = f"{self._name}/{uuid.uuid4().hex}"
        with self._at_store():
            self._store.set(f"asking/{self._name}", word)
            self._store.add("num_asked", 1)
            _LOGGER.info("rank %d asks to be let into the run", self._name)
            if not self._wait_for(f"let_in/{word}", self._all.patience_s):
                others = [name for name in self._all.names if name != self._name]
                raise PeerLost(others, "asking to be let into the run", self._all.patience_s)
            said = json.loads(self._store.get(f"let_in/{word}"))
        self._number = said["number"]
        return self._adopt(said)

    def _attend(self, lost: frozenset[int]) -> Meeting | None:
        """Come to the next meeting; return None if nobody is left who leads it."""
        self._store.set(f"{self._number}/here/{self._name}", "")
        chair = self._store.compare_set(f"{self._number}/chair", "", str(self._name))
        key = f"{self._number}/members"
        if int(chair) == self._name:
            self._store.set(key, json.dumps(self._preside(lost)))
        elif not self._wait_for(key, 2 * self._timeout_s):
            return None
        said = json.loads(self._store.get(key))
        if self._name not in said["names"]:
            _LOGGER.warning("rank %d came too late: the others went on without it", self._name)
            return self.ask()
        return self._adopt(said)

    def _preside(self, lost: frozenset[int]) -> dict[str, object]:
        """Wait for all ranks, and return who takes part; let those in who have asked."""
        began = time.monotonic()
        while absent := [name for name in self._names if not self._is_here(name)]:
            waited_s = time.monotonic() - began
            if waited_s > (_GRACE_S if lost.issuperset(absent) else self._timeout_s):
                break
            time.sleep(_TICK_S)
        num_asked = self._store.add("num_asked", 0)
        words = {name: self._take_word(name) for name in self._all.names if self._store.check([f"asking/{name}"])}
        guests = [name for name in words if name not in self._names or name in absent]
        names = sorted({*self._names, *guests} - (set(absent) - set(guests)))
        said = {"number": self._number, "names": names, "guests": guests, "num_let_in": num_asked}
        for name in guests:
            self._store.set(f"let_in/{words[name]}", json.dumps(said))
        return said

    def _is_here(self, name: int) -> bool:
        return bool(self._store.check([f"{self._number}/here/{name}"]))

    def _take_word(self, name: int) -> str:
        word: str = self._store.get(f"asking/{name}").decode()
        self._store.delete_key(f"asking/{name}")
        return word

    def _adopt(self, said: dict[str, list[int]]) -> Meeting:
        gone = sorted(set(self._names) - set(said["names"]))
        self._names, self._num_let_in = tuple(said["names"]), int(str(said["num_let_in"]))
        guests = tuple(said["guests"])
        if gone:
            _LOGGER.warning("going on with %d ranks, without %s", len(self._names), ranks_in_words(gone))
        if guests:
            _LOGGER.warning("%s let in: going on with %d ranks", ranks_in_words(guests), len(self._names))
        members = Members(
            rank=self._names.index(self._name),
            names=self._names,
            store=PrefixStore(str(said["number"]), self._store),
            patience_s=self._all.patience_s,
            connecting_s=self._timeout_s,
        )
        return Meeting(members, guests)

    def _wait_for(self, key: str, timeout_s: float) -> bool:
        """Wait until a key is there; return False if it does not come. The log says so after a while."""
        began, next_log_s = time.monotonic(), FIRST_LOG_S
        while not self._store.check([key]):
            waited_s = time.monotonic() - began
            if waited_s > timeout_s:
                return False
            if waited_s > next_log_s:
                next_log_s *= LOG_GROWTH
                _LOGGER.warning("%.0f s of waiting for the other ranks to meet", waited_s)
            time.sleep(_TICK_S)
        return True

    @contextmanager
    def _at_store(self) -> Iterator[None]:
        """Say what it means if the store cannot be reached."""
        try:
            yield
        except RuntimeError as error:
            reason = f"the store that ranks meet at is gone, with the process that kept it ({error})"
            raise HeadwayError(reason) from error
