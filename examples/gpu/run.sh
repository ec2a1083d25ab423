#!/bin/sh
# A training job on a GPU is evicted by an urgent job, resumes from its checkpoint, and ends with the same loss
# as an undisturbed run. Needs phalanx and a python3 with PyTorch on the PATH.
# Without a GPU: WIDTH=64 STEP_S=0.05 sh examples/gpu/run.sh --gpus 1
set -eu
cd "$(dirname "$0")/../.."
port=${PORT:-8080}
export PHALANX_SERVER="http://127.0.0.1:$port" NO_COLOR=1
export WIDTH="${WIDTH:-8192}" # tasks inherit it from the worker; the default keeps a GPU busy
folder=$(mktemp -d)
phalanx up --workers 1 --port "$port" --data "$folder/data" "$@" >"$folder/log" 2>&1 &
up=$!
trap 'kill $up 2>/dev/null; wait $up || true; rm -rf "$folder"' EXIT
until phalanx workers --json 2>/dev/null | grep -q '"id"'; do
    kill -0 $up 2>/dev/null || { cat "$folder/log"; exit 1; }
    sleep 0.2
done

typed() {
    printf '\n$ %s\n' "$*"
    "$@"
}

typed phalanx workers
typed phalanx submit -f examples/gpu/train.yaml
typed phalanx logs -f gpu-train | sed '/step 100 /q'
typed phalanx submit -f examples/gpu/urgent.yaml --follow
typed phalanx logs -f gpu-train >"$folder/evicted"
cat "$folder/evicted"
typed phalanx events gpu-train
typed phalanx events gpu-urgent
typed phalanx submit -f examples/gpu/train.yaml --follow >"$folder/undisturbed"
cat "$folder/undisturbed"

loss=$(sed -n 's/.*trained: //p' "$folder/evicted")
test -n "$loss"
if [ "$loss" != "$(sed -n 's/.*trained: //p' "$folder/undisturbed")" ]; then
    echo "the losses differ"
    exit 1
fi
printf '\nThe same with and without the eviction: %s\n' "$loss"
