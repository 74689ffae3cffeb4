"""cc_library and cc_binary: Bazel's, with the system's headers that most sources read precompiled."""

_PRECOMPILED = "//tools/build:precompiled"

def _with_header(precompiled, srcs, copts, deps):
    if not srcs or not precompiled:
        return {"srcs": srcs, "copts": copts, "deps": deps}
    return {
        "srcs": srcs,
        "copts": ["-include", "$(location %s)" % precompiled] + copts,
        "deps": deps + [precompiled],
    }

def cc_library(name, srcs = [], copts = [], deps = [], precompiled = _PRECOMPILED, **kwargs):
    """cc_library. Where copts change how code is optimised, or have -fopenmp, precompiled is another header or None."""
    native.cc_library(name = name, **dict(kwargs, **_with_header(precompiled, srcs, copts, deps)))

def cc_binary(name, srcs = [], copts = [], deps = [], precompiled = _PRECOMPILED, **kwargs):
    """cc_binary, """
    native.cc_binary(name = name, **dict(kwargs, **_with_header(precompiled, srcs, copts, deps)))
