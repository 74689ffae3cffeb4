#!/usr/bin/env bash
# The main job with a GPU for a worker: trains two language models and a CNN on it, proves that token trees change
# no answer of the pair served there, and prints what it took.
#
#   tests/gpu/job.sh BUNDLE [DEVICE]    the bundle of tests/gpu/run.sh; DEVICE is cuda:0, or cpu to try the script
#
# LLM_STEPS and SSM_STEPS change how long the models are trained. The last line is "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/../.."
bundle=$(realpath "$1") device=${2:-cuda:0}
espalier=$bundle/espalier
# Our programs alone see the bundle's libraries.
# shellcheck source=tests/gpu/libraries.sh
source tests/gpu/libraries.sh
libraries=$(gpu_libraries "$bundle")
run() { LD_LIBRARY_PATH=$libraries "$@"; }

passed=0 failed=0 begin=$SECONDS
# step NAME COMMAND...: a check, with its output and its seconds.
step() {
  local name=$1 start=$SECONDS
  shift
  echo "--- $name"
  local code=0
  run "$@" < /dev/null || code=$?
  if [ $code -eq 0 ]; then
    passed=$((passed + 1))
    echo "passed  $name, $((SECONDS - start)) s"
  else
    failed=$((failed + 1))
    echo "FAILED  $name (exit $code), $((SECONDS - start)) s"
    tail -n 5 "$state/worker.log"
  fi
}

ESPALIER_HOME=$(mktemp -d -t espalier-gpu.XXXXXX)
export ESPALIER_HOME
state=$ESPALIER_HOME worker=
touch "$state/worker.log"
cleanup() {
  [ -z "$worker" ] || kill "$worker" 2> /dev/null
  run "$espalier" down > /dev/null 2>&1
  rm -rf "$state"
}
trap cleanup EXIT

step "a coordinator" "$espalier" up --local-workers=0 --listen=127.0.0.1:0 --http-listen=127.0.0.1:0
coordinator=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["grpc"])' "$state/espalierd.ready")
LD_LIBRARY_PATH=$libraries "$bundle/espalier-worker" --coordinator="$coordinator" \
  --device="$device" --swap-dir="$state/swap" > "$state/worker.log" 2>&1 &
worker=$!
for _ in $(seq 150); do
  run "$espalier" status --json | grep -q '"worker_id"' && break
  kill -0 "$worker" 2> /dev/null || break
  sleep 0.2
done
step "the worker" "$espalier" status

gunzip -c "$bundle/kjv.txt.gz" > "$state/kjv.txt"
text=(--dataset="$state/kjv.txt" --sequence-length=256 --batch-size=8 --schedule=cosine --warmup=20 --clip-norm=1
  --holdout=0.02 --print-freq=200)
step "training the LLM" "$espalier" train --model=llama:llm "${text[@]}" --steps="${LLM_STEPS:-600}" --lr=2e-3 --name=llm
step "training the SSM" "$espalier" train --model=llama:ssm "${text[@]}" --steps="${SSM_STEPS:-1000}" --lr=4e-3 --name=ssm
step "in bf16" "$espalier" train --model=llama:ssm "${text[@]}" --steps=100 --lr=4e-3 --precision=bf16 --name=half
step "a CNN from ONNX" "$espalier" train --onnx=tests/data/digits_cnn.onnx --dataset=tests/data/digits.npz \
  --input labels=y --batch-size=64 --epochs=20 --lr=2e-3 --schedule=cosine --holdout=0.2 --print-freq=200 --name=digits

place=(--tensor-parallel=1 --ssm=ssm --ssm-tensor-parallel=1)
step "no answer changes" "$espalier" verify-lossless --llm=llm "${place[@]}" --expansion=1,1,3,1,1 --draws=4000
for weights in bf16 f16 int8 int4; do
  step "no answer changes, $weights, tuned" "$espalier" verify-lossless --llm=llm "${place[@]}" --weights=$weights \
    --kv-cache=bf16 --draws=4000
done
step "no answer changes, streamed weights" "$espalier" verify-lossless --llm=llm "${place[@]}" \
  --resident-weights=4000000 --draws=4000
prompt="And it came to pass in those days, that"
for weights in f32 bf16 f16 int8 int4; do
  step "serving in $weights" "$espalier" serve llm "${place[@]}" --weights=$weights
  step "one request, $weights" "$espalier" generate llm "$prompt" --max-tokens=200 --compare
  step "its speed, $weights" "$espalier" bench llm --pp=192 --tg=64 --repetitions=3
  step "the same without speculation" "$espalier" bench llm --tg=64 --repetitions=3 --no-speculation
  step "requests at once, $weights" "$espalier" bench llm --requests=64 --concurrency=16
  step "no more serving" "$espalier" unserve llm
done
echo "the main job on $device took $((SECONDS - begin)) s"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
