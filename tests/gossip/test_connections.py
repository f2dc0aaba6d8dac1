"""However a script ends, its processes exit cleanly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("scripts") / "ending.py"


def test_every_way_to_end_is_clean(tmp_path):
    """By destroying the process group without closing the optimizer, and by just ending."""
    ways = ("destroy", "just end")
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(tmp_path / way), str(rank), way],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for way in ways
        for rank in range(2)
    ]
    try:
        for process in processes:
            printed, errors = process.communicate(timeout=60)
            assert (process.returncode, printed) == (0, "done\n"), errors
            assert "Traceback" not in errors
    finally:
        for process in processes:
            process.kill()
            process.communicate()
