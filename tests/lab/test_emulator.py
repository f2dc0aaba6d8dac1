"""Real runs: real namespaces, real packets, real processes."""

import os
import sys
import threading
import time
from itertools import pairwise

import pytest

from headway.errors import LabError
from headway.lab import Event, HostRule, Lab, Link, PairRule, Phase, SaturationWarning, Scenario, When

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_possible")]


def _link(latency_s=0.001, bandwidth_bps=1e9, **rest) -> Scenario:
    return Scenario(link=Link(latency_s=latency_s, bandwidth_bps=bandwidth_bps, **rest))


def _run(lab, command, **options):
    lines = []
    result = lab.run(command, output=lambda rank, line: lines.append((rank, line)), timeout_s=60, **options)
    assert result.exit_code == 0, result.tails
    return lines


def _number(lines, word):
    (line,) = [line for _, line in lines if line.startswith(word)]
    return float(line.split()[-1])


@pytest.mark.parametrize("latency_s", [0.005, 0.04])
def test_latency_is_that_of_the_link(latency_s, script):
    with Lab(2, _link(latency_s)) as lab:
        measured_ms = _number(_run(lab, script("ping")), "one-way")
    assert latency_s * 1e3 <= measured_ms < latency_s * 1e3 + 15


def test_rate_is_that_of_the_slowest_part(script):
    scenario = Scenario(
        link=Link(latency_s=0.002, bandwidth_bps=1e8),
        hosts=(HostRule(ranks=(1,), up_bps=2e7),),
    )
    with Lab(2, scenario) as lab:
        assert 14 < _number(_run(lab, script("bulk", 4e6)), "Mbps") < 20.5
        counters = lab.counters()
    assert 4e6 < counters.num_bytes[1, 0] < 4.4e6
    assert counters.num_packets[0, 1] > 0
    assert counters.num_bytes[0, 0] == 0


def test_a_pair_may_be_slower_one_way(script):
    slow = PairRule(sources=(1,), targets=(0,), link=Link(bandwidth_bps=1e7))
    with Lab(2, Scenario(link=Link(bandwidth_bps=1e9), pairs=(slow,))) as lab:
        assert 7 < _number(_run(lab, script("bulk", 3e6)), "Mbps") < 10.3


def test_a_transfer_survives_loss_and_the_loss_is_counted(script):
    with Lab(2, _link(0.001, 1e8, loss=0.01), seed=1) as lab:
        _run(lab, script("bulk", 8e6))
        counters = lab.counters()
    assert 0 < counters.num_lost.sum() < 0.05 * counters.num_packets.sum()


def test_phases_by_time_start_anew_with_every_run(script):
    phases = (Phase(start=When(at_s=0)), Phase(start=When(at_s=1.5), link=Link(latency_s=0.06)))
    seen = []
    scenario = Scenario(link=Link(latency_s=0.002, bandwidth_bps=1e9), phases=phases)
    with Lab(2, scenario, on_action=lambda action: seen.append(action.phase)) as lab:
        late = ["sh", "-c", 'sleep 1.7; exec "$@"', "sh", *script("ping", 10)]
        assert 60 <= _number(_run(lab, late), "one-way") < 75
        assert seen == [0, 1]
        assert _number(_run(lab, script("ping", 10)), "one-way") < 20
        assert seen[:3] == [0, 1, 0]


def test_phases_by_step_follow_the_script(script):
    phases = (Phase(start=When(at_step=0)), Phase(start=When(at_step=5), link=Link(latency_s=0.01)))
    seen = []
    with Lab(2, Scenario(phases=phases), on_action=lambda action: seen.append(action.phase)) as lab:
        _run(lab, script("ticker", 0.6, "steps"))
    assert seen == [None, 0, 1]


