"""docs/architecture.md is true to the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
SOURCE = DOCS.parent / "src" / "headway"


def test_the_picture_of_the_rooms_is_up_to_date():
    command = [sys.executable, str(DOCS / "draw_architecture.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_name_in_the_text_is_in_the_file_it_is_said_to_be_in():
    """The page names functions as `room/file.py: name`."""
    named = re.findall(r"`([a-z_/]+\.py): ([\w.]+)`", (DOCS / "architecture.md").read_text())
    assert len(named) > 20
    for path, name in named:
        defined = (SOURCE / path).read_text()
        for part in name.split("."):
            assert re.search(rf"(def|class) {part}\b|^{part}\b", defined, re.M), f"{part} is not in {path}"
