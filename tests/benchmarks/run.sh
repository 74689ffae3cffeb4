#!/usr/bin/env bash
# Builds and runs all benchmarks and writes espalier-benchmarks-DATE.md into the temporary folder, with machine, load, commit and tables,
# and DATE.json beside it. Takes about eight minutes on two cores; run it on a machine that does nothing else.
#
#   tests/benchmarks/run.sh                  all of: predicted_vs_measured, training_throughput,
#                                            decode_throughput, search_speed, search_optimality
#   tests/benchmarks/run.sh --only=NAME,...  some of them
#   tests/benchmarks/run.sh --out=FILE       the text somewhere else (FILE.json beside it)
#   tests/benchmarks/run.sh --wait=MINUTES   first waits, at most so long, for a load below 1
#   tests/benchmarks/run.sh --note=TEXT      a remark for the head of the text
#
# $ESPALIER_BAZEL_STARTUP holds startup options for Bazel, such as --output_base=DIR.
set -euo pipefail
cd "$(dirname "$0")/../.."

benchmarks=(predicted_vs_measured training_throughput decode_throughput search_speed search_optimality)
out=${TMPDIR:-/tmp}/espalier-benchmarks-$(date -u +%F).md
wait_minutes=0
note=
for arg in "$@"; do
  case $arg in
    --only=?*) IFS=, read -ra benchmarks <<< "${arg#--only=}" ;;
    --out=?*) out=${arg#--out=} ;;
    --wait=?*) wait_minutes=${arg#--wait=} ;;
    --note=?*) note=${arg#--note=} ;;
    -h | --help)
      sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
      exit 0
      ;;
    *)
      echo "run.sh: unknown option $arg (known: --only=NAME, --out=FILE, --wait=MINUTES, --note=TEXT)" >&2
      exit 2
      ;;
  esac
done

read -ra startup <<< "${ESPALIER_BAZEL_STARTUP:-}"
bazel_() { bazel ${startup[@]+"${startup[@]}"} "$@"; }
bazel_ build --config=release --noshow_progress //tests/benchmarks/...
programs=$(bazel_ info --config=release bazel-bin)/tests/benchmarks

load() { cut -d' ' -f1-3 /proc/loadavg; }
say() { echo "[${SECONDS}s] $*" >&2; }

for ((waited = 0; waited < 6 * wait_minutes; ++waited)); do
  read -r one _ < /proc/loadavg
  if awk "BEGIN { exit !($one < 1) }"; then break; fi
  if ((waited == 0)); then say "waiting for a load below 1; it is $one"; fi
  sleep 10
done

parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
commit=$(git rev-parse --short=12 HEAD 2> /dev/null || echo unknown)
if [ -n "$(git status --porcelain 2> /dev/null)" ]; then commit+=" with uncommitted changes"; fi
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
mkdir -p "$(dirname "$out")"
{
  echo "# Benchmarks of $(date -u +%F)"
  echo
  echo "| | |"
  echo "|---|---|"
  echo "| date | $(date -u '+%F %H:%M') UTC |"
  echo "| commit | $commit |"
  echo "| processor | $cpu, $(nproc) cores |"
  echo "| memory | $(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo) |"
  echo "| kernel | $(uname -sr) |"
  echo "| command | \`tests/benchmarks/run.sh${*:+ $*}\` |"
  echo
  echo "The load (averages over 1, 5 and 15 minutes) is given where each benchmark starts and ends; above the"
  echo "number of threads that the benchmark itself runs, others were using the cores too."
  if [ -n "$note" ]; then printf '\n%s\n' "$note"; fi
} > "$parts/text"

for name in "${benchmarks[@]}"; do
  say "$name"
  before=$(load)
  if [ "$name" = training_throughput ]; then
    command=(tests/benchmarks/training_throughput.py --program "$programs/training_steps")
  else
    command=("$programs/$name")
  fi
  "${command[@]}" "--json_file=$parts/$name.json" > "$parts/$name.md"
  {
    echo
    echo "## $name"
    echo
    echo "Load at the start $before, at the end $(load)."
    echo
    cat "$parts/$name.md"
  } >> "$parts/text"
done
sed -i -e :a -e '/^\n*$/{$d;N;ba' -e '}' "$parts/text"
cp "$parts/text" "$out"
/usr/bin/python3 - "$parts" "${out%.md}.json" "$commit" "$cpu" << 'PYTHON'
import json, pathlib, sys, time
folder, out, commit, cpu = sys.argv[1:]
results = [json.loads(path.read_text()) for path in sorted(pathlib.Path(folder).glob("*.json"))]
about = {"date": time.strftime("%FT%TZ", time.gmtime()), "commit": commit, "processor": cpu}
pathlib.Path(out).write_text(json.dumps({**about, "benchmarks": results}, indent=1) + "\n")
PYTHON
say "wrote $out"
