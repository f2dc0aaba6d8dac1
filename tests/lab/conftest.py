import sys
from pathlib import Path

import pytest

from headway.lab import possible

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="session")
def lab_possible() -> None:
    """Skip where there can be no lab, and say why."""
    sentence = possible.missing()
    if sentence is not None:
        pytest.skip(sentence)


@pytest.fixture
def script():
    """The command that runs one of the scripts of these tests."""
    return lambda name, *args: [sys.executable, str(SCRIPTS / f"{name}.py"), *map(str, args)]
