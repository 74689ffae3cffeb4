"""Lets the CUDA build of PyTorch run on machines without CUDA's libraries.

PyPI's wheels of PyTorch for Linux need cuBLAS, cuDNN, NCCL and others, 3 GB, for `import torch`, though tests on the
CPU call none of them. This makes libraries of these names whose functions return an error, beside PyTorch's own:

    python cuda_stubs.py SITE_PACKAGES/torch/lib

They need nvidia-cuda-runtime-cu12, 3 MB, which says that there is no GPU. Needs nm, readelf and gcc.
"""

import os
import re
import subprocess
import sys
import tempfile

# Libraries that PyTorch is linked with, without the CUDA runtime, which must be the real one.
_LIBRARIES = re.compile(
    r"lib(cublas|cublasLt|cudnn|cufft|curand|cusparse|cusparseLt|cusolver|nccl|cufile|cupti)\.so\.\d+"
)
_FUNCTIONS = re.compile(r"(cublas|cudnn|cufft|curand|cusparse|cusolver|nccl|cuFile|cufile|cupti)\w*")
_USERS = ("libtorch_cpu.so", "libtorch_cuda.so", "libtorch_python.so", "libc10_cuda.so")


def lines(*command: str) -> list[str]:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def make(folder: str, name: str, versions: dict[str, set[str]]) -> None:
    """Library `name`, with functions by their symbol version ("": none)."""
    with tempfile.TemporaryDirectory() as temporary:
        source, script = os.path.join(temporary, "stub.c"), os.path.join(temporary, "stub.map")
        with open(source, "w") as file:
            # 1 is an error in each of these interfaces.
            file.writelines(f"int {f}(void) {{ return 1; }}\n" for fs in versions.values() for f in sorted(fs))
        with open(script, "w") as file:
            file.writelines(f"{v} {{ {' '.join(f + ';' for f in sorted(fs))} }};\n" for v, fs in versions.items() if v)
        flags = [f"-Wl,--version-script={script}"] if any(versions) else []
        target = os.path.join(folder, name)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{name}", *flags, "-o", target, source], check=True
        )


def main(folder: str) -> None:
    libraries: dict[str, dict[str, set[str]]] = {}
    for user in _USERS:
        path = os.path.join(folder, user)
        for line in lines("readelf", "-d", path):
            needed = re.search(r"\(NEEDED\).*\[(.*)\]", line)
            if needed and _LIBRARIES.fullmatch(needed[1]):
                libraries.setdefault(needed[1], {})
    for user in _USERS:
        for line in lines("nm", "-D", "--undefined-only", os.path.join(folder, user)):
            symbol, _, version = line.split()[-1].partition("@")
            if _FUNCTIONS.fullmatch(symbol):
                # A symbol without a version is found in any library.
                library = version.lstrip("@") or "libcupti.so.12"
                if library not in libraries:
                    raise SystemExit(f"{user} needs {symbol} of {library}, which it does not name")
                libraries[library].setdefault(version.lstrip("@"), set()).add(symbol)
    for name, versions in libraries.items():
        make(folder, name, versions)


if __name__ == "__main__":
    main(sys.argv[1])
