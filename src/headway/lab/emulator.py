"""The lab: emulated hosts, the relay between them, and the scenario that changes their links."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from headway.errors import LabError
from headway.lab import leftovers, possible
from headway.lab.conductor import Action, Conductor
from headway.lab.control import SOCKET_VARIABLE, ControlServer
from headway.lab.hosts import MAX_HOSTS, Host, address_number, route_metrics, tcp_settings
from headway.lab.links import LinkTable, all_tables, link_table
from headway.lab.relay import Relay, RelayLoad, warm_up
from headway.lab.scenario import Scenario
from headway.lab.state import apply_links, new_network
from headway.lab.toml import load_scenario
from headway.lab.workers import Output, RunResult, Workers

GRACE_S = 10.0

NICENESS = 10
"""Of the workers where the relay may not have real-time priority: it must come first all the same."""

_PACKET_S = 0.002
"""A packet should occupy the slowest link for no longer than this, so that connections that share it take turns."""
_SMALLEST_MTU, _LARGEST_MTU = 4000, 65000
_PACKETS_PER_S = 50_000
"""What the relay manages with ease; larger packets where the fastest links would need more."""


@dataclass(frozen=True, kw_only=True)
class Counters:
    """What has gone from source to target, headers included, since the lab was started."""

    num_bytes: npt.NDArray[np.int64]
    num_packets: npt.NDArray[np.int64]
    num_lost: npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stands."""

    elapsed_s: float
    phase: int | None
    step: int | None
    num_bytes: int
    num_packets: int
    load: RelayLoad


