"""Rank 1 sends bytes to rank 0, which prints the rate in Mbps from the second megabyte on. Standard library only."""

import os
import sys
import time

from peers import accept, connect

NUM_BYTES, PORT = int(float(sys.argv[1])), 5006

if os.environ["RANK"] == "0":
    received, start, counted = 0, 0.0, 0
    buffer = bytearray(1 << 20)
    with accept(PORT) as connection:
        while number := connection.recv_into(buffer):
            received += number
            if not start and received >= 1_000_000:
                start, counted = time.monotonic(), received
    print("Mbps", round((received - counted) * 8e-6 / (time.monotonic() - start), 2))
elif os.environ["RANK"] == "1":
    with connect(PORT) as connection:
        connection.sendall(bytes(NUM_BYTES))
