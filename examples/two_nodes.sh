#!/bin/sh
# Two nodes, one worker each, both on this machine: sh examples/two_nodes.sh
#
# On two machines, run the line of node 0 on the first and that of node 1 on the second, with the first one's address
# instead of 127.0.0.1. Gloo listens on the interface of the host's name; GLOO_SOCKET_IFNAME=eth0 selects another one.
set -eu

script=$(dirname "$0")/plain_ddp.py
port=${MASTER_PORT:-29500}

node() {
    torchrun --nnodes 2 --node-rank "$1" --nproc-per-node 1 \
        --master-addr 127.0.0.1 --master-port "$port" "$script"
}

node 1 &
second=$!
trap 'kill $second 2>/dev/null || true' EXIT
node 0
wait $second