def test_cut_and_heal(script):
    cut = Event(kind="cut", ranks=(1,), start=When(at_s=1.0), duration_s=1.0)
    kinds = []
    scenario = Scenario(link=Link(latency_s=0.01, bandwidth_bps=1e8), events=(cut,))
    with Lab(2, scenario, on_action=lambda action: kinds.append(action.kind)) as lab:
        started = time.monotonic()
        _run(lab, script("ping", 100))
        elapsed = time.monotonic() - started
        assert lab.counters().num_lost.sum() > 0
    assert kinds == ["phase", "cut", "heal"]
    assert elapsed > 2.5  # 100 round trips of 20 ms, and the second without a network


def test_kill_hits_one_rank_and_spares_the_others(script):
    kill = Event(kind="kill", ranks=(1,), start=When(at_s=0.5))
    with Lab(3, Scenario(events=(kill,))) as lab:
        lines = []
        result = lab.run(script("ticker", 1.2), output=lambda rank, line: lines.append(rank), timeout_s=30)
    assert result.exit_codes == (0, 137, 0)
    assert result.first_failed is None
    assert result.exit_code == 0
    assert lines.count(1) < lines.count(0) == lines.count(2)


def test_freeze_stops_a_rank_for_a_while(script):
    freeze = Event(kind="freeze", ranks=(1,), start=When(at_step=8), duration_s=1.5)
    with Lab(2, Scenario(events=(freeze,))) as lab:
        lines = _run(lab, script("ticker", 2.0, "steps"))
    gaps = {}
    for rank in (0, 1):
        ticks = [float(line.split()[-1]) for owner, line in lines if owner == rank]
        gaps[rank] = max(after - before for before, after in pairwise(ticks))
    assert gaps[1] > 1.2
    assert gaps[0] < 1.2


def test_the_first_rank_that_fails_gives_the_exit_code():
    code = "import os, sys, time; r = int(os.environ['RANK']); time.sleep(0 if r == 1 else 30); sys.exit(10 + r)"
    with Lab(3, Scenario()) as lab:
        started = time.monotonic()
        result = lab.run([sys.executable, "-c", code], timeout_s=40, grace_s=0.5)
    assert result.first_failed == 1
    assert result.exit_code == 11
    assert time.monotonic() - started < 20


def test_a_run_that_takes_too_long_is_ended():
    with Lab(2, Scenario()) as lab:
        with pytest.raises(TimeoutError, match=r"0\.5 s"):
            lab.run(["sleep", "60"], timeout_s=0.5)
        assert lab.run(["true"], timeout_s=20).exit_code == 0


def test_environment_is_that_of_torchrun():
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT"
    names += " GLOO_SOCKET_IFNAME OMP_NUM_THREADS EXTRA"
    code = f"import os; print(*(os.environ[name] for name in '{names}'.split()))"
    with Lab(2, Scenario()) as lab:
        lines = _run(lab, [sys.executable, "-c", code], env={"EXTRA": "yes"})
    assert sorted(lines) == [(rank, f"{rank} 0 2 1 10.77.0.1 29500 hw0 1 yes") for rank in range(2)]


def test_hosts_see_each_other_and_nothing_else():
    code = (
        "import socket; print([name for _, name in socket.if_nameindex()]);"
        "s = socket.socket(); s.settimeout(2)\n"
        "try: s.connect(('192.0.2.1', 80)); print('reached')\n"
        "except OSError as error: print(error.errno)"
    )
    with Lab(2, Scenario()) as lab:
        lines = [line for rank, line in _run(lab, [sys.executable, "-c", code]) if rank == 0]
    assert lines[0] == "['lo', 'hw0']"
    assert lines[1] == "101"  # no route


def test_a_plain_ddp_script_that_knows_nothing_of_headway(script):
    with Lab(2, _link(0.002, 1e8)) as lab:
        checksums = [line for _, line in _run(lab, script("plain_ddp")) if line.startswith("checksum")]
    assert len(checksums) == 2
    assert len(set(checksums)) == 1


