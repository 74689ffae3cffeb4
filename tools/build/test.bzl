"""espalier_cc_test: a GoogleTest program."""

def espalier_cc_test(name, srcs, deps = [], size = "small", **kwargs):
    """cc_test with gtest, gmock and their main. Tags that mean something: see .bazelrc."""
    native.cc_test(
        name = name,
        srcs = srcs,
        size = size,
        deps = deps + ["//third_party/gtest:gtest_main"],
        **kwargs
    )
