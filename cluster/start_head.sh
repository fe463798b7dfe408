#!/usr/bin/env bash
# Start a cluster's head, and a node with it, on this machine.
#
#   cluster/start_head.sh NODE_IP [OPTION ...]
#
# NODE_IP is this machine's address for the others. Options go to `dualray start --head`: --port, --num-cpus,
# --num-gpus, --num-workers, ... The secret is ~/.dualray/secret, or the file that DUALRAY_SECRET_FILE names; it is
# drawn when there is none.
set -euo pipefail

if (($# < 1)); then
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
node_ip=$1
shift

secret=${DUALRAY_SECRET_FILE:-$HOME/.dualray/secret}
if [[ ! -e $secret ]]; then
    mkdir -p "$(dirname "$secret")"
    (umask 077 && python3 -c 'import secrets; print(secrets.token_hex(32))' > "$secret")
    echo "a new secret: $secret"
fi
exec dualray start --head --node-ip "$node_ip" --secret-file "$secret" "$@"
