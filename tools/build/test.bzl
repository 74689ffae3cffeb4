"""espalier_cc_test: a GoogleTest program."""

_PRECOMPILED = "//third_party/gtest:precompiled"

def espalier_cc_test(name, srcs, deps = [], size = "small", copts = [], **kwargs):
    """cc_test with gtest, gmock and their main. Tags that mean something: see .bazelrc."""
    native.cc_test(
        name = name,
        srcs = srcs,
        size = size,
        copts = ["-include", "$(location %s)" % _PRECOMPILED] + copts,
        deps = deps + [
            _PRECOMPILED,
            "//third_party/gtest:gtest_main",
        ],
        **kwargs
    )
