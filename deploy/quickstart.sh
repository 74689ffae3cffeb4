#!/usr/bin/env bash
# A complete run of Espalier on this machine: installs the dependencies, builds, starts a
# coordinator with two workers, trains two language models and a small CNN, serves the larger
# language model with token trees drafted by the smaller one, and trains a CNN from Python.
#
#   deploy/quickstart.sh          stops and removes everything at the end
#   deploy/quickstart.sh --keep   leaves the daemon running, with its state
set -euo pipefail
cd "$(dirname "$0")/.."

# The two language models train on windows of 256 bytes, 8 at a time. LLM_STEPS and SSM_STEPS set
# their numbers of steps; the defaults take about four minutes and one minute on two cores.
llm_model=llama:llm llm_steps=${LLM_STEPS:-600}
ssm_model=llama:ssm ssm_steps=${SSM_STEPS:-1000}
sequence=256 batch=8
expansion=1,1,3,1,1
prompt="And it came to pass in those days, that"

keep=false
for arg in "$@"; do
  case $arg in
    --keep) keep=true ;;
    -h | --help)
      sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
      exit 0
      ;;
    *)
      echo "quickstart: unknown option $arg (known: --keep)" >&2
      exit 2
      ;;
  esac
done

begin=$SECONDS
say() { printf '\n[%3d s] %s\n' $((SECONDS - begin)) "$1"; }
# Shows how far a build is that writes to LOG, by the counter of Bazel's last line "[n / m] ...": each
# second in one line of a terminal, elsewhere a line each minute. watch_build LOG
watch_build() {
  local every=60 before='' after='\n' counter next
  if [ -t 1 ]; then every=1 before='\r' after='\033[K'; fi
  next=$((SECONDS + every))
  while sleep 1; do
    if ((SECONDS < next)); then continue; fi
    next=$((SECONDS + every))
    counter=$(grep -o '^\[[0-9,]* / [0-9,]*\]' "$1" | tail -n 1 || true)
    printf '%b[%3d s] building %s%b' "$before" $((SECONDS - begin)) "${counter:-(Bazel starts)}" "$after"
  done
}
# Runs a command with its output in a log, and prints one line with its seconds: phase NAME
# COMMAND...
watcher=
phase() {
  local name=$1 start=$SECONDS log failed=false
  shift
  log=$(mktemp -t espalier-quickstart.XXXXXX)
  if [ "$name" = built ]; then
    echo "building, for some minutes; its output: $log"
    watch_build "$log" &
    watcher=$!
  fi
  "$@" > "$log" 2>&1 < /dev/null || failed=true
  stop_watcher
  if [ "$failed" = true ]; then
    tail -n 30 "$log" >&2
    echo "quickstart: $name failed; all of its output: $log" >&2
    exit 1
  fi
  rm -f "$log"
  printf '[%3d s] %s, %d s\n' $((SECONDS - begin)) "$name" $((SECONDS - start))
}

stop_watcher() {
  [ -n "$watcher" ] || return 0
  kill "$watcher" 2> /dev/null || true
  wait "$watcher" 2> /dev/null || true
  watcher=
  if [ -t 1 ]; then printf '\r\033[K'; fi
}

