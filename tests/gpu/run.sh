#!/usr/bin/env bash
# Compares the CUDA plug-in on a GPU with the CPU kernels, and with PyTorch: tests/conformance's operators_test
# and splits_test, where there is a Python with PyTorch.
#
#   tests/gpu/run.sh             builds a bundle, and runs it if there is a GPU here
#   tests/gpu/run.sh --bench     measures instead: linear in TFLOP/s, paged_attention in GB/s
#   tests/gpu/run.sh --build     builds the bundle only, build/gpu-bundle and build/gpu-bundle.tar.xz
#   tests/gpu/run.sh --no-build  runs the bundle that is there (unpacking the archive if need be): for a
#                                machine with a GPU and CUDA 13 but no build tools
#   tests/gpu/run.sh --kernels   without PyTorch's part
#   tests/gpu/run.sh --conformance  PyTorch's part alone
# Other options go to the program that compares with the CPU kernels, and leave out PyTorch's part: --only=TEXT,
# --verbose.
#
# The last line is "N passed, N failed", with ", N skipped" where there is no GPU.
# $ESPALIER_BAZEL_STARTUP holds startup options for Bazel, such as --output_base=DIR.
set -euo pipefail
cd "$(dirname "$0")/../.."
bundle=build/gpu-bundle
build=yes run=yes kernels=yes conformance=yes
options=()
for arg in "$@"; do
  case $arg in
    --build) run=no ;;
    --no-build) build=no ;;
    -h | --help)
      sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
      exit 0
      ;;
    --kernels) conformance=no ;;
    --conformance) kernels=no ;;
    *)
      options+=("$arg")
      conformance=no
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
  bazel_ build --config=cuda --config=release //ops/cuda:libespalier_cuda.so //tests/gpu:kernel_check \
    //tests/conformance:op_runner ||
    fail "the bundle does not build"
  bin=$(bazel_ info --config=release bazel-bin)
  cp -L "$bin/ops/cuda/libespalier_cuda.so" "$bin/tests/gpu/kernel_check" "$bin/tests/conformance/op_runner" \
    "$bundle/"
  chmod -R u+w "$bundle"
  strip "$bundle/libespalier_cuda.so" "$bundle/kernel_check" "$bundle/op_runner"
  copy_libraries "$bundle/kernel_check"
  copy_libraries "$bundle/op_runner"
  tar -C build -cJf "$bundle.tar.xz" gpu-bundle
  du -sh "$bundle" "$bundle.tar.xz"
elif [ ! -d "$bundle" ]; then
  [ -f "$bundle.tar.xz" ] || fail "there is neither $bundle nor $bundle.tar.xz; build with --build first"
  tar -C build -xJf "$bundle.tar.xz"
fi
[ "$run" = yes ] || exit 0

# CUDA's libraries: the toolkit's, then those in Python's packages.
paths=("$PWD/$bundle/lib" /usr/local/cuda/lib64)
for python in python3 /usr/bin/python3; do
  while read -r path; do paths+=("$path"); done < <("$python" -c '
import glob, site, sysconfig
for root in dict.fromkeys([sysconfig.get_paths()["purelib"]] + site.getsitepackages()):
    for path in sorted(glob.glob(root + "/nvidia/*/lib")): print(path)' 2> /dev/null || true)
done
libraries=$(IFS=:; echo "${paths[*]}")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

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

gpu=yes
if ! command -v nvidia-smi > /dev/null || ! nvidia-smi -L > /dev/null 2>&1; then
  gpu=no
  echo "There is no GPU here (nvidia-smi finds none): the programs can only say so."
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if [ "$kernels" = yes ]; then compare_kernels "$log"; fi
if [ "$conformance" = yes ]; then
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
echo "$passed passed, $failed failed$([ "$skipped" -eq 0 ] || echo ", $skipped skipped")"
[ "$failed" -eq 0 ]
