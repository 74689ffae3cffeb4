#!/usr/bin/env bash
# Builds and tests everything. Prints the seconds of each phase, the ten slowest test targets and what failed; the last line is
# "N passed, N failed", with ", N skipped" where some were. The exit status is 0 only if nothing failed.
#
#   tests/run.sh                  as CI does, with --config=release
#   tests/run.sh --quick          without installing, CUDA and the tests that take long: the inner loop
#   tests/run.sh --asan           under AddressSanitizer and UndefinedBehaviorSanitizer
#   tests/run.sh --tsan           under ThreadSanitizer
#   tests/run.sh --config=NAME    with another configuration of .bazelrc
#
# $ESPALIER_BAZEL_STARTUP holds startup options for Bazel, such as --output_base=DIR.
set -euo pipefail
cd "$(dirname "$0")/.."

config=release quick=no
for arg in "$@"; do
  case $arg in
    --quick) quick=yes ;;
    --asan | --tsan) config=${arg#--} ;;
    --config=?*) config=${arg#--config=} ;;
    -h | --help)
      sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
      exit 0
      ;;
    *)
      echo "run.sh: unknown option $arg (known: --quick, --asan, --tsan, --config=NAME)" >&2
      exit 2
      ;;
  esac
done

read -ra startup <<< "${ESPALIER_BAZEL_STARTUP:-}"
quiet=(--noshow_progress --noshow_loading_progress --ui_event_filters=-info,-debug)
passed=0 failed=0 skipped=0 cached=0 targets=0
phases=() times=$(mktemp -t espalier-times.XXXXXX) failures=$(mktemp -t espalier-failures.XXXXXX) failed_steps=()
environments='' environments_log=$(mktemp -t espalier-environments.XXXXXX)
trap 'rm -f "$times" "$failures" "$environments_log"; [ -z "$environments" ] || kill "$environments" 2> /dev/null' EXIT

say() { echo "[${SECONDS}s] $*"; }

# step NAME COMMAND...: a failed step counts as one failure.
step() {
  local name=$1
  shift
  say "$name"
  local begin=$SECONDS status=0
  "$@" || status=$?
  phases+=("$((SECONDS - begin)) $name")
  if [ "$status" -eq 0 ]; then return 0; fi
  say "$name: FAILED"
  failed=$((failed + 1)) failed_steps+=("$name")
  return 1
}

bazel_() {
  local verb=$1
  shift
  bazel ${startup[@]+"${startup[@]}"} "$verb" "--config=$config" "${quiet[@]}" --keep_going "$@"
}

# run_tests TARGETS...: adds to the counts.
run_tests() {
  say "test $* ($config)"
  local events status=0 begin=$SECONDS p f s c t
  events=$(mktemp -t espalier-tests.XXXXXX)
  # Three at a time, of which one waits for a daemon or a deadline, keep two cores busy.
  bazel_ test --test_output=errors --jobs=3 --local_test_jobs=3 --build_event_json_file="$events" "$@" || status=$?
  read -r p f s c t < <(tools/count_tests.py "$events" "$times" "$failures") || { p=0 f=1 s=0 c=0 t=0; }
  rm -f "$events"
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  cached=$((cached + c)) targets=$((targets + t))
  phases+=("$((SECONDS - begin)) test $*")
  # 3: some tests failed, and they were counted. 4: there are no tests. 1: something did not build, and that was counted.
  case $status in
    0 | 4) ;;
    3) if [ "$f" -eq 0 ]; then failed=$((failed + 1)); fi ;;
    1) if [ "$build_ok" = yes ] && [ "$f" -eq 0 ]; then failed=$((failed + 1)); fi ;;
    *) failed=$((failed + 1)) ;;
  esac
}

finish() {
  echo "seconds of each phase:"
  printf '  %s\n' "${phases[@]}"
  if [ -s "$times" ]; then
    echo "the slowest test targets, in seconds:"
    sort -rn "$times" | sed -n '1,10s/^/  /p'  # head would end sort by SIGPIPE, and with it this script
  fi
  cat "$failures"
  [ ${#failed_steps[@]} -eq 0 ] || printf 'failed: %s\n' "${failed_steps[@]}"
  local line="$passed passed, $failed failed"
  if [ "$skipped" -gt 0 ]; then line+=", $skipped skipped"; fi
  echo "$line"
  [ "$failed" -eq 0 ]
}

# The virtual environments are downloaded while the build keeps the cores busy; nothing but tests needs them.
await_environments() {
  local pid=$environments
  environments=''
  wait "$pid" || { tail -n 20 "$environments_log"; return 1; }
}

if [ $quick = no ]; then
  step "install" deploy/install.sh --tests-packages || { finish; exit 1; }
  deploy/install.sh --environments > "$environments_log" 2>&1 &
  environments=$!
fi
step "format" tools/format.sh --check || true
step "structure" tools/structure/check_includes.py || true
step "local names" tools/structure/check_local_names.py || true
build_ok=yes
step "build //... ($config)" bazel_ build //... || build_ok=no
[ $quick = yes ] || step "environments" await_environments || true
step "python" python3 client/python/tests/lint.py repository || true

nvcc=${CUDA_PATH:-/usr/local/cuda}/bin/nvcc
case $quick-$config in
  yes-* | no-asan | no-tsan) ;;
  *)
    if [ -x "$nvcc" ]; then
      step "build //ops/cuda/... ($config, cuda)" bazel_ build --config=cuda //ops/cuda/... || true
      run_tests --config=cuda //ops/cuda/... //tests/gpu/emulation/...
    fi
    ;;
esac

if [ $quick = yes ]; then
  run_tests --test_size_filters=small //...
else
  run_tests //...
fi
say "done; the results of $cached of $targets test targets came from the cache"
finish
