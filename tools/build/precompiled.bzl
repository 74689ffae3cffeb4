"""precompiled_header: what every source would otherwise read for itself, read once (gcc's .gch).

`--define=precompiled=no` makes none: each source is then on its own, which shows an include that is missing.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _result(files):
    headers = depset(files)
    return [
        CcInfo(compilation_context = cc_common.create_compilation_context(headers = headers)),
        DefaultInfo(files = depset(files[:1])),
    ]

def _impl(ctx):
    # gcc takes NAME.gch for "-include NAME". It leaves one alone that does not fit (other macros, another
    # compiler) and reads NAME, which is empty: the source's own includes then do the work, more slowly.
    stand_in = ctx.actions.declare_file(ctx.label.name + "/" + ctx.file.header.basename)
    ctx.actions.write(stand_in, "")
    if not ctx.attr.enabled or ctx.var.get("precompiled") == "no":
        return _result([stand_in])
    compiled = ctx.actions.declare_file(stand_in.basename + ".gch", sibling = stand_in)

    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    cpp = ctx.fragments.cpp
    variables = cc_common.create_compile_variables(
        cc_toolchain = toolchain,
        feature_configuration = features,
        # As .bazelrc has it.
        use_pic = ctx.var.get("link") != "static",
        user_compile_flags = cpp.copts + cpp.cxxopts + ctx.attr.copts,
    )
    flags = cc_common.get_memory_inefficient_command_line(
        action_name = CPP_COMPILE_ACTION_NAME,
        feature_configuration = features,
        variables = variables,
    )
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(
            action_name = CPP_COMPILE_ACTION_NAME,
            feature_configuration = features,
        ),
        arguments = flags + ["-x", "c++-header", "-c", ctx.file.header.path, "-o", compiled.path],
        env = cc_common.get_environment_variables(
            action_name = CPP_COMPILE_ACTION_NAME,
            feature_configuration = features,
            variables = variables,
        ),
        inputs = depset([ctx.file.header], transitive = [toolchain.all_files]),
        outputs = [compiled],
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling %s" % ctx.file.header.short_path,
    )
    return _result([stand_in, compiled])

precompiled_header = rule(
    doc = """Dependents compile with `-include $(location NAME)`.

System headers only: no dependencies are known. And dependents must be optimised as the header is: another
-O level is not a reason for gcc 12 to leave it alone, but one to crash.
""",
    implementation = _impl,
    attrs = {
        "header": attr.label(allow_single_file = [".h"], mandatory = True),
        # What the dependents have beyond .bazelrc's --copt, or .bazelrc adds for their sources alone.
        "copts": attr.string_list(),
        "enabled": attr.bool(default = True),
        "_cc_toolchain": attr.label(default = Label("@bazel_tools//tools/cpp:current_cc_toolchain")),
    },
    fragments = ["cpp"],
    incompatible_use_toolchain_transition = True,
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
