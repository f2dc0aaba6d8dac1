"""Rank 1 sends bytes to rank 0, which prints the rate, and the best of the parts after the first megabyte, in Mbps.

A process that is held up makes the rate lower, never higher: its time begins before the first byte is sent.
Standard library only.
"""

import os
import sys
import time

from peers import accept, connect

NUM_BYTES, PORT = int(float(sys.argv[1])), 5006
FIRST_BYTES, PART_BYTES = 1_000_000, 400_000


def mbps(first, last):
    return round((last[1] - first[1]) * 8e-6 / (last[0] - first[0]), 2)


if os.environ["RANK"] == "0":
    received, marks = 0, []
    buffer = bytearray(1 << 20)
    with accept(PORT) as connection:
        start = (time.monotonic(), 0)
        connection.sendall(b"x")
        while number := connection.recv_into(buffer):
            received += number
            if received >= (marks[-1][1] + PART_BYTES if marks else FIRST_BYTES):
                marks.append((time.monotonic(), received))
    print("Mbps", mbps(start, (time.monotonic(), received)))
    print("at best", max(map(mbps, marks, marks[1:]), default=0.0))
elif os.environ["RANK"] == "1":
    with connect(PORT) as connection:
        connection.recv(1)
        connection.sendall(bytes(NUM_BYTES))
