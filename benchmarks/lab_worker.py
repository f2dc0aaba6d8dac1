"""What the hosts do in ``benchmarks/lab.py``; each rank prints one line of JSON."""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import threading
import time

PORT = 6000
RANK, NUM_RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
NETWORK = os.environ["MASTER_ADDR"].rsplit(".", 1)[0]


def accept() -> socket.socket:
    """Wait for the rank before this one in the ring."""
    with socket.create_server((f"{NETWORK}.{RANK + 1}", PORT)) as server:
        server.settimeout(60)
        connection, _ = server.accept()
    connection.settimeout(60)
    return connection


def connect() -> socket.socket:
    """Connect to the next rank in the ring."""
    for _ in range(600):
        try:
            connection = socket.create_connection((f"{NETWORK}.{(RANK + 1) % NUM_RANKS + 1}", PORT), timeout=60)
        except OSError:
            time.sleep(0.05)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
    raise TimeoutError("the next rank does not answer")


def ping(seconds: float) -> dict[str, object]:
    """Rank 0 repeatedly sends a byte around the ring of two; return (time, one-way ms) of each."""
    if RANK == 1:
        with accept() as connection:
            while byte := connection.recv(1):
                connection.sendall(byte)
        return {}
    samples = []
    with connect() as connection:
        end = time.monotonic() + seconds
        while (start := time.monotonic()) < end:
            connection.sendall(b"x")
            connection.recv(1)
            samples.append((start, 500 * (time.monotonic() - start)))
    return {"median_ms": statistics.median(ms for _, ms in samples), "samples": samples}


def bulk(seconds: float, senders: str) -> dict[str, object]:
    """Send to the next rank for some seconds; return the rate of bytes received after the first third."""
    is_sender = senders == "all" or RANK == 0
    result: dict[str, object] = {}

    def receive() -> None:
        with accept() as connection:
            buffer, marks = bytearray(1 << 20), []
            total = 0
            while number := connection.recv_into(buffer):
                total += number
                marks.append((time.monotonic(), total))
        from_s = marks[0][0] + seconds / 3
        counted = [mark for mark in marks if from_s <= mark[0] <= marks[0][0] + seconds]
        (first_s, first), (last_s, last) = counted[0], counted[-1]
        result["mbps"] = (last - first) * 8e-6 / (last_s - first_s)

    is_receiver = senders == "all" or RANK == 1
    receiver = threading.Thread(target=receive)
    if is_receiver:
        receiver.start()
    if is_sender:
        data = memoryview(bytearray(os.urandom(1 << 16)) * 4)
        with connect() as connection:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                connection.sendall(data)
    if is_receiver:
        receiver.join()
    return result


def gloo(num_bytes: int) -> dict[str, object]:
    """Time Gloo's all_reduce and all_gather, in ms."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    x = torch.ones(num_bytes // 4)
    gathered = [torch.empty_like(x) for _ in range(NUM_RANKS)]
    times = {}
    for name, call in (
        ("all_reduce", lambda: dist.all_reduce(x)),
        ("all_gather", lambda: dist.all_gather(gathered, x)),
    ):
        call()
        dist.barrier()
        start = time.monotonic()
        for _ in range(3):
            call()
        times[f"{name}_ms"] = 1e3 * (time.monotonic() - start) / 3
        dist.barrier()
    return dict(times)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "ping":
        print(json.dumps(ping(float(rest[0]))))
    elif what == "bulk":
        print(json.dumps(bulk(float(rest[0]), rest[1])))
    else:
        print(json.dumps(gloo(int(rest[0]))), flush=True)
        os._exit(0)  # torch 2.13 aborts now and then in its own threads when Python exits, under plain torchrun too
