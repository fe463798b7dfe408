#!/bin/sh
# The stop script of 2017, over `dualray stop`: ends every node that this user has started on this machine.
set -eu
exec "${DUALRAY_PYTHON:-python}" -m dualray stop "$@"
