"""Gossip of all ranks in one process, without a network."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from headway.compress import Compressor
from headway.gossip.settings import GossipSettings
from headway.gossip.topology import Topology, topology_of
from headway.kernels import noise_key


class InProcessGossip:
    """Takes the steps of `wrap` with ``memory="lean"``, to the bit, to see how an algorithm learns.

    Args:
        x: Flat model that all ranks start from.
        num_ranks: Number of ranks.
        algorithm: As for `wrap`.
        topology: As for `wrap`.
        compressor: As for `wrap`.
        consensus_step: As for `wrap`.
        local_steps: As for `wrap`.
        seed: As for `wrap`.

    >>> ranks = InProcessGossip(torch.zeros(3), num_ranks=4, algorithm="dpsgd")
    >>> ranks.step(torch.eye(4, 3))
    >>> ranks.step(torch.zeros(4, 3))
    >>> ranks.models[0]
    tensor([0.3333, 0.3333, 0.0000])
    """

    def __init__(
        self,
        x: Tensor,
        num_ranks: int,
        algorithm: str = "dcd",
        topology: str | Topology | Any = "ring",
        compressor: Compressor | Literal["auto"] | None = "auto",
        *,
        consensus_step: float | None = None,
        local_steps: int = 1,
        seed: int = 0,
    ) -> None:
        settings = GossipSettings(
            algorithm=algorithm,
            compressor=compressor,
            consensus_step=consensus_step,
            local_steps=local_steps,
            memory="lean",
            seed=seed,
        )
        self.topology = topology_of(topology, num_ranks)
        self.num_steps = 0
        self.models = x.repeat(num_ranks, 1)
        """The models of all ranks, a row each."""
        self._local_steps = local_steps
        self._seed = seed
        self._compressor = settings.compressor_for(x)
        ranks = range(num_ranks)
        self._algorithms = [settings.make_algorithm(x.numel(), x.device, self._compressor) for _ in ranks]
        self._estimates = [settings.make_estimates(self.topology, rank, x.numel(), x.device) for rank in ranks]
        for rank in ranks:
            self._algorithms[rank].start(x)
            self._estimates[rank].start(x)

    def step(self, updates: Tensor) -> None:
        """Apply the local update of each rank, a row each (-γ g for SGD), and hold a round if one is due."""
        self.num_steps += 1
        self.models = self.models + updates
        if self.num_steps % self._local_steps:
            return
        sent = [self._send(rank, model) for rank, model in enumerate(self.models)]
        for rank, (algorithm, estimates) in enumerate(zip(self._algorithms, self._estimates, strict=True)):
            estimates.begin(algorithm.change)
            for peer in estimates.ranks:
                estimates.add(peer, sent[peer])
            estimates.end()
            algorithm.mix(estimates)
            self.models[rank] = algorithm.x

    def _send(self, rank: int, model: Tensor) -> Tensor:
        """Return what a rank sends, as its neighbours decode it."""
        algorithm, key = self._algorithms[rank], noise_key(self._seed, self.num_steps // self._local_steps, rank)
        proposed = algorithm.propose(model.clone(), self._estimates[rank])
        message = torch.empty(self._compressor.num_bytes(model.numel()), dtype=torch.uint8, device=model.device)
        self._compressor.encode(proposed, key, out=message)
        sent = torch.empty_like(model)
        self._compressor.decode(message, key, out=sent)
        algorithm.settle(sent)
        return sent
