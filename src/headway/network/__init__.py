"""What is known of the network: the link model, and a first look at it."""

from headway.network.link import Link
from headway.network.probe import probe_link

__all__ = ["Link", "probe_link"]
