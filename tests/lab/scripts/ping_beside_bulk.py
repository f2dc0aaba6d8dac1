"""Rank 1 sends 500 kB to rank 0, which prints the shortest one-way time in ms of pings meanwhile."""

import os
import threading
import time

from peers import accept, connect

NUM_BYTES, PING_PORT, BULK_PORT = 500_000, 5005, 5006


def receive(bulk, has_begun):
    received, buffer = 0, bytearray(1 << 20)
    while number := bulk.recv_into(buffer):
        received += number
        if received > NUM_BYTES // 5:
            has_begun.set()


if os.environ["RANK"] == "0":
    with accept(PING_PORT) as connection, accept(BULK_PORT) as bulk:
        has_begun, times = threading.Event(), []
        receiver = threading.Thread(target=receive, args=(bulk, has_begun))
        receiver.start()
        has_begun.wait(60)
        while receiver.is_alive():
            start = time.monotonic()
            connection.sendall(b"x")
            assert connection.recv(1) == b"x"
            if receiver.is_alive():
                times.append(500 * (time.monotonic() - start))
        receiver.join()
    print("one-way ms", round(min(times), 3))
else:
    with connect(PING_PORT) as connection, connect(BULK_PORT) as bulk:
        sender = threading.Thread(target=lambda: (bulk.sendall(bytes(NUM_BYTES)), bulk.shutdown(1)))
        sender.start()
        while byte := connection.recv(1):
            connection.sendall(byte)
        sender.join()