state=
espalier=
cleanup() {
  local code=$?
  trap - EXIT
  stop_watcher
  if [ -n "$state" ] && [ "$keep" = false ]; then
    if [ -f "$state/espalierd.pid" ]; then "$espalier" down > /dev/null || true; fi
    if [ $code -ne 0 ] && [ -f "$state/espalierd.log" ]; then
      echo "quickstart: the end of the coordinator's log:" >&2
      tail -n 20 "$state/espalierd.log" >&2
    fi
    rm -rf "$state"
  fi
  exit $code
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

echo "1. What is needed"
deploy/install.sh
packages=$SECONDS

say "2. Build"
phase "built" bazel build --config=release //client:espalier //server:espalierd //worker:espalier-worker
espalier=$(bazel info --config=release bazel-bin 2> /dev/null)/client/espalier

# A shorter name for the same file if Bazel's links exist.
[ build/bin/client/espalier -ef "$espalier" ] && espalier=build/bin/client/espalier

say "3. A coordinator with two workers"
state=$(mktemp -d -t espalier-state.XXXXXX)
export ESPALIER_HOME=$state
unset ESPALIER_COORDINATOR ESPALIER_HTTP
"$espalier" up --local-workers=2 --listen=127.0.0.1:0 --http-listen=127.0.0.1:0
"$espalier" status

say "4. The King James Bible"
bible=$(command -v bible || echo /usr/games/bible)
"$bible" -f gen1:1-rev22:21 > "$state/kjv.txt"
echo "$(wc -c < "$state/kjv.txt") bytes; the last 2 % are kept apart for the evaluation"

say "5. Two language models: the LLM"
"$espalier" train --model=$llm_model --dataset="$state/kjv.txt" --sequence-length=$sequence --batch-size=$batch \
  --steps=$llm_steps --lr=2e-3 --schedule=cosine --warmup=20 --clip-norm=1 --holdout=0.02 --print-freq=40 --name=llm
say "   and the SSM, a tenth of its size"
"$espalier" train --model=$ssm_model --dataset="$state/kjv.txt" --sequence-length=$sequence --batch-size=$batch \
  --steps=$ssm_steps --lr=4e-3 --schedule=cosine --warmup=20 --clip-norm=1 --holdout=0.02 --print-freq=100 --name=ssm

say "6. A CNN from an ONNX file, on handwritten digits"
"$espalier" train --onnx=tests/data/digits_cnn.onnx --dataset=tests/data/digits.npz --input labels=y \
  --batch-size=64 --epochs=20 --lr=2e-3 --schedule=cosine --holdout=0.2 --print-freq=100 --name=digits
accuracy=$("$espalier" jobs --json | python3 -c '
import json, sys
jobs = [j for j in json.load(sys.stdin)["jobs"] if j["spec"]["name"] == "digits"]
print(jobs[-1]["evaluation"]["accuracy"])')
python3 -c '
import sys
accuracy = float(sys.argv[1])
print(f"held-out accuracy {accuracy:.2%}")
sys.exit(0 if accuracy >= 0.97 else "quickstart: at least 97 % were expected")' "$accuracy"

say "7. The LLM served with the SSM, over HTTP"
"$espalier" serve llm --ssm=ssm --expansion=$expansion
echo
"$espalier" generate llm "$prompt" --max-tokens=200 --http --compare

say "8. A CNN from Python"
example=client/python/examples/digits.py
address=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["grpc"])' "$state/espalierd.ready")
if python3 -c 'import google.protobuf, grpc, numpy' 2> /dev/null; then
  echo "PYTHONPATH=client/python python3 $example $address"
  PYTHONPATH=client/python python3 $example "$address"
else
  echo "This Python has no grpcio, protobuf or NumPy. In an environment of yours:"
  echo "pip install ./client/python && python $example"
fi

say "done, $((SECONDS - packages)) s after the packages"
if [ "$keep" = true ]; then
  http=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["http"])' "$state/espalierd.ready")
  cat << END
The daemon goes on running. Next:
  export ESPALIER_HOME=$state
  $espalier status
  $espalier explain \$($espalier jobs --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["jobs"][0]["id"])')
  $espalier bench llm --requests=32 --concurrency=8
  curl -N http://$http/v1/completions -H 'Content-Type: application/json' \\
    -d '{"model": "llm", "prompt": "In the beginning", "max_tokens": 64, "stream": true}'
  $espalier models download llm ./llm
  pip install ./client/python && python $example $address
  $espalier down
END
else
  cat << END
Everything is stopped and removed. Next:
  deploy/quickstart.sh --keep                                    the same, and the daemon stays
  $espalier up --local-workers=2                                 a coordinator of your own
  $espalier train --model=llama:tiny -d FILE.txt --steps=200     train on a text of yours
  $espalier plan --model=llama:medium --devices=8 --device-preset=h200
  pip install ./client/python && python $example             train from Python
  $espalier help
END
fi
