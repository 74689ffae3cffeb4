# gpu_libraries BUNDLE: where our programs find their libraries on a machine with a GPU: the bundle's, the CUDA
# toolkit's, then those in Python's packages. To be sourced.
gpu_libraries() {
  local paths=("$1/lib" /usr/local/cuda/lib64) python path
  for python in python3 /usr/bin/python3; do
    while read -r path; do paths+=("$path"); done < <("$python" -c '
import glob, site, sysconfig
for root in dict.fromkeys([sysconfig.get_paths()["purelib"]] + site.getsitepackages()):
    for path in sorted(glob.glob(root + "/nvidia/*/lib")): print(path)' 2> /dev/null || true)
  done
  (IFS=:; echo "${paths[*]}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
}
