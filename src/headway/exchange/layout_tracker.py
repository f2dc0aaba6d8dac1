"""Which buckets stay: DDP cuts them anew after the first steps of a process, and a resumed run starts with others."""

from __future__ import annotations

from collections import deque

from headway.exchange.layout import Layout

_NUM_FIRST_CUT = 2
"""Steps of a process in which DDP may still have the buckets that it cuts before it knows the order of gradients."""
_NUM_SETTLING = 5
"""Steps of a run with the buckets of its first one: it may be stopped and resumed meanwhile, with the same bits."""
_NUM_TO_ADOPT = 3
"""Steps in a row that must have the same new buckets after that."""


class LayoutTracker:
    """Looks at the layout of every step, and says which one to use from the next step on."""

    def __init__(self) -> None:
        self.settled: Layout | None = None
        """The layout that DDP has settled on, as far as is known; part of a state."""
        self._num_steps = 0
        """The steps of this process."""
        self._seen: deque[Layout] = deque(maxlen=_NUM_TO_ADOPT)

    @property
    def latest(self) -> Layout | None:
        """The layout of the last step; None before the first one, and after a resume."""
        return self._seen[-1] if self._seen else None

    def resume(self, settled: Layout | None) -> None:
        """Go on with the state of another run."""
        self.settled = settled
        self._seen.clear()

    def learn(self, layout: Layout, num_steps_of_run: int) -> Layout | None:
        """Take in the layout of a step; return the one to use from the next step on, None for no other.

        Args:
            layout: The layout.
            num_steps_of_run: The steps of the run so far, this one and those before a resume included.
        """
        self._num_steps += 1
        self._seen.append(layout)
        if self._num_steps > _NUM_FIRST_CUT:
            self.settled = layout
        stays = num_steps_of_run > _NUM_SETTLING and self._seen.count(layout) == _NUM_TO_ADOPT
        return self.settled if stays or num_steps_of_run == _NUM_SETTLING else None
