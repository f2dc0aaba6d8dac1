"""The lab without root: runs the command line as root of a user namespace of its own.

The kernel allows a process to enter a new user namespace only while it has one thread, and importing numpy starts some.
So the command line executes this file as a script, which imports nothing of the package before it has entered.
"""

import ctypes
import os
import runpy
import sys

_CLONE_NEWUSER = 0x10000000
ENTERED_VARIABLE = "HEADWAY_LAB_UNPRIVILEGED"


def enter_user_namespace() -> None:
    """Become root of a new user namespace, in which the outer user is mapped to root."""
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), f"no user namespace: {os.strerror(ctypes.get_errno())}")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def restart(arguments: list[str]) -> None:
    """Restart the command line inside a user namespace; does not return."""
    os.environ[ENTERED_VARIABLE] = "1"
    os.execv(sys.executable, [sys.executable, os.path.abspath(__file__), *arguments])


if __name__ == "__main__":
    enter_user_namespace()
    sys.path.pop(0)  # this folder: its modules must not be importable as top-level ones
    sys.argv[0] = "headway"
    runpy.run_module("headway", run_name="__main__", alter_sys=False)
