"""cuda_library: compiles .cu files with nvcc, one cached and sandboxed action per file.

Targets that use it carry `tags = ["cuda"]`, so that a tree without nvcc builds all the rest.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@local_config_cuda//:defs.bzl", "CUDA_ROOT")

# nvcc's -O is for the host compiler alone.
_FLAGS = ["-std=c++20", "-O1", "-Xcompiler=-fPIC", "--expt-relaxed-constexpr", "-lineinfo", "-I."]

def _impl(ctx):
    dep_info = cc_common.merge_cc_infos(cc_infos = [d[CcInfo] for d in ctx.attr.deps])
    cc = dep_info.compilation_context
    # Precompiled headers are gcc's alone, and differ in some bits each time that they are made.
    headers = [h for h in cc.headers.to_list() if h.basename not in ["precompiled.h", "precompiled.h.gch"]]
    arch_flags = []
    for arch in ctx.attr.archs:
        arch_flags += ["-gencode", "arch=compute_%s,code=sm_%s" % (arch, arch)]

    objects = []
    for src in ctx.files.srcs:
        obj = ctx.actions.declare_file("_nvcc/%s/%s.o" % (ctx.label.name, src.basename))
        args = ctx.actions.args()
        args.add_all(_FLAGS + arch_flags + ctx.attr.copts)
        args.add_all(cc.includes, before_each = "-I")
        args.add_all(cc.quote_includes, before_each = "-I")
        args.add_all(cc.system_includes, before_each = "-isystem")
        args.add_all(cc.defines, format_each = "-D%s")
        args.add_all(["-c", src.path, "-o", obj.path])
        # nvcc names temporary files by its process id, which in a sandbox is always the same.
        ctx.actions.run_shell(
            command = 'TMPDIR=$(mktemp -d) && export TMPDIR && trap \'rm -rf "$TMPDIR"\' EXIT && "$@"',
            arguments = [CUDA_ROOT + "/bin/nvcc", args],
            inputs = [src] + ctx.files.hdrs + headers,
            outputs = [obj],
            env = {"PATH": "/usr/local/bin:/usr/bin:/bin"},
            mnemonic = "NvccCompile",
            progress_message = "Compiling %s with nvcc" % src.short_path,
        )
        objects.append(obj)

    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    linking, _ = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        name = ctx.label.name,
        cc_toolchain = toolchain,
        feature_configuration = features,
        compilation_outputs = cc_common.create_compilation_outputs(
            objects = depset(objects),
            pic_objects = depset(objects),
        ),
        alwayslink = True,
        disallow_dynamic_library = True,
        linking_contexts = [d[CcInfo].linking_context for d in ctx.attr.deps],
    )
    own = CcInfo(
        compilation_context = cc_common.create_compilation_context(headers = depset(ctx.files.hdrs)),
        linking_context = linking,
    )
    return [
        cc_common.merge_cc_infos(cc_infos = [own, dep_info]),
        DefaultInfo(files = depset(objects)),
    ]

cuda_library = rule(
    implementation = _impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "copts": attr.string_list(),
        # 90a: Hopper (H100, H200) with its architecture-specific instructions.
        "archs": attr.string_list(default = ["90a"]),
        "_cc_toolchain": attr.label(default = Label("@bazel_tools//tools/cpp:current_cc_toolchain")),
    },
    fragments = ["cpp"],
    incompatible_use_toolchain_transition = True,
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
