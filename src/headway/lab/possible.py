"""Whether a lab is possible on this machine, and what is missing if not."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path

from headway.errors import LabError
from headway.lab.hosts import CLONE_NEWNET, TUN_PATH

_CLONE_NEWUSER = 0x10000000


def missing() -> str | None:
    """Return a sentence that says what is missing and how to get it, or None if a lab is possible."""
    sentence = missing_besides_privilege()
    if sentence is not None or may_make_namespaces():
        return sentence
    if may_make_user_namespaces():
        return "The lab may not make network namespaces: run as root, or through unshare --user --map-root-user."
    return (
        "The lab may not make network namespaces: run as root (in a container with --privileged), "
        "or allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1)."
    )


def missing_besides_privilege() -> str | None:
    """Return what is missing apart from the right to make namespaces, which a user namespace may give."""
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
    """Raise `LabError` with that sentence if a lab is not possible."""
    sentence = missing()
    if sentence is not None:
        raise LabError(sentence)


def may_make_namespaces() -> bool:
    """Return whether it works, by trying on a thread that ends at once: a namespace belongs to a thread."""
    results: list[int] = []
    libc = ctypes.CDLL(None)
    thread = threading.Thread(target=lambda: results.append(libc.unshare(CLONE_NEWNET)))
    thread.start()
    thread.join()
    return results == [0]


def may_make_user_namespaces() -> bool:
    """Return whether it works, by trying in a process of its own, since it must have one thread."""
    code = f"import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare({CLONE_NEWNET | _CLONE_NEWUSER}) != 0)"
    return subprocess.run([sys.executable, "-I", "-S", "-c", code], check=False).returncode == 0
