#!/usr/bin/env bash
# Installs the Debian packages needed for building, testing and the quickstart. Needs neither root
# nor network if all are installed.
#
#   deploy/install.sh            what building and the quickstart need
#   deploy/install.sh --tests    also what the tests need: packages, and virtual environments by pip
#   deploy/install.sh --tests-packages, --environments    the two parts of that
set -euo pipefail

# Boost's version is explicit: 1.81 replaces an installed libboost1.74-dev.
build=(
  bazel-bootstrap g++ git python3 python-is-python3
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev libre2-dev libc-ares-dev
  libssl-dev openssl zlib1g-dev libzstd-dev prometheus-cpp-dev libsqlite3-dev libspdlog-dev libfmt-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  libdnnl-dev libboost1.81-dev nlohmann-json3-dev libpcre2-dev libicu-dev
  libcurl4-openssl-dev libtinyxml2-dev
  curl bible-kjv bible-kjv-text
)
# prometheus provides promtool; iso-codes provides translations into 150 languages. The ONNX and
# tokenizer tests run in their own virtual environments, see tests/conformance/*_environment.py. SLURM, munge and
# sshd are started by tests/cluster, in namespaces of their own; the installed services stay down.
tests=(
  libonnx-dev python3-onnx python3-grpcio python3-protobuf python3-numpy python3-torch python3-venv
  python3-jsonschema python3-yaml
  prometheus clang-format iso-codes etcd-server zstd
  slurmctld slurmd slurm-client munge openssh-server openssh-client iproute2 shellcheck e2fsprogs systemd
)

packages=("${build[@]}")
environment=:
for arg in "$@"; do
  case $arg in
    --tests | --tests-packages)
      packages+=("${tests[@]}")
      [ "$arg" = --tests-packages ] || environment=test_environments
      ;;
    --environments)
      packages=(python3 python3-venv)
      environment=test_environments
      ;;
    -h | --help)
      sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
      exit 0
      ;;
    *)
      echo "install: unknown option $arg (known: --tests, --tests-packages, --environments)" >&2
      exit 2
      ;;
  esac
done

fail() {
  echo "install: $1" >&2
  echo "install: remedy: $2" >&2
  exit 1
}

test_environments() {
  local environment
  for environment in conformance/onnx conformance/tokenizer e2e/client s3/s3 kubernetes/kubernetes ../tools/docs/site ../client/python/tests/lint \
    ../client/python/tests/python ../client/python/tests/keras/keras ../client/python/tests/jax/jax ../client/python/tests/torch/torch \
    ../client/python/tests/exports/exports; do
    /usr/bin/python3 "$(dirname "$0")/../tests/${environment}_environment.py" ||
      fail "the virtual environment of the ${environment#*/} tests could not be made" \
        "check that PyPI can be reached from here (proxy?), then run this again"
  done
}

os_name=$(. /etc/os-release 2> /dev/null && echo "${PRETTY_NAME:-$ID}" || echo "an unknown system")
os_id=$(. /etc/os-release 2> /dev/null && echo "${ID:-} ${VERSION_ID:-}" || true)
if ! command -v dpkg-query > /dev/null; then
  fail "this is $os_name, which has no dpkg" "use Debian 12, or a container of it"
fi

# dpkg-query fails if it does not know a name, but still prints the known ones.
installed=$({ dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${packages[@]}" 2> /dev/null || true; } |
  awk '$2 == "installed" { print $1 }' | sort -u)
mapfile -t missing < <(printf '%s\n' "${packages[@]}" | sort -u | comm -23 - <(echo "$installed"))
echo "install: ${#packages[@]} packages needed, ${#missing[@]} missing"
if [ ${#missing[@]} -eq 0 ]; then
  $environment
  exit 0
fi

if [ "$os_id" != "debian 12" ]; then
  fail "this is $os_name; the packages are named as in Debian 12" \
    "use Debian 12, or install what stands for these here: ${missing[*]}"
fi
if [ "$(id -u)" -ne 0 ]; then
  fail "installing packages needs root" "run: sudo $0 $*"
fi

export DEBIAN_FRONTEND=noninteractive
log=$(mktemp -t espalier-install.XXXXXX)

# Runs a command with its output in the log: phase NAME REMEDY COMMAND...
phase() {
  local name=$1 remedy=$2 start=$SECONDS
  shift 2
  if ! "$@" >> "$log" 2>&1 < /dev/null; then
    tail -n 20 "$log" >&2
    fail "$name failed (all of its output: $log)" "$remedy"
  fi
  echo "install: $name, $((SECONDS - start)) s"
}

# Debian's way to say that no service is to start.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' > "$policy"
  chmod 755 "$policy"
  trap 'rm -f "$policy"' EXIT
fi
phase "package lists updated" \
  "check that the sources in /etc/apt can be reached from here (proxy? DNS?), then run this again" \
  apt-get -o DPkg::Lock::Timeout=600 update
phase "${#missing[@]} packages installed" \
  "run: apt-get --fix-broken install; then run this again" \
  apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "${missing[@]}"
rm -f "$log"
$environment
