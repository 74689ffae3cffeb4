"""cuda_library: compiles .cu files with nvcc in cached and sandboxed actions.

nvcc reads the standard library and its own headers three times, which takes longer than most kernels: sources are
compiled in `groups`, each a file that includes them. Which group is told by a source's name alone, so that a new one
leaves the others as they are. What a source keeps to itself is therefore in a namespace of its name, not in one
without.

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

    groups = {}
    for src in ctx.files.srcs:
        group = "%s_%d" % (ctx.label.name, hash(src.basename) % ctx.attr.groups) if ctx.attr.groups else src.basename
        groups.setdefault(group, []).append(src)

    objects = []
    for group, srcs in groups.items():
        main = srcs[0]
        if len(srcs) > 1:
            main = ctx.actions.declare_file("_nvcc/%s.cu" % group)
            ctx.actions.write(main, "".join(["#include \"%s\"\n" % src.path for src in srcs]))
        obj = ctx.actions.declare_file("_nvcc/%s/%s.o" % (ctx.label.name, group))
        args = ctx.actions.args()
        args.add_all(_FLAGS + arch_flags + ctx.attr.copts)
        args.add_all(cc.includes, before_each = "-I")
        args.add_all(cc.quote_includes, before_each = "-I")
        args.add_all(cc.system_includes, before_each = "-isystem")
        args.add_all(cc.defines, format_each = "-D%s")
        args.add_all(["-c", main.path, "-o", obj.path])
        # nvcc names temporary files by its process id, which in a sandbox is always the same.
        ctx.actions.run_shell(
            command = 'TMPDIR=$(mktemp -d) && export TMPDIR && trap \'rm -rf "$TMPDIR"\' EXIT && "$@"',
            arguments = [CUDA_ROOT + "/bin/nvcc", args],
            inputs = [main] + srcs + ctx.files.hdrs + headers,
            outputs = [obj],
            env = {"PATH": "/usr/local/bin:/usr/bin:/bin"},
            mnemonic = "NvccCompile",
            progress_message = "Compiling %s with nvcc" % ", ".join([src.basename for src in srcs]),
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
        # 0: each source by itself.
        "groups": attr.int(),
        # 90a: Hopper (H100, H200) with its architecture-specific instructions.
        "archs": attr.string_list(default = ["90a"]),
        "_cc_toolchain": attr.label(default = Label("@bazel_tools//tools/cpp:current_cc_toolchain")),
    },
    fragments = ["cpp"],
    incompatible_use_toolchain_transition = True,
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
