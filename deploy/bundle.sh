#!/usr/bin/env bash
# Makes build/espalier-bundle.tar.xz: the three programs with all shared libraries except libc's,
# for a machine with the same or a newer glibc and none of Espalier's dependencies installed. If
# nvcc is present, the CUDA plug-in is included; CUDA's own libraries are not.
#
#   deploy/bundle.sh
#   tar xf espalier-bundle.tar.xz && espalier-bundle/espalier up --local-workers=2
set -euo pipefail
cd "$(dirname "$0")/.."

deploy/install.sh
read -ra startup <<< "${ESPALIER_BAZEL_STARTUP:-}"
targets=(//server:espalierd //worker:espalier-worker //client:espalier)
echo "building ${targets[*]} (static)"
bazel ${startup[@]+"${startup[@]}"} build --config=static "${targets[@]}"
bin=$(bazel ${startup[@]+"${startup[@]}"} info --config=static bazel-bin 2> /dev/null)

out=build/espalier-bundle
rm -rf "$out"
mkdir -p "$out/lib"
cp -L "$bin/server/espalierd" "$bin/worker/espalier-worker" "$bin/client/espalier" "$out/"
cp -r deploy/systemd "$out/"
# All libraries that the dynamic linker resolves for the programs, except glibc's; and libcurl, which they load by
# themselves for s3://, with its own.
libcurl=$(ldconfig -p | awk '$1 == "libcurl.so.4" { print $NF; exit }')
cp -L "$libcurl" "$out/lib/libcurl.so.4"
ldd "$out"/espalier* "$libcurl" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u | while read -r library; do
  case $(basename "$library") in
    libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | ld-linux*) ;;
    *) cp -L "$library" "$out/lib/" ;;
  esac
done
if [ -x "${CUDA_PATH:-/usr/local/cuda}/bin/nvcc" ]; then
  bazel ${startup[@]+"${startup[@]}"} build --config=release --config=cuda //ops/cuda:libespalier_cuda.so
  cp -L "$(bazel ${startup[@]+"${startup[@]}"} info --config=release --config=cuda bazel-bin 2> /dev/null)/ops/cuda/libespalier_cuda.so" "$out/"
fi
tar -C build -cJf build/espalier-bundle.tar.xz espalier-bundle
echo "build/espalier-bundle.tar.xz: $(du -h build/espalier-bundle.tar.xz | cut -f1), unpacked $(du -sh "$out" | cut -f1)"
