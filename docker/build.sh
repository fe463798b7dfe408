#!/usr/bin/env bash
# Build dualray's images: dualray/base-deps, dualray/deploy and dualray/examples.
#
#   docker/build.sh [--no-cache] [--tag TAG] [--python 3.11|3.12|3.13] [IMAGE ...]
#
# IMAGE is one of base-deps, deploy and examples; each stands on the one before it, and by default all are built.
# DOCKER names another program than docker: DOCKER=podman docker/build.sh
set -euo pipefail

docker=${DOCKER:-docker}
tag=latest
python=3.12
options=()
images=()

usage() {
    sed -n '2,7s/^# \{0,1\}//p' "$0"
}

while (($# > 0)); do
    case $1 in
        --no-cache) options+=(--no-cache) ;;
        --tag | --python)
            if (($# < 2)); then
                echo "$0: $1 needs a value" >&2
                exit 2
            fi
            if [[ $1 == --tag ]]; then tag=$2; else python=$2; fi
            shift
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        base-deps | deploy | examples) images+=("$1") ;;
        *)
            echo "$0: what is $1?" >&2
            usage >&2
            exit 2
            ;;
    esac
    shift
done
if ((${#images[@]} == 0)); then
    images=(base-deps deploy examples)
fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."

for image in "${images[@]}"; do
    case $image in
        base-deps) set -- --build-arg "PYTHON=$python" --file docker/base/Dockerfile ;;
        deploy) set -- --build-arg "BASE=dualray/base-deps:$tag" --file docker/deploy/Dockerfile ;;
        examples) set -- --build-arg "DEPLOY=dualray/deploy:$tag" --file docker/examples/Dockerfile ;;
    esac
    "$docker" build "${options[@]+"${options[@]}"}" "$@" --tag "dualray/$image:$tag" .
done
