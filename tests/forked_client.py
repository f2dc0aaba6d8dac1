"""Stands in for ``python SCRIPT ARGS``: lets a server of `tests.forked` run it here, and ends as it ends.

forked_client.py SERVER SCRIPT ARGS. "Here" is this process's folder, environment, files, niceness and network. Where
the server may not enter this network, the script is started in the usual way.
"""

import json
import os
import socket
import sys


def main(server: str, script: str, args: list[str]) -> None:
    call = {"argv": [script, *args], "folder": os.getcwd(), "environment": dict(os.environ), "niceness": os.nice(0)}
    with socket.socket(socket.AF_UNIX) as connection, open("/proc/self/ns/net") as network:
        connection.connect(server)
        socket.send_fds(connection, [b"f"], [0, 1, 2, network.fileno()])
        connection.sendall(json.dumps(call).encode() + b"\n")
        answer = connection.recv(16).decode()  # nothing, if the server has been ended
    if answer == "refused":
        os.execv(sys.executable, [sys.executable, script, *args])
    os._exit(int(answer or 1))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
