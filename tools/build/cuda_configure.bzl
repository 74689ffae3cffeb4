"""Repository rule: the CUDA toolkit as @local_config_cuda, or empty libraries where there is none."""

_LIBS = ["cudart", "cublas", "cublasLt", "cudnn", "nccl"]

_HEADERS = """
cc_library(
    name = "headers",
    hdrs = glob([
        "include/*.h",
        "include/*.hpp",
        "include/crt/**",
        "include/nccl_device/**",
        "include/cccl/nv/**",
    ]),
    includes = ["include", "include/cccl"],
)
"""

def _library(name, linkopts):
    return 'cc_library(name = "%s", linkopts = %r, deps = [":headers"])\n' % (name, linkopts)

def _impl(ctx):
    root = ctx.os.environ.get("CUDA_PATH", "/usr/local/cuda")
    found = ctx.path(root + "/bin/nvcc").exists
    build = 'package(default_visibility = ["//visibility:public"])\n'
    if found:
        ctx.symlink(root + "/include", "include")
        lib = root + "/lib64"
        build += _HEADERS
        for l in _LIBS:
            build += _library(l, ["-L" + lib, "-Wl,-rpath," + lib, "-l" + l])
        build += _library("cudart_static", ["-L" + lib, "-lcudart_static", "-ldl", "-lrt", "-pthread"])
    else:
        for l in ["headers", "cudart_static"] + _LIBS:
            build += 'cc_library(name = "%s")\n' % l
    ctx.file("BUILD", build)
    ctx.file("defs.bzl", 'CUDA_ROOT = "%s"\n\nHAVE_CUDA = %s\n' % (root, found))

cuda_configure = repository_rule(
    implementation = _impl,
    environ = ["CUDA_PATH"],
    local = True,
    configure = True,
)
