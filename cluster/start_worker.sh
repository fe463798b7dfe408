#!/usr/bin/env bash
# Start a node on this machine, and join a cluster. For parallel-ssh, which feeds it to a shell on each machine:
#
#   sed 's/^head=.*/head=10.0.0.1:6399/' cluster/start_worker.sh | parallel-ssh -h workers.txt -P -I
#
# The secret lies where start_head.sh has it, and nobody else may read it:
#
#   parallel-ssh -h workers.txt 'mkdir -p -m 700 .dualray'
#   parallel-scp -h workers.txt -x -p ~/.dualray/secret .dualray/secret
set -euo pipefail

head=${HEAD:-}

# A command that ssh runs has no login shell's PATH: name the directory of the environment that dualray is in.
export PATH=${DUALRAY_BIN:-$HOME/.local/bin}:$PATH

if [[ -z $head ]]; then
    echo "which cluster? set HEAD=HOST:PORT, or the line head= of this script" >&2
    exit 2
fi
options=(--address "$head" --secret-file "${DUALRAY_SECRET_FILE:-$HOME/.dualray/secret}")
if [[ -n ${SSH_CONNECTION:-} ]]; then # from where, port, to where, port: the third is this machine's address
    read -r _ _ node_ip _ <<< "$SSH_CONNECTION"
    options+=(--node-ip "$node_ip")
fi
dualray start "${options[@]}"
