"""How rank 0 and rank 1 of a test script find each other. Standard library only."""

import os
import socket
import time

MASTER = os.environ["MASTER_ADDR"]


def accept(port):
    """On rank 0: wait for rank 1."""
    with socket.create_server((MASTER, port)) as server:
        server.settimeout(30)
        connection, _ = server.accept()
    return _prepared(connection)


def connect(port):
    """On rank 1: connect to rank 0, which may not be there yet."""
    for _ in range(100):
        try:
            return _prepared(socket.create_connection((MASTER, port), timeout=60))
        except OSError:
            time.sleep(0.05)
    raise TimeoutError("rank 0 does not answer")


def _prepared(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(60)
    return connection
