"""Rank 0 plays ping-pong with rank 1 and prints the shortest one-way time in ms. Standard library only."""

import os
import sys
import time

from peers import accept, connect

ROUNDS, PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 10, 5005

if os.environ["RANK"] == "0":
    times = []
    with accept(PORT) as connection:
        for _ in range(ROUNDS):
            start = time.monotonic()
            connection.sendall(b"x")
            assert connection.recv(1) == b"x"
            times.append(500 * (time.monotonic() - start))
    print("one-way ms", round(min(times), 3))
elif os.environ["RANK"] == "1":
    with connect(PORT) as connection:
        for _ in range(ROUNDS):
            connection.sendall(connection.recv(1))
