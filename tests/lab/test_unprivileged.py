"""The lab without root. As root, we first become somebody else: uid 1000 of a user namespace, with no capability."""

import subprocess
import sys

import pytest

from headway.lab import possible

AS_SOMEBODY_ELSE = """
import ctypes, os, sys
user, group = os.getuid(), os.getgid()
if ctypes.CDLL(None).unshare(0x10000000) != 0:
    sys.exit(99)
for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {user} 1"), ("gid_map", f"1000 {group} 1")):
    open(f"/proc/self/{name}", "w").write(text)
assert os.geteuid() == 1000
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_possible")]


def _as_somebody_else(*args):
    result = subprocess.run(
        [sys.executable, "-c", AS_SOMEBODY_ELSE, *args], capture_output=True, text=True, timeout=100
    )
    if result.returncode == 99:
        pytest.skip("this kernel allows no user namespaces")
    return result


@pytest.mark.skipif(not possible.may_make_user_namespaces(), reason="this kernel allows no user namespaces")
def test_hosts_talk_without_root(script):
    result = _as_somebody_else("-m", "headway", "emulate", "-n", "2", "--latency", "15ms", "--", *script("ping", 30))
    assert result.returncode == 0, result.stderr
    (line,) = result.stdout.splitlines()
    assert 15 <= float(line.split()[-1]) < 30  # the shortest of many


def test_it_is_really_somebody_else():
    code = "import os; from headway.lab import possible; print(os.geteuid(), possible.may_make_namespaces())"
    result = _as_somebody_else("-c", code)
    assert result.stdout.split() == ["1000", "False"], result.stderr
