"""The state of gossip as plain data, which ``torch.load(weights_only=True)`` reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from headway.gossip.gossip import Gossip
from headway.gossip.settings import GossipSettings
from headway.gossip.topology import Topology
from headway.replica import copied

FORMAT = 1


def save(gossip: Gossip, topology: Topology, settings: GossipSettings, rank: int) -> dict[str, Any]:
    """Return models, estimates and counters, as copies; random numbers follow from the seed and the step."""
    state = copied(gossip.state())  # first: it ends the last round, in which a neighbour may be lost
    return {
        "format": FORMAT,
        "rank": rank,
        "topology": topology.fingerprint,
        "settings": settings.fingerprint,
        "lost": sorted(set(topology.neighbours[rank]) - set(gossip.estimates.ranks)),
        **state,
    }


def misfit(state: Any, gossip: Gossip, topology: Topology, settings: GossipSettings, rank: int) -> str | None:
    """Return why a state cannot be loaded on this rank; None if it can."""
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        return "this is no state of a gossip optimizer of this version: load what its state_dict returned"
    expected = {"rank": rank, "topology": topology.fingerprint, "settings": settings.fingerprint}
    for name, value in expected.items():
        if state.get(name) != value:
            advice = "each rank loads its own" if name == "rank" else "wrap with what the state was saved with"
            return f"the state is of another {name} ({state.get(name)}, not {value}): {advice}"
    if state.get("lost"):
        lost = ", ".join(map(str, state["lost"]))
        return f"the state was saved after rank {lost} was lost: average_() and save the model, and start from that"
    return _misfit_of_tensors(state, gossip)


def _misfit_of_tensors(state: Mapping[str, Any], gossip: Gossip) -> str | None:
    missing = [name for name in ("step", "buffers", "quantizer_step", "moved") if name not in state]
    if missing:
        return f"the state is damaged: it has no {missing[0]!r}"
    own = gossip.state()
    for part in ("algorithm", "estimates"):
        theirs = state.get(part, {})
        if set(theirs) != set(own[part]):
            return "the state has other tensors than this rank: it was saved with another memory= or degree"
        for name, tensor in own[part].items():
            if isinstance(tensor, Tensor) and theirs[name].shape != tensor.shape:
                return f"the state is of another model: {theirs[name].numel():,} parameters, not {tensor.numel():,}"
    return None
