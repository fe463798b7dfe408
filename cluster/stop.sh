#!/usr/bin/env bash
# End this user's nodes on this machine: parallel-ssh -h workers.txt -P -I < cluster/stop.sh
set -euo pipefail

export PATH=${DUALRAY_BIN:-$HOME/.local/bin}:$PATH
dualray stop
