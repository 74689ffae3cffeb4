"""cc_library and cc_binary: Bazel's, with the system's headers that most sources read precompiled, and unity builds."""

_PRECOMPILED = "//tools/build:precompiled"

# Sources of one object.
_UNITY = 16

def _with_header(precompiled, srcs, copts, deps):
    if not srcs or not precompiled:
        return {"srcs": srcs, "copts": copts, "deps": deps}
    return {
        "srcs": srcs,
        "copts": ["-include", "$(location %s)" % precompiled] + copts,
        "deps": deps + [precompiled],
    }

def _unity_sources(name, srcs, size):
    """srcs with each `size` .cc files in one generated file. #line keeps diagnostics at the sources."""
    sources = [s for s in srcs if s.endswith(".cc")]
    grouped = []
    for begin in range(0, len(sources), size):
        group = sources[begin:begin + size]
        if len(group) == 1:
            grouped += group
            continue
        unity = "%s.unity_%d.cc" % (name, begin // size)
        native.genrule(
            name = "%s_unity_%d" % (name, begin // size),
            srcs = group,
            outs = [unity],
            cmd = "for f in $(SRCS); do echo \"#line 1 \\\"$$f\\\"\"; cat $$f; done > $@",
            tags = ["manual"],
            visibility = ["//visibility:private"],
        )
        grouped.append(unity)
    return [s for s in srcs if not s.endswith(".cc")] + select({
        "//tools/build:unity": grouped,
        "//conditions:default": sources,
    })

def cc_library(name, srcs = [], copts = [], deps = [], precompiled = _PRECOMPILED, unity = _UNITY, **kwargs):
    """cc_library.

    Args:
      precompiled: another precompiled header, or None, where copts change how code is optimised or have -fopenmp.
      unity: so many sources are compiled as one, which reads their headers once (a unity build). Names in their unnamed
        namespaces must therefore differ: tools/structure/check_local_names.py. 1: each by itself.
    """
    attributes = _with_header(precompiled, srcs, copts, deps)
    if unity > 1 and type(srcs) == "list" and len([s for s in srcs if s.endswith(".cc")]) > 1:
        attributes["srcs"] = _unity_sources(name, srcs, unity)

        # After #line gcc takes a source for a header, where types of an unnamed namespace would be a fault.
        attributes["copts"] = ["-Wno-subobject-linkage"] + attributes["copts"]
    native.cc_library(name = name, **dict(kwargs, **attributes))

def cc_binary(name, srcs = [], copts = [], deps = [], precompiled = _PRECOMPILED, **kwargs):
    """cc_binary. precompiled: as of cc_library."""
    native.cc_binary(name = name, **dict(kwargs, **_with_header(precompiled, srcs, copts, deps)))
