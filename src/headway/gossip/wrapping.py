"""`headway.gossip.wrap`: the one line in a training script."""

from __future__ import annotations

from typing import Any, Literal

import torch.distributed as dist
from torch.nn import Module
from torch.optim import Optimizer

from headway.collectives.executor import DEFAULT_TIMEOUT_S
from headway.compress import Compressor
from headway.gossip.connections import Connections
from headway.gossip.edge import MessageLayout
from headway.gossip.gossip import Gossip
from headway.gossip.live_ranks import LiveRanks, RollCall
from headway.gossip.mixed_buffers import MixedBuffers
from headway.gossip.monitoring import GossipEvents
from headway.gossip.neighbourhood import Neighbourhood
from headway.gossip.optimizer import GossipOptimizer
from headway.gossip.settings import GossipSettings
from headway.gossip.topology import Topology, topology_of
from headway.kernels import warm_up
from headway.replica import CARRIED, FlatView, check_agreement, make_equal, moved_parameters, shape_of


def wrap(
    model: Module,
    optimizer: Optimizer,
    algorithm: str = "dcd",
    topology: str | Topology | Any = "ring",
    compressor: Compressor | Literal["auto"] | None = "auto",
    *,
    consensus_step: float | None = None,
    local_steps: int = 1,
    memory: str = "auto",
    buffer_interval: int = 10,
    seed: int = 0,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    group: dist.ProcessGroup | None = None,
) -> GossipOptimizer:
    """Train decentralised: return an optimizer whose step also mixes the model with those of neighbours.

    Every rank calls it, with a model of the same shape and without DDP; all models start as that of rank 0.

    Args:
        model: The bare model.
        optimizer: Any optimizer over parameters of the model; its step is the local update.
        algorithm: "dcd" (differences), "ecd" (extrapolations), "choco" (any compressor), "dpsgd" (uncompressed), or
            "naive" (a negative control).
        topology: "ring", "torus", "exponential", "complete", "star"; a symmetric, doubly stochastic matrix; or a
            networkx graph.
        compressor: A compressor of `headway.compress` without a memory: `StochasticQuantizer`, `RandomK`; with choco
            also `TopK` and `Sign`. None sends full precision; "auto" is 8 bits, for choco 4, for dpsgd None.
        consensus_step: γ_c of choco, in (0, 1]; by default it depends on the compressor.
        local_steps: Steps in each round. With more than one, less is sent, and the messages of a round may travel
            during the local steps before the next.
        memory: "lean" keeps one sum for all neighbours, "resilient" a replica of each, so that training goes on when
            one is lost; "auto" is resilient up to four neighbours. dpsgd and naive need no replicas for that.
        buffer_interval: Rounds between mixing floating-point buffers, such as batch norm's statistics; 0 for never.
        seed: Seed of the compressor's noise; the same on all ranks.
        timeout_s: How long a neighbour may keep this rank waiting before it is given up.
        group: Ranks that take part; all by default.

    Returns:
        The optimizer: also ``consensus_distance()``, ``average_()``, ``averaged()``, ``statistics()``, ``events``,
        ``state_dict()``, ``load_state_dict()`` and ``close()``.

    **Memory**: 4 bytes a parameter for each of: the model; a second copy (naive, choco) or two (ecd); the sum over
    neighbours, and with replicas one for each; three to work in; and two messages from and to each neighbour.
    """
    settings = GossipSettings(
        algorithm=algorithm,
        compressor=compressor,
        consensus_step=consensus_step,
        local_steps=local_steps,
        memory=memory,
        buffer_interval=buffer_interval,
        seed=seed,
        timeout_s=timeout_s,
    )
    moved = moved_parameters(model, optimizer, "gossip")
    parameters = FlatView(moved.values(), "parameter")
    buffers = FlatView((buffer for buffer in model.buffers() if buffer.dtype in CARRIED), "buffer")
    if not dist.is_initialized():
        raise ValueError("there is no process group: call torch.distributed.init_process_group first")
    graph = topology_of(topology, dist.get_world_size(group))
    warm_up()
    connections = Connections(group, timeout_s)
    try:
        check_agreement(connections.executor, "algorithm, compressor or seed", settings.fingerprint)
        check_agreement(connections.executor, "topology", graph.fingerprint)
        what = "model, or set of parameters that the optimizer moves,"
        check_agreement(connections.executor, what, shape_of(model, moved))
        make_equal(connections.executor, [*model.parameters(), *model.buffers()])
        return _assemble(connections, settings, graph, optimizer, parameters, buffers)
    except BaseException:
        connections.close()
        raise


def _assemble(
    connections: Connections,
    settings: GossipSettings,
    topology: Topology,
    optimizer: Optimizer,
    parameters: FlatView,
    buffers: FlatView,
) -> GossipOptimizer:
    """Build from the bottom up: sizes of messages, neighbourhood, gossip, optimizer."""
    x, rank, weights = parameters.new(), connections.rank, topology.weights_at(connections.rank)
    compressor = settings.compressor_for(x)
    settings.warn_of_noise(topology, compressor)
    layout = MessageLayout(
        payload_bytes=compressor.num_bytes(x.numel()),
        buffer_bytes=4 * buffers.numel,
        buffer_interval=settings.buffer_interval,
    )
    events = GossipEvents()
    neighbourhood = Neighbourhood(
        connections.wire, connections.note_wire, weights, layout.num_bytes, settings.timeout_s
    )
    gossip = Gossip(
        rank,
        settings,
        settings.make_algorithm(x.numel(), x.device, compressor),
        settings.make_estimates(topology, rank, x.numel(), x.device),
        compressor,
        layout,
        MixedBuffers(buffers, weights),
        neighbourhood,
        events,
    )
    gossip.start(x)
    roll_call = RollCall(connections.note_wire, rank, connections.num_ranks, connections.all_ranks_timeout_s)
    live_ranks = LiveRanks(connections.executor, roll_call, neighbourhood, events)
    return GossipOptimizer(optimizer, parameters, buffers, gossip, live_ranks, connections, topology, settings)