def test_two_labs_at_once_do_not_touch_each_other(script):
    measured = {}

    def measure(latency_s):
        with Lab(2, _link(latency_s)) as lab:
            measured[latency_s] = _number(_run(lab, script("ping", 20)), "one-way")

    threads = [threading.Thread(target=measure, args=(latency_s,)) for latency_s in (0.005, 0.03)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert 5 <= measured[0.005] < 20
    assert 30 <= measured[0.03] < 45


def test_a_lab_leaves_nothing_behind():
    descriptors, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(2):
        with Lab(3, Scenario()) as lab:
            lab.run(["true"], timeout_s=20)
    assert len(set(os.listdir("/proc/self/fd")) - descriptors) <= 1
    assert threading.active_count() == threads


def test_a_broken_device_ends_the_run():
    def remove_device(lab):
        from pyroute2 import IPRoute

        time.sleep(0.5)

        def remove():
            with IPRoute() as netlink:
                netlink.link("del", index=netlink.link_lookup(ifname="hw0")[0])

        lab._hosts[1].call(remove)

    with Lab(2, Scenario()) as lab:
        threading.Thread(target=remove_device, args=(lab,)).start()
        with pytest.raises(LabError, match="device of host 1 failed"):
            lab.run(["sleep", "30"], timeout_s=20)


def test_load_tells_how_hard_the_relay_works(script):
    with Lab(2, _link(0.001, 1e8)) as lab:
        result = lab.run(script("bulk", 4e6), timeout_s=60)
    assert result.load.num_packets > 100
    assert 0 < result.load.cpu_share < 1
    assert not result.load.is_saturated
    assert 4e6 < result.counters.num_bytes[1, 0] < 4.4e6


def test_a_saturated_relay_is_reported(monkeypatch, script):
    monkeypatch.setattr("headway.lab.relay.SATURATED_LOAD", 1e-6)
    with Lab(2, _link(0.001, 1e8)) as lab, pytest.warns(SaturationWarning, match="times are the relay's"):
        lab.run(script("bulk", 2e6), timeout_s=60)


def test_a_small_message_does_not_wait_behind_a_bulk_transfer(script):
    """It waits for one packet of 65 kB at each NIC, 26 ms each, and not for the second that is queued."""
    both = ["sh", "-c", "python=$1; bulk=$2; ping=$3; $python $bulk 12e6 & sleep 0.5; $python $ping 10; wait", "sh"]
    command = [*both, sys.executable, script("bulk")[1], script("ping")[1]]
    with Lab(2, _link(0.005, 2e7)) as lab:
        assert 5 <= _number(_run(lab, command), "one-way") < 5 + 2 * 26 + 10


def test_a_second_run_starts_from_the_first_phase(script):
    scenario = Scenario(
        link=Link(latency_s=0.002, bandwidth_bps=1e9),
        phases=(Phase(start=When(at_s=0.3), link=Link(latency_s=0.06)),),
    )
    with Lab(2, scenario) as lab:
        lab.run(["sleep", "0.5"], timeout_s=20)
        assert _number(_run(lab, script("ping", 3)), "one-way") < 40


def test_overlapping_cuts_heal_with_the_last():
    cuts = tuple(
        Event(kind="cut", ranks=(1,), start=When(at_s=start), duration_s=duration)
        for start, duration in ((0.0, 1.2), (0.2, 0.2))
    )
    seen = []
    with Lab(2, Scenario(events=cuts)) as lab:
        lab._on_action = lambda action: seen.append((action.kind, int(lab._network.hosts["cut"][1])))
        lab.run(["sleep", "1.6"], timeout_s=20)
    assert [pair for pair in seen if pair[0] != "phase"] == [("cut", 1), ("cut", 1), ("heal", 1), ("heal", 0)]


def test_a_callback_that_fails_is_heard_of(script):
    def fail(rank, line):
        raise ArithmeticError("meant to fail")

    with Lab(2, Scenario()) as lab:
        with pytest.raises(ArithmeticError, match="meant to fail"):
            lab.run(script("ticker", 20), output=fail, timeout_s=30)
        assert lab.run(["true"], timeout_s=20).exit_code == 0


def test_misuse_is_refused():
    with Lab(2, Scenario()) as lab:
        with pytest.raises(LabError, match="open already"):
            lab.__enter__()
        with pytest.raises(ValueError, match="command is empty"):
            lab.run([])


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
