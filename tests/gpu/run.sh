#!/usr/bin/env bash
# Compares the CUDA plug-in with the CPU kernels on a GPU.
#
#   tests/gpu/run.sh             builds a bundle, and runs it if there is a GPU here
#   tests/gpu/run.sh --bench     measures instead: linear in TFLOP/s, paged_attention in GB/s
#   tests/gpu/run.sh --build     builds the bundle only, build/gpu-bundle and build/gpu-bundle.tar.xz
#   tests/gpu/run.sh --no-build  runs the bundle that is there (unpacking the archive if need be): for a
#                                machine with a GPU and CUDA 13 but no build tools
# Other options go to the program: --only=TEXT, --verbose.
#
# The last line is "N passed, N failed", with ", N skipped" where there is no GPU.
# $ESPALIER_BAZEL_STARTUP holds startup options for Bazel, such as --output_base=DIR.
set -euo pipefail
cd "$(dirname "$0")/../.."
bundle=build/gpu-bundle
build=yes run=yes
options=()
for arg in "$@"; do
  case $arg in
    --build) run=no ;;
    --no-build) build=no ;;
    -h | --help)
      sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
      exit 0
      ;;
    *) options+=("$arg") ;;
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
  bazel_ build --config=cuda --config=release //ops/cuda:libespalier_cuda.so //tests/gpu:kernel_check ||
    fail "the bundle does not build"
  bin=$(bazel_ info --config=release bazel-bin)
  cp -L "$bin/ops/cuda/libespalier_cuda.so" "$bin/tests/gpu/kernel_check" "$bundle/"
  chmod -R u+w "$bundle"
  strip "$bundle/libespalier_cuda.so" "$bundle/kernel_check"
  copy_libraries "$bundle/kernel_check"
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

if ! command -v nvidia-smi > /dev/null || ! nvidia-smi -L > /dev/null 2>&1; then
  echo "There is no GPU here (nvidia-smi finds none): the program can only say so."
fi
LD_LIBRARY_PATH=$libraries "$bundle/kernel_check" --plugin="$bundle/libespalier_cuda.so" ${options[@]+"${options[@]}"}
