"""Is a lab possible on this machine, and if not, what is missing?"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from pathlib import Path

from headway.errors import LabError
from headway.lab.hosts import CLONE_NEWNET, TUN_PATH

_CLONE_NEWUSER = 0x10000000


def missing() -> str | None:
    """Return one sentence on what is missing and how to get it, or None where a lab is possible."""
    sentence = missing_beside_privilege()
    if sentence is None and not may_make_namespaces():
        sentence = (
            "The lab may not make network namespaces: run as root (in a container with --cap-add NET_ADMIN,SYS_ADMIN), "
            "or allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1)."
        )
    return sentence


def missing_beside_privilege() -> str | None:
    """Return what is missing beside the right to make namespaces, which a user namespace may give."""
    if sys.platform != "linux":
        return "The lab needs Linux: it is made of network namespaces."
    if importlib.util.find_spec("pyroute2") is None:
        return "The lab needs pyroute2: pip install 'headway[lab]'."
    if not Path(TUN_PATH).exists():
        return f"The lab needs {TUN_PATH}: modprobe tun, or start the container with --device {TUN_PATH}."
    if not os.access(TUN_PATH, os.R_OK | os.W_OK):
        return f"The lab may not open {TUN_PATH}: run as root, or chmod 666 {TUN_PATH}."
    return None


def check() -> None:
    """Raise LabError with that sentence where a lab is not possible."""
    sentence = missing()
    if sentence is not None:
        raise LabError(sentence)


def may_make_namespaces(*, with_user_namespace: bool = False) -> bool:
    """Try it, in a child of our own."""
    flags = CLONE_NEWNET | (_CLONE_NEWUSER if with_user_namespace else 0)
    libc = ctypes.CDLL(None)
    child = os.fork()
    if child == 0:
        os._exit(0 if libc.unshare(flags) == 0 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
