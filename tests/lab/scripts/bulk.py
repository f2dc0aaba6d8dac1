"""Rank 1 sends bytes to rank 0, which prints the rate from the second megabyte on, and the best of its parts, in Mbps.

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
        while number := connection.recv_into(buffer):
            received += number
            if received >= (marks[-1][1] + PART_BYTES if marks else FIRST_BYTES):
                marks.append((time.monotonic(), received))
    print("Mbps", mbps(marks[0], (time.monotonic(), received)))
    print("at best", max(map(mbps, marks, marks[1:]), default=0.0))
elif os.environ["RANK"] == "1":
    with connect(PORT) as connection:
        connection.sendall(bytes(NUM_BYTES))
