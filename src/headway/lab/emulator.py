"""The lab: emulated hosts, the relay between them, and the scenario that changes their links."""

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
from headway.lab.conductor import Action, Conductor
from headway.lab.control import SOCKET_VARIABLE, ControlServer
from headway.lab.hosts import INTERFACE, MAX_HOSTS, Host, address, address_number, route_metrics, tcp_settings
from headway.lab.links import LinkTable, all_tables, link_table
from headway.lab.relay import LoadMeter, Relay, warm_up
from headway.lab.results import Counters, Progress, RunResult
from headway.lab.scenario import Scenario
from headway.lab.sizes import mtu_bytes, window_bytes
from headway.lab.state import apply_links, new_network
from headway.lab.toml import load_scenario
from headway.lab.workers import GRACE_S, Meeting, Output, Workers

MASTER_PORT = 29500

NICENESS = 10
"""Of the workers where the relay may not have real-time priority: it must come first all the same."""

_SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP, "thaw": signal.SIGCONT}


class SaturationWarning(UserWarning):
    """The relay was too busy: times of this run are the relay's and not the network's."""


class Lab:
    """Hosts and links, as long as the context lasts.

        with headway.lab.Lab(4, "wan") as lab:
            result = lab.run(["python", "train.py"])

    Args:
        num_hosts: How many hosts.
        scenario: A scenario, the name of a preset, or a path to a file.
        seed: Of jitter and loss.
        on_action: Called for every phase that comes into force and every event.
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
        """End relay and hosts. Called twice, it does nothing."""
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
        """Start the command on every host, let the scenario happen from its start, and wait until all have ended.

        Nothing that the workers have started is left when this returns or raises.

        Args:
            command: Program and arguments.
            env: Variables beside ours and torchrun's.
            output: Called with (rank, line) for every line a worker prints, from a thread of its own.
            on_progress: Called several times a second.
            timeout_s: When to give up.
            grace_s: How long the others may go on once a rank has failed of its own.
            interrupt_grace_s: How long workers may take to end in order after Ctrl-C; ``grace_s`` if not given.
            on_interrupt: Called when that time begins.

        Raises:
            TimeoutError: The workers had not ended in time.
            LabError: The lab itself broke, or the program could not be started.
        """
        self._check_open()
        if not command:
            raise ValueError("the command is empty: name a program")
        if self._workers is not None:
            raise LabError("a run is under way in this lab: make another lab for a second one")
        self._failure = None
        self._stopped.clear()
        conductor = Conductor(self.scenario, self.num_hosts, self, self._note_failure)
        before, meter, started_s = self.counters(), self._relay.meter(), time.monotonic()

        def check() -> None:
            self._check_health()
            on_progress(
                Progress(
                    elapsed_s=conductor.elapsed_s,
                    phase=conductor.phase,
                    step=conductor.step,
                    counters=self.counters().since(before),
                    load=meter.read(),
                )
            )

        with ExitStack() as stack:
            server = ControlServer(self._folder / "control", conductor.announce)
            stack.callback(server.close)
            extra = {**(env or {}), SOCKET_VARIABLE: str(server.path), leftovers.MARK_VARIABLE: self._mark}
            niceness = 0 if self._relay.is_realtime else NICENESS
            stack.callback(self._end_workers)
            meeting = Meeting(address=address(0), port=MASTER_PORT, interface=INTERFACE)
            self._workers = Workers(
                self._hosts, command, meeting=meeting, extra=extra, output=output, niceness=niceness
            )
            stack.callback(conductor.stop)
            conductor.start()
            try:
                first_failed = self._workers.wait(timeout_s=timeout_s, grace_s=grace_s, check=check)
            except KeyboardInterrupt:
                on_interrupt()
                patience_s = grace_s if interrupt_grace_s is None else interrupt_grace_s
                self._workers.end(grace_s=patience_s, number=signal.SIGINT, check=check)
                raise
            workers = self._workers
        return self._result(workers, first_failed, time.monotonic() - started_s, before, meter)

    def act(self, action: Action) -> None:
        """Carry out what the scenario says; called by the conductor."""
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
        """Return what has gone between every pair since the lab was opened."""
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
        """Count cuts and freezes of a rank, which may overlap: only the first begins one and only the last ends it."""
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
                f"late on average, {load.num_failed_writes} lost): times are the relay's and not the network's; use "
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
            raise LabError(f"the scenario could not go on: {self._failure}") from self._failure
        if self._relay.failed_host is not None:
            raise LabError(f"the network device of host {self._relay.failed_host} failed, and the relay has ended")
        if not self._relay.is_alive:
            raise LabError("the relay has ended unexpectedly")

    def _note_failure(self, error: Exception) -> None:
        self._failure = error
