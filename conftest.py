"""What tests and the examples in docs register is forgotten after each of them."""

from collections.abc import Iterator

import pytest

from headway.collectives import catalogue
from headway.exchange import description
from headway.gossip import topology


@pytest.fixture(autouse=True)
def registers() -> Iterator[None]:
    """Restore the registers of exchanges, algorithms and topologies."""
    registers = [description._REGISTERED, topology._REGISTERED, *catalogue._REGISTERED.values()]
    before = [dict(register) for register in registers]
    yield
    for register, content in zip(registers, before, strict=True):
        register.clear()
        register.update(content)
