"""Real runs: real namespaces, real packets, real processes."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from headway.errors import LabError
from headway.lab import Event, HostRule, Lab, LinkSpec, PairRule, Phase, SaturationWarning, Scenario, When
from tests import forked

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_possible")]


@pytest.fixture(scope="module")
def plain_lab():
    """Three hosts on a network without limits, for tests of commands rather than links."""
    with Lab(3, Scenario()) as lab:
        yield lab


def _link(latency_s=0.001, bandwidth_bps=1e9, **rest) -> Scenario:
    return Scenario(link=LinkSpec(latency_s=latency_s, bandwidth_bps=bandwidth_bps, **rest))


def _run(lab, command, **options):
    lines = []
    result = lab.run(command, output=lambda rank, line: lines.append((rank, line)), timeout_s=60, **options)
    assert result.exit_code == 0, result.tails
    return lines


def _until(path) -> str:
    """Wait for a file, in the shell."""
    return f"until [ -e '{path}' ]; do sleep 0.02; done"


def _wait_until(condition) -> bool:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())


def _number(lines, word):
    (line,) = [line for _, line in lines if line.startswith(word)]
    return float(line.split()[-1])


def test_rate_is_that_of_the_slowest_part_and_traffic_and_load_are_measured(script, monkeypatch):
    scenario = Scenario(
        link=LinkSpec(latency_s=0.002, bandwidth_bps=1e8),
        hosts=(HostRule(ranks=(1,), up_bps=2e7),),
    )
    with Lab(2, scenario) as lab:
        lines = []
        result = lab.run(script("bulk", 3e6), output=lambda rank, line: lines.append((rank, line)), timeout_s=60)
        counters, was_saturated = lab.counters(), result.load.is_saturated
        monkeypatch.setattr("headway.lab.results.SATURATED_LOAD", 1e-6)
        with pytest.warns(SaturationWarning, match="times show the relay rather than the network"):
            second = lab.run(script("bulk", 1.1e6), timeout_s=60)
    assert _number(lines, "Mbps") < 20
    assert was_saturated or _number(lines, "at best") > 10
    assert 3e6 < counters.num_bytes[1, 0] < 3.4e6
    assert counters.num_packets[0, 1] > 0
    assert counters.num_bytes[0, 0] == 0
    assert (result.counters.num_bytes == counters.num_bytes).all()
    assert 1.1e6 < second.counters.num_bytes[1, 0] < 1.3e6
    assert result.load.num_packets > 100
    assert 0 < result.load.cpu_share < 1


def test_a_pair_may_be_slower_one_way(script):
    slow = PairRule(sources=(1,), targets=(0,), link=LinkSpec(bandwidth_bps=1e7))
    with Lab(2, Scenario(link=LinkSpec(bandwidth_bps=1e9), pairs=(slow,))) as lab:
        assert _number(_run(lab, script("bulk", 8e5)), "Mbps") < 10


def test_a_transfer_survives_loss_and_the_loss_is_counted(script):
    with Lab(2, _link(0.001, 1e8, loss=0.01), seed=1) as lab:
        _run(lab, script("bulk", 8e6))
        counters = lab.counters()
    assert 0 < counters.num_lost.sum() < 0.05 * counters.num_packets.sum()


def test_phases_by_time_restart_with_every_run(script, tmp_path):
    phases = (Phase(start=When(at_s=0)), Phase(start=When(at_s=0.3), link=LinkSpec(latency_s=0.06)))
    is_second = tmp_path / "second phase"
    seen = []
    scenario = Scenario(link=LinkSpec(latency_s=0.002, bandwidth_bps=1e9), phases=phases)
    with Lab(2, scenario) as lab:

        def note(action):
            seen.append((action.phase, float(lab._network.links["delay_s"][0, 1])))
            if action.phase == 1:
                is_second.touch()

        lab._on_action = note
        late = ["sh", "-c", f'{_until(is_second)}; exec "$@"', "sh", *script("ping", 10)]
        assert _number(_run(lab, late), "one-way") >= 60
        assert seen == [(0, 0.002), (1, 0.06)]
        _run(lab, ["true"])
        assert seen[2] == (0, 0.002)


def test_cut_and_heal(script, tmp_path):
    """The cut lasts until a packet is lost, and pings go on until it has healed."""
    cut = Event(kind="cut", ranks=(1,), start=When(at_s=0.3), duration_s=0.1)
    healed = tmp_path / "healed"
    kinds, lost = [], []
    with Lab(2, Scenario(link=LinkSpec(latency_s=0.01, bandwidth_bps=1e8), events=(cut,))) as lab:

        def note(action):
            kinds.append(action.kind)
            if action.kind == "cut":
                lost.append(_wait_until(lambda: lab.counters().num_lost.sum() > 0))
            elif action.kind == "heal":
                healed.touch()

        lab._on_action = note
        _run(lab, script("ping", 10, healed))
    assert kinds == ["phase", "cut", "heal"]
    assert lost == [True]


def test_phases_by_step_follow_the_script_and_events_affect_only_their_rank(script, tmp_path):
    """Rank 1 is frozen until rank 0 has gone on for a while; rank 2 would go on for ever."""
    phases = (Phase(start=When(at_step=0)), Phase(start=When(at_step=5), link=LinkSpec(latency_s=0.01)))
    freeze = Event(kind="freeze", ranks=(1,), start=When(at_step=6), duration_s=0.01)
    kill = Event(kind="kill", ranks=(2,), start=When(at_step=7))
    actions, ticks = [], {rank: [] for rank in range(3)}
    frozen, all_done = [], tmp_path / "all done"

    def note(action):
        actions.append(action)
        if action.kind == "freeze":
            frozen.append(time.monotonic())
            enough = len(ticks[0]) + 10
            assert _wait_until(lambda: len(ticks[0]) >= enough)
            frozen.append(time.monotonic())
        if {"kill", "thaw"} <= {each.kind for each in actions}:
            all_done.touch()

    with Lab(3, Scenario(phases=phases, events=(freeze, kill)), on_action=note) as lab:
        result = lab.run(
            script("ticker", all_done),
            output=lambda rank, line: ticks[rank].append(float(line.split()[-1])),
            timeout_s=60,
        )
    in_force = [action.phase for action in actions if action.kind == "phase"]
    assert in_force in ([None, 0, 1], [None, 1])  # steps that come together are taken together
    assert sorted(action.kind for action in actions if action.kind != "phase") == ["freeze", "kill", "thaw"]
    assert result.exit_codes == (0, 0, 137)
    assert result.first_failed is None
    assert result.exit_code == 0
    during = {rank: sum(frozen[0] + 0.05 < tick < frozen[1] for tick in ticks[rank]) for rank in (0, 1)}
    assert during[0] > during[1] == 0


def test_the_first_rank_that_fails_gives_the_exit_code(plain_lab):
    code = "import os, sys, time; r = int(os.environ['RANK']); time.sleep(0 if r == 1 else 30); sys.exit(10 + r)"
    started = time.monotonic()
    result = plain_lab.run([sys.executable, "-c", code], timeout_s=40, grace_s=0.5)
    assert result.first_failed == 1
    assert result.exit_code == 11
    assert time.monotonic() - started < 20


def test_a_run_that_takes_too_long_is_ended(plain_lab):
    with pytest.raises(TimeoutError, match=r"0\.5 s"):
        plain_lab.run(["sleep", "60"], timeout_s=0.5)
    assert plain_lab.run(["true"], timeout_s=20).exit_code == 0


def test_hosts_have_the_environment_of_torchrun_and_see_nothing_but_each_other(plain_lab):
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT"
    names += " GLOO_SOCKET_IFNAME OMP_NUM_THREADS EXTRA"
    code = (
        f"import os, socket; print(*(os.environ[name] for name in '{names}'.split()),"
        " [name for _, name in socket.if_nameindex()], end=' ');"
        "s = socket.socket(); s.settimeout(2)\n"
        "try: s.connect(('192.0.2.1', 80)); print('reached')\n"
        "except OSError as error: print(error.errno)"
    )
    lines = _run(plain_lab, [sys.executable, "-c", code], env={"EXTRA": "yes"})
    no_route = 101
    expected = "0 3 1 10.77.0.1 29500 hw0 1 yes ['lo', 'hw0']"
    assert sorted(lines) == [(rank, f"{rank} {expected} {no_route}") for rank in range(3)]


def test_a_plain_ddp_script_that_knows_nothing_of_headway(script):
    with Lab(2, _link(0.002, 1e8)) as lab:
        command = forked.command(Path(script("plain_ddp")[1]))
        checksums = [line for _, line in _run(lab, command) if line.startswith("checksum")]
    assert len(checksums) == 2
    assert len(set(checksums)) == 1


def test_two_labs_at_once_have_the_latency_of_their_own_link(script):
    measured = {}

    def measure(latency_s, num_pings):
        with Lab(2, _link(latency_s)) as lab:
            measured[latency_s] = _number(_run(lab, script("ping", num_pings)), "one-way")

    threads = [threading.Thread(target=measure, args=each) for each in ((0.005, 40), (0.08, 6))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert 5 <= measured[0.005] < 80 <= measured[0.08]


def test_a_lab_leaves_nothing_behind():
    descriptors, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(2):
        with Lab(3, Scenario()) as lab:
            lab.run(["true"], timeout_s=20)
    assert len(set(os.listdir("/proc/self/fd")) - descriptors) <= 1
    assert threading.active_count() == threads


def test_a_broken_device_ends_the_run():
    has_begun = threading.Event()

    def remove_device(lab):
        from pyroute2 import IPRoute

        has_begun.wait(20)

        def remove():
            with IPRoute() as netlink:
                netlink.link("del", index=netlink.link_lookup(ifname="hw0")[0])

        lab._hosts[1].call(remove)

    with Lab(2, Scenario(), on_action=lambda _: has_begun.set()) as lab:
        threading.Thread(target=remove_device, args=(lab,)).start()
        with pytest.raises(LabError, match="device of host 1 failed"):
            lab.run(["sleep", "30"], timeout_s=20)


def test_a_small_message_does_not_wait_behind_a_bulk_transfer(script):
    """Behind what the other connection has queued, every one would take more than 100 ms; so the shortest tells."""
    with Lab(2, _link(0.005, 2e6)) as lab:
        assert 5 <= _number(_run(lab, script("ping_beside_bulk")), "one-way") < 60


def test_overlapping_cuts_heal_with_the_last(tmp_path):
    cuts = tuple(
        Event(kind="cut", ranks=(1,), start=When(at_s=start), duration_s=duration)
        for start, duration in ((0.0, 0.8), (0.1, 0.2))
    )
    healed = tmp_path / "healed"
    seen = []
    with Lab(2, Scenario(events=cuts)) as lab:

        def note(action):
            seen.append((action.kind, int(lab._network.hosts["cut"][1])))
            if seen[-1] == ("heal", 0):
                healed.touch()

        lab._on_action = note
        lab.run(["sh", "-c", _until(healed)], timeout_s=20)
    assert [pair for pair in seen if pair[0] != "phase"] == [("cut", 1), ("cut", 1), ("heal", 1), ("heal", 0)]


def test_an_error_in_the_output_callback_ends_the_run(plain_lab, script, tmp_path):
    def fail(rank, line):
        raise ArithmeticError("meant to fail")

    with pytest.raises(ArithmeticError, match="meant to fail"):
        plain_lab.run(script("ticker", tmp_path / "never"), output=fail, timeout_s=30)
    assert plain_lab.run(["true"], timeout_s=20).exit_code == 0


def test_misuse_is_rejected(plain_lab):
    with pytest.raises(LabError, match="open already"):
        plain_lab.__enter__()
    with pytest.raises(ValueError, match="command is empty"):
        plain_lab.run([])


def test_a_lab_that_is_not_open_says_so():
    lab = Lab(2, Scenario())
    with pytest.raises(LabError, match="not open"):
        lab.run(["true"])
    with pytest.raises(LabError, match="not open"):
        lab.counters()


@pytest.mark.parametrize("num_hosts", [0, 251])
def test_the_number_of_hosts_is_limited(num_hosts):
    with pytest.raises(ValueError, match=f"number of hosts is {num_hosts}"):
        Lab(num_hosts, Scenario())
