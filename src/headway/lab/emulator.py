"""The lab: emulated hosts, the relay between them, and the playback of a scenario."""

from __future__ import annotations

import collections
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from headway.errors import LabError
from headway.lab import leftovers, possible
from headway.lab.control import SOCKET_VARIABLE, ControlServer
from headway.lab.hosts import INTERFACE, MAX_HOSTS, Host, address, address_number, route_metrics, tcp_settings
from headway.lab.links import LinkTable, all_tables, link_table, mtu_bytes, window_bytes
from headway.lab.playback import Action, Playback
from headway.lab.relay import Relay, warm_up
from headway.lab.results import Counters, LoadMeter, Progress, RunResult
from headway.lab.scenario import Scenario
from headway.lab.state import apply_links, new_network
from headway.lab.toml import load_scenario
from headway.lab.workers import GRACE_S, Output, Rendezvous, Workers

MASTER_PORT = 29500

NICENESS = 10
"""Niceness of workers where the relay may not have real-time priority: the relay must still come first."""

_SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP, "thaw": signal.SIGCONT}


class SaturationWarning(UserWarning):
    """The relay was too busy: times of this run show the relay rather than the network."""


class Lab:
    """Emulated hosts and links, for as long as the context is open.

        with headway.lab.Lab(4, "wan") as lab:
            result = lab.run(["python", "train.py"])

    Args:
        num_hosts: Number of emulated hosts.
        scenario: A scenario, the name of a preset, or the path of a file.
        seed: Random seed of jitter and loss.
        on_action: Called for every change of phase and every event.
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
        self._seed = seed
        self._on_action = on_action
        self._open: ExitStack | None = None
        self._hosts: list[Host] = []
        self._workers: Workers | None = None
        self._stopped: collections.Counter[tuple[str, int]] = collections.Counter()
        self._failure: Exception | None = None

    def __enter__(self) -> Lab:
        if self._open is not None:
            raise LabError("the lab is open already: make another one")
        possible.check()
        tables = all_tables(self.scenario, self.num_hosts)
        self._network = new_network([address_number(rank) for rank in range(self.num_hosts)], mtu_bytes(tables))
        warm_up(self._network)
        with ExitStack() as stack:
            self._mark = leftovers.new_mark()
            self._folder = leftovers.make_folder(self._mark)
            stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            settings, metrics = self._tcp_options(tables)
            self._hosts = []
            for rank in range(self.num_hosts):
                packet_bytes = self._network.payloads.shape[1]
                self._hosts.append(Host(rank, mtu_bytes=packet_bytes, settings=settings, metrics=metrics))
                stack.callback(self._hosts[-1].close)
            apply_links(self._network, link_table(self.scenario, self.num_hosts, self.scenario.phase_at(0.0, None)))
            self._relay = Relay(self._network, [host.tun_fd for host in self._hosts], seed=self._seed)
            stack.callback(self._relay.stop)
            self._relay.start()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End relay and hosts; a second call does nothing."""
        if self._open is not None:
            stack, self._open, self._hosts = self._open, None, []
            stack.close()

    def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        output: Output = lambda rank, line: None,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        timeout_s: float | None = None,
        grace_s: float = GRACE_S,
        interrupt_grace_s: float | None = None,
        on_interrupt: Callable[[], None] = lambda: None,
    ) -> RunResult:
        """Start the command on every host, play the scenario from its start, and wait until all have ended.

        No process that the workers started is left when this returns or raises.

        Args:
            command: Program and arguments.
            env: Environment variables, in addition to ours and torchrun's.
            output: Called with (rank, line) for every line that a worker prints, on a thread per worker.
            on_progress: Called many times a second.
            timeout_s: When to give up; never by default.
            grace_s: How long the other ranks may go on once one has failed by itself.
            interrupt_grace_s: How long workers may take to end after Ctrl-C; ``grace_s`` by default.
            on_interrupt: Called on Ctrl-C, before workers are told to end.

        Raises:
            TimeoutError: The workers did not end in time.
            LabError: The lab itself failed, or the program could not be started.
        """
        self._check_open()
        if not command:
            raise ValueError("the command is empty: name a program")
        if self._workers is not None:
            raise LabError("a command is running in this lab: make another lab for a second one")
        self._failure = None
        self._stopped.clear()
        playback = Playback(self.scenario, self.num_hosts, self._act, self._note_failure)
        before, meter, started_s = self.counters(), self._relay.meter(), time.monotonic()

        def check() -> None:
            self._check_health()
            on_progress(
                Progress(
                    elapsed_s=playback.elapsed_s,
                    phase=playback.phase,
                    step=playback.step,
                    counters=self.counters().since(before),
                    load=meter.read(),
                )
            )

        with ExitStack() as stack:
            server = ControlServer(self._folder / "control", playback.announce)
            stack.callback(server.close)
            extra = {**(env or {}), SOCKET_VARIABLE: str(server.path), leftovers.MARK_VARIABLE: self._mark}
            niceness = 0 if self._relay.is_realtime else NICENESS
            stack.callback(self._end_workers)
            rendezvous = Rendezvous(address=address(0), port=MASTER_PORT, interface=INTERFACE)
            self._workers = Workers(
                self._hosts, command, rendezvous=rendezvous, extra=extra, output=output, niceness=niceness
            )
            stack.callback(playback.stop)
            playback.start()
            first_failed = self._workers.wait(
                timeout_s=timeout_s,
                grace_s=grace_s,
                interrupt_grace_s=interrupt_grace_s,
                on_interrupt=on_interrupt,
                check=check,
            )
            workers = self._workers
        return self._result(workers, first_failed, time.monotonic() - started_s, before, meter)

    def _act(self, action: Action) -> None:
        """Carry out an action of the scenario."""
        if action.kind == "phase":
            apply_links(self._network, link_table(self.scenario, self.num_hosts, action.phase))
        for rank in action.ranks:
            if self._changes_state(action.kind, rank):
                if action.kind in ("cut", "heal"):
                    self._network.hosts["cut"][rank] = action.kind == "cut"
                elif self._workers is not None:
                    self._workers.send(rank, _SIGNALS[action.kind])
        self._on_action(action)

    def counters(self) -> Counters:
        """Return the traffic between all pairs since the lab was opened."""
        self._check_open()
        links = self._network.links
        return Counters(
            num_bytes=links["sent_bytes"].copy(),
            num_packets=links["sent_packets"].copy(),
            num_lost=links["lost_packets"].copy(),
        )

    def _tcp_options(self, tables: Sequence[LinkTable]) -> tuple[dict[str, str], dict[str, int]]:
        is_lossless = not any(table.loss.any() for table in tables)
        is_lossless = is_lossless and not any(event.kind == "cut" for event in self.scenario.events)
        packet_bytes = self._network.payloads.shape[1]
        window = window_bytes(tables, packet_bytes)
        return (
            tcp_settings(window, is_lossless=is_lossless),
            route_metrics(window // packet_bytes, is_lossless=is_lossless),
        )

    def _changes_state(self, kind: str, rank: int) -> bool:
        """Count the cuts and freezes of a rank, which may overlap: the first starts it and the last ends it."""
        if kind == "kill":
            return True
        what = (kind.replace("heal", "cut").replace("thaw", "freeze"), rank)
        if kind in ("cut", "freeze"):
            self._stopped[what] += 1
            return self._stopped[what] == 1
        self._stopped[what] -= 1
        return self._stopped[what] == 0

    def _end_workers(self) -> None:
        if self._workers is not None:
            self._workers.end(grace_s=0.0)
        leftovers.end_processes(self._mark)
        if self._workers is not None:
            self._workers.drain()
            self._workers = None
        self._network.hosts["cut"] = 0

    def _result(
        self, workers: Workers, first_failed: int | None, elapsed_s: float, before: Counters, meter: LoadMeter
    ) -> RunResult:
        load = meter.finish()
        if load.is_saturated:
            warnings.warn(
                f"the relay was saturated ({load.cpu_share:.0%} of a core, packets {1e3 * load.mean_lateness_s:.1f} ms "
                f"late on average, {load.num_failed_writes} lost): times show the relay rather than the network; use "
                "fewer hosts or less bandwidth",
                SaturationWarning,
                stacklevel=3,
            )
        return RunResult(
            exit_codes=workers.exit_codes,
            first_failed=first_failed,
            elapsed_s=elapsed_s,
            tails=workers.tails,
            counters=self.counters().since(before),
            load=load,
        )

    def _check_open(self) -> None:
        if self._open is None:
            raise LabError("the lab is not open: use it as a context manager")

    def _check_health(self) -> None:
        if self._failure is not None:
            raise LabError(f"the scenario failed: {self._failure}") from self._failure
        if self._relay.failed_host is not None:
            raise LabError(f"the network device of host {self._relay.failed_host} failed, and the relay has ended")
        if not self._relay.is_alive:
            raise LabError("the relay has ended unexpectedly")

    def _note_failure(self, error: Exception) -> None:
        self._failure = error
