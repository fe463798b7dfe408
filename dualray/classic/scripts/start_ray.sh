#!/bin/sh
# The start script of 2017, over `dualray start`.
#
#   start_ray.sh --head --redis-port=6379 [--num-cpus=N] [--num-gpus=N] [--num-workers=N]
#   start_ray.sh --redis-address=HOST:PORT [--num-cpus=N] [--num-gpus=N] [--object-manager-port=N]
#
# All of a node goes through one port, and the number of workers is the cluster's: what 2017 asked for besides is named
# and left out. A node that joins needs the cluster's secret: --secret-file=FILE, or DUALRAY_SECRET.
set -eu

is_head=no
for argument in "$@"; do
    if [ "$argument" = --head ]; then is_head=yes; fi
done

left_out() {
    echo "start_ray.sh: $1 left out: $2" >&2
}

count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    case $argument in
        --redis-port=* | --redis-address=* | --node-ip-address=* | --num-workers=* | --object-manager-port=*)
            name=${argument%%=*}
            value=${argument#*=}
            ;;
        --redis-port | --redis-address | --node-ip-address | --num-workers | --object-manager-port)
            name=$argument
            if [ "$count" -eq 0 ]; then
                echo "start_ray.sh: $name needs a value" >&2
                exit 2
            fi
            value=$1
            shift
            count=$((count - 1))
            ;;
        *)
            set -- "$@" "$argument"
            continue
            ;;
    esac
    case $name:$is_head in
        --redis-port:*) set -- "$@" "--port=$value" ;;
        --redis-address:*) set -- "$@" "--address=$value" ;;
        --node-ip-address:*) set -- "$@" "--node-ip=$value" ;;
        --num-workers:yes | --object-manager-port:no) set -- "$@" "$name=$value" ;;
        --num-workers:no) left_out "$name" "a node that joins has as many as the head was given" ;;
        --object-manager-port:yes) left_out "$name" "everything of the head's node goes through --redis-port" ;;
    esac
done

exec "${DUALRAY_PYTHON:-python}" -m dualray start "$@"
