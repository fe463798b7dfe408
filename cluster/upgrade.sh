#!/usr/bin/env bash
# Bring dualray on this machine to another version, which must be the same on all machines of a cluster; stop first.
#
#   make build && parallel-scp -h workers.txt dist/dualray-0.2.0-py3-none-any.whl .
#   sed 's/^source=.*/source=dualray-0.2.0-py3-none-any.whl/' cluster/upgrade.sh | parallel-ssh -h workers.txt -P -t 0 -I
#
# `source` is what pip installs: a wheel that lies on every machine, or a requirement.
set -euo pipefail

source=${SOURCE:-}

if [[ -z $source ]]; then
    echo "to which version? set SOURCE=WHEEL, or the line source= of this script" >&2
    exit 2
fi
export PATH=${DUALRAY_BIN:-$HOME/.local/bin}:$PATH
python3 -m pip install --upgrade "$source"
dualray version
