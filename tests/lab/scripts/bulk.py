"""Rank 1 sends bytes to rank 0, which prints the rate in Mbps from the second megabyte on. Standard library only."""

import os
import socket
import sys
import time

NUM_BYTES, PORT = int(float(sys.argv[1])), 5006
MASTER = os.environ["MASTER_ADDR"]

if os.environ["RANK"] == "0":
    with socket.create_server((MASTER, PORT)) as server:
        server.settimeout(30)
        connection, _ = server.accept()
    with connection:
        connection.settimeout(60)
        received, start, counted = 0, 0.0, 0
        buffer = bytearray(1 << 20)
        while number := connection.recv_into(buffer):
            received += number
            if not start and received >= 1_000_000:
                start, counted = time.monotonic(), received
        print("Mbps", round((received - counted) * 8e-6 / (time.monotonic() - start), 2))
elif os.environ["RANK"] == "1":
    for _ in range(100):
        try:
            connection = socket.create_connection((MASTER, PORT), timeout=60)
            break
        except OSError:
            time.sleep(0.05)
    with connection:
        connection.sendall(bytes(NUM_BYTES))
