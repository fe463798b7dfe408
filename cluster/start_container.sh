#!/usr/bin/env bash
# Run a node of a cluster in a container on this machine, on the machine's own network.
#
#   cluster/start_container.sh head NODE_IP [OPTION ...]
#   cluster/start_container.sh HEAD_IP:PORT NODE_IP [OPTION ...]
#
# Options go to `dualray start`. IMAGE (dualray/deploy), SHM_SIZE (2g: the object store lies in there), NAME (dualray),
# GPUS (such as all, where the machine has NVIDIA's container toolkit), DOCKER (docker) and DUALRAY_SECRET_FILE
# (~/.dualray/secret, the same on all machines) come from the environment.
set -euo pipefail

if (($# < 2)); then
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
cluster=$1
node_ip=$2
shift 2

secret=${DUALRAY_SECRET_FILE:-$HOME/.dualray/secret}
if [[ ! -r $secret ]]; then
    echo "there is no secret at $secret: make one with (umask 077; openssl rand -hex 32 > $secret)" >&2
    exit 2
fi
if [[ $cluster == head ]]; then
    start=(--head --port 6399)
else
    start=(--address "$cluster" --object-manager-port 8076)
fi
run=(--detach --init --network host --shm-size "${SHM_SIZE:-2g}" --name "${NAME:-dualray}")
if [[ -n ${GPUS:-} ]]; then
    run+=(--gpus "$GPUS")
fi
# The secret goes in as a variable's value, taken from this environment: no command line shows it, and the file may
# belong to whoever it belongs to.
DUALRAY_SECRET=$(< "$secret")
export DUALRAY_SECRET
# `dualray start` returns when its node has joined; the container lives until the node's processes are stopped with it.
exec "${DOCKER:-docker}" run "${run[@]}" --env DUALRAY_SECRET "${IMAGE:-dualray/deploy}" \
    bash -c 'dualray start "$@" && exec sleep infinity' start "${start[@]}" --node-ip "$node_ip" "$@"
