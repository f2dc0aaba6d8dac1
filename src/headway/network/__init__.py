"""What is known of the network: the link model, what things cost on it, and what the traffic tells of it."""

from headway.network.estimator import Change, Estimate, Estimator
from headway.network.least_squares import Observation
from headway.network.link import Link
from headway.network.probe import probe_link
from headway.network.textbook import Textbook

__all__ = ["Change", "Estimate", "Estimator", "Link", "Observation", "Textbook", "probe_link"]
