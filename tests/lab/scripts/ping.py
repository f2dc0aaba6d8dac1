"""Rank 0 plays ping-pong with rank 1 and prints the median one-way time in ms. Standard library only."""

import os
import socket
import statistics
import sys
import time

ROUNDS, PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 10, 5005
MASTER = os.environ["MASTER_ADDR"]

if os.environ["RANK"] == "0":
    with socket.create_server((MASTER, PORT)) as server:
        server.settimeout(30)
        connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(30)
        times = []
        for _ in range(ROUNDS):
            start = time.monotonic()
            connection.sendall(b"x")
            assert connection.recv(1) == b"x"
            times.append(500 * (time.monotonic() - start))
        print("one-way ms", round(statistics.median(times), 3))
elif os.environ["RANK"] == "1":
    for _ in range(100):
        try:
            connection = socket.create_connection((MASTER, PORT), timeout=30)
            break
        except OSError:
            time.sleep(0.05)
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(ROUNDS):
            connection.sendall(connection.recv(1))
