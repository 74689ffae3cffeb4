#!/usr/bin/env bash
# Compares the CUDA plug-in on a GPU with the CPU kernels, and with PyTorch: tests/conformance's operators_test
# and splits_test, where there is a Python with PyTorch. Then the main job (job.sh) with the GPU for a worker.
#
#   tests/gpu/run.sh             builds a bundle, and runs it if there is a GPU here
#   tests/gpu/run.sh --bench     measures instead: linear and quantized_linear in TFLOP/s, paged_attention in GB/s
#   tests/gpu/run.sh --build     builds the bundle only, build/gpu-bundle and build/gpu-bundle.tar.xz
#   tests/gpu/run.sh --no-build  runs the bundle that is there (unpacking the archive if need be): for a
#                                machine with a GPU and CUDA 13 but no build tools
#   tests/gpu/run.sh --kernels, --conformance, --job   one of the three parts alone
# Other options go to the program that compares with the CPU kernels, and leave out the other parts: --only=TEXT,
# --verbose.
#
# The last line is "N passed, N failed", with ", N skipped" where there is no GPU.
# $ESPALIER_BAZEL_STARTUP holds startup options for Bazel, such as --output_base=DIR.
set -euo pipefail
cd "$(dirname "$0")/../.."
bundle=build/gpu-bundle
build=yes run=yes part=all
options=()
for arg in "$@"; do
  case $arg in
    --build) run=no ;;
    --no-build) build=no ;;
    -h | --help)
      sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
      exit 0
      ;;
    --kernels | --conformance | --job) part=${arg#--} ;;
    *)
      options+=("$arg")
      part=kernels
      ;;
  esac
done

fail() {
  echo "run.sh: $*" >&2
  echo "0 passed, 1 failed"
  exit 1
}

# The libraries that the program needs and that another machine may lack: all but the C library's own.
copy_libraries() {
  mkdir -p "$bundle/lib"
  ldd "$1" | awk '$3 ~ /^\// {print $3}' | while read -r library; do
    case $(basename "$library") in
      libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | ld-linux*) ;;
      *) cp -L "$library" "$bundle/lib/" ;;
    esac
  done
}

if [ "$build" = yes ]; then
  read -ra startup <<< "${ESPALIER_BAZEL_STARTUP:-}"
  bazel_() { bazel ${startup[@]+"${startup[@]}"} "$@" --noshow_progress --ui_event_filters=-info,-debug; }
  rm -rf "$bundle" "$bundle.tar.xz"
  mkdir -p "$bundle"
  programs=(tests/gpu/kernel_check tests/conformance/op_runner tests/benchmarks/weight_formats server/espalierd
    worker/espalier-worker client/espalier)
  targets=(//ops/cuda:libespalier_cuda.so)
  for file in "${programs[@]}"; do targets+=("//${file%/*}:${file##*/}"); done
  bazel_ build --config=cuda --config=release "${targets[@]}" || fail "the bundle does not build"
  bin=$(bazel_ info --config=release bazel-bin)
  for file in ops/cuda/libespalier_cuda.so "${programs[@]}"; do
    cp -L "$bin/$file" "$bundle/"
    chmod u+w "$bundle/$(basename "$file")"
    strip "$bundle/$(basename "$file")"
  done
  for file in "${programs[@]}"; do copy_libraries "$bundle/$(basename "$file")"; done
  # What the main job's models are trained on.
  "$(command -v bible || echo /usr/games/bible)" -f gen1:1-rev22:21 | gzip > "$bundle/kjv.txt.gz"
  XZ_OPT=-T0 tar -C build -cJf "$bundle.tar.xz" gpu-bundle
  du -sh "$bundle" "$bundle.tar.xz"
elif [ ! -d "$bundle" ]; then
  [ -f "$bundle.tar.xz" ] || fail "there is neither $bundle nor $bundle.tar.xz; build with --build first"
  tar -C build -xJf "$bundle.tar.xz"
fi
[ "$run" = yes ] || exit 0

# shellcheck source=tests/gpu/libraries.sh
source tests/gpu/libraries.sh
libraries=$(gpu_libraries "$PWD/$bundle")

passed=0 failed=0 skipped=0

# Runs the program that compares with the CPU kernels; its last line counts.
compare_kernels() {
  local log=$1 counts
  LD_LIBRARY_PATH=$libraries "$bundle/kernel_check" --plugin="$bundle/libespalier_cuda.so" \
    ${options[@]+"${options[@]}"} | tee "$log" || true
  counts=$(tail -n 1 "$log")
  [[ $counts =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)?$ ]] || fail "kernel_check has died"
  passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
  skipped=$((skipped + ${BASH_REMATCH[4]:-0}))
}

# Runs one of tests/conformance with the CUDA kernels. The libraries are the runner's alone: Python has its own.
conform() {
  local log=$1 python=$2 name=$3 ran wrong
  ESPALIER_OP_RUNNER=/usr/bin/env \
    ESPALIER_OP_RUNNER_ARGS="'LD_LIBRARY_PATH=$libraries' '$bundle/op_runner' --device=cuda '--plugin=$bundle/libespalier_cuda.so'" \
    "$python" "tests/conformance/$name.py" 2>&1 | tee "$log" || true
  ran=$(sed -n 's/^Ran \([0-9]*\) test.*/\1/p' "$log")
  wrong=$(grep -cE '^(FAIL|ERROR): ' "$log" || true)
  [ -n "$ran" ] || fail "$name has died"
  failed=$((failed + wrong))
  passed=$((passed + (ran > wrong ? ran - wrong : 0)))
}

# The main job; its last line counts.
main_job() {
  local log=$1 counts
  tests/gpu/job.sh "$bundle" 2>&1 | tee "$log" || true
  counts=$(tail -n 1 "$log")
  [[ $counts =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]] || fail "the main job has died"
  passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
}

gpu=yes
if ! command -v nvidia-smi > /dev/null || ! nvidia-smi -L > /dev/null 2>&1; then
  gpu=no
  echo "There is no GPU here (nvidia-smi finds none): the programs can only say so."
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
wanted() { [ "$part" = all ] || [ "$part" = "$1" ]; }
if wanted kernels; then compare_kernels "$log"; fi
if wanted conformance; then
  python=
  for candidate in python3 /usr/bin/python3; do
    if [ -z "$python" ] && "$candidate" -c 'import torch' 2> /dev/null; then python=$candidate; fi
  done
  if [ "$gpu" = no ] || [ -z "$python" ]; then
    echo "operators_test and splits_test were not run: there is no $([ "$gpu" = no ] && echo GPU || echo "Python with PyTorch") here."
    skipped=$((skipped + 2))
  else
    conform "$log" "$python" operators_test
    conform "$log" "$python" splits_test
  fi
fi
if wanted job; then
  if [ "$gpu" = no ]; then
    echo "The main job was not run: there is no GPU here."
    skipped=$((skipped + 1))
  else
    main_job "$log"
  fi
fi
echo "$passed passed, $failed failed$([ "$skipped" -eq 0 ] || echo ", $skipped skipped")"
[ "$failed" -eq 0 ]
