import shlex
from pathlib import Path

import pytest

from tests import forked

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="session")
def forked_python(tmp_path_factory) -> str:
    """A program to put in the place of `sys.executable`: it runs code in a forked process that has loaded torch."""
    program = tmp_path_factory.mktemp("bin") / "python"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(forked.command(SCRIPTS / "python.py"))} "$@"\n')
    program.chmod(0o755)
    return str(program)