class Lab:
    """Hosts and links, as long as the context lasts.

        with headway.lab.Lab(4, "wan") as lab:
            result = lab.run(["python", "train.py"])

    Args:
        num_hosts: How many hosts.
        scenario: A scenario, the name of a preset, or a path to a file.
        seed: Of jitter and loss.
        on_action: Called for every phase change and event.
    """

    def __init__(
        self,
        num_hosts: int,
        scenario: Scenario | str | Path = "lan",
        *,
        seed: int = 0,
        on_action: Callable[[Action], None] = lambda action: None,
    ) -> None:
        if not 1 <= num_hosts <= MAX_HOSTS:
            raise ValueError(f"the number of hosts is {num_hosts}, but must be between 1 and {MAX_HOSTS}")
        self.num_hosts = num_hosts
        self.scenario = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
        self.scenario.check_ranks(num_hosts)
        self._tables = all_tables(self.scenario, num_hosts)
        self._network = new_network([address_number(rank) for rank in range(num_hosts)], mtu_bytes(self._tables))
        self._seed = seed
        self._on_action = on_action
        self._hosts: list[Host] = []
        self._relay: Relay | None = None
        self._conductor: Conductor | None = None
        self._workers: Workers | None = None
        self._failure: Exception | None = None
        self._owner = leftovers.owner_mark()
        self._folder: Path | None = None

    def __enter__(self) -> Lab:
        possible.check()
        warm_up(self._network)
        self._folder = Path(tempfile.mkdtemp(prefix=leftovers.FOLDER_PREFIX))
        (self._folder / leftovers.OWNER_FILE).write_text(self._owner)
        try:
            is_lossless = all(not table.loss.any() for table in self._tables)
            for rank in range(self.num_hosts):
                self._hosts.append(
                    Host(
                        rank,
                        mtu_bytes=self._network.payloads.shape[1],
                        settings=tcp_settings(largest_window_bytes(self._tables), is_lossless=is_lossless),
                        metrics=route_metrics(is_lossless=is_lossless),
                    )
                )
            apply_links(self._network, link_table(self.scenario, self.num_hosts, self.scenario.phase_at(0.0, None)))
            self._relay = Relay(self._network, [host.tun_fd for host in self._hosts], seed=self._seed)
            self._relay.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End workers, relay and hosts. Called twice, it does nothing."""
        if self._workers is not None:
            self._workers.end(grace_s=0.0)
            self._workers = None
        if self._relay is not None:
            self._relay.stop()
            self._relay = None
        for host in self._hosts:
            host.close()
        self._hosts = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        output: Output = lambda rank, line: None,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        timeout_s: float | None = None,
        grace_s: float = GRACE_S,
    ) -> RunResult:
        """Start the command on every host, let the scenario happen, and wait until all have ended.

        Args:
            command: Program and arguments.
            env: Variables beside ours and torchrun's.
            output: Called with (rank, line) for every line a worker prints, from a thread of its own.
            on_progress: Called several times a second.
            timeout_s: When to give up.
            grace_s: How long the others may go on once a rank has failed of its own.

        Raises:
            TimeoutError: The workers had not ended in time.
            LabError: The lab itself broke.
        """
        if not self._hosts or self._folder is None:
            raise LabError("the lab is not open: use it as a context manager")
        conductor = Conductor(self.scenario, self.num_hosts, self, self._note_failure)
        server = ControlServer(self._folder / "control", conductor.announce)
        self._conductor = conductor
        extra = {**(env or {}), SOCKET_VARIABLE: str(server.path), leftovers.OWNER_VARIABLE: self._owner}
        try:
            niceness = 0 if self._relay is None or self._relay.is_realtime else NICENESS
            self._workers = Workers(self._hosts, command, extra=extra, output=output, niceness=niceness)
            conductor.start()
            return self._workers.wait(timeout_s=timeout_s, grace_s=grace_s, check=lambda: self._check(on_progress))
        except KeyboardInterrupt:
            if self._workers is not None:
                self._workers.end(grace_s=grace_s, number=signal.SIGINT)
            raise
        finally:
            conductor.stop()
            server.close()
            if self._workers is not None:
                self._workers.end(grace_s=0.0)
            self._workers = None
            self._network.hosts["cut"] = 0

    def act(self, action: Action) -> None:
        """Carry out what the scenario says; called by the conductor."""
        if action.kind == "phase":
            apply_links(self._network, link_table(self.scenario, self.num_hosts, action.phase))
        elif action.kind in ("cut", "heal"):
            self._network.hosts["cut"][list(action.ranks)] = action.kind == "cut"
        elif self._workers is not None:
            number = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP, "thaw": signal.SIGCONT}[action.kind]
            for rank in action.ranks:
                self._workers.send(rank, number)
        self._on_action(action)

    def counters(self) -> Counters:
        """Return what went between every pair."""
        links = self._network.links
        return Counters(
            num_bytes=links["sent_bytes"].copy(),
            num_packets=links["sent_packets"].copy(),
            num_lost=links["lost_packets"].copy(),
        )

    def load(self) -> RelayLoad:
        """Return how hard the relay works."""
        if self._relay is None:
            raise LabError("the lab is not open: use it as a context manager")
        return self._relay.load()

    def _check(self, on_progress: Callable[[Progress], None]) -> None:
        if self._failure is not None:
            raise LabError(f"the scenario could not go on: {self._failure}") from self._failure
        assert self._relay is not None
        if self._relay.failed_host is not None:
            raise LabError(f"the network device of host {self._relay.failed_host} failed, and the relay has ended")
        assert self._conductor is not None
        counters = self.counters()
        on_progress(
            Progress(
                elapsed_s=self._conductor.elapsed_s,
                phase=self._conductor.phase,
                step=self._conductor.step,
                num_bytes=int(counters.num_bytes.sum()),
                num_packets=int(counters.num_packets.sum()),
                load=self._relay.load(),
            )
        )

    def _note_failure(self, error: Exception) -> None:
        self._failure = error


def mtu_bytes(tables: Sequence[LinkTable]) -> int:
    """Return the size of packets: short on slow links, but not more of them than the relay can carry."""
    rates = [table.bandwidth_bps() for table in tables]
    slowest_bps = min(float(rate.min()) for rate in rates)
    fastest_bps = max(float(np.where(np.isfinite(rate), rate, 0.0).max()) for rate in rates)
    wanted = slowest_bps * _PACKET_S / 8 if np.isfinite(slowest_bps) else _LARGEST_MTU
    needed = len(tables[0].up_bps) * fastest_bps / 8 / _PACKETS_PER_S
    return int(min(max(wanted, needed, _SMALLEST_MTU), _LARGEST_MTU))


def largest_window_bytes(tables: Sequence[LinkTable]) -> float:
    """Return the largest product of rate and round trip, of a Gbps where nothing limits it."""
    return max(
        float((np.minimum(table.bandwidth_bps(), 1e9) * (table.latency_s + table.latency_s.T) / 8).max())
        for table in tables
    )
