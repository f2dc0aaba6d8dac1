"""Rank 0 plays ping-pong with rank 1 and prints the shortest one-way time in ms. Standard library only.

ping.py [ROUNDS [FILE]]: with a file, at least this many rounds, and one more once the file exists.
"""

import os
import sys
import time

from peers import accept, connect

ROUNDS, PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 10, 5005
FILE = sys.argv[2] if len(sys.argv) > 2 else "/"

if os.environ["RANK"] == "0":
    times = []
    with accept(PORT) as connection:
        is_last = False
        while not is_last:
            is_last = len(times) + 1 >= ROUNDS and os.path.exists(FILE)
            start = time.monotonic()
            connection.sendall(b"x")
            assert connection.recv(1) == b"x"
            times.append(500 * (time.monotonic() - start))
    print("one-way ms", round(min(times), 3))
elif os.environ["RANK"] == "1":
    with connect(PORT) as connection:
        while byte := connection.recv(1):
            connection.sendall(byte)
