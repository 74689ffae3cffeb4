"""espalier_cc_test: a GoogleTest program."""

_PRECOMPILED = "//third_party/gtest:precompiled"

# Tests run once for each time they are compiled. Their precompiled header has these, too.
TEST_COPTS = select({
    "//tools/build:optimized": ["-O1"],
    "//conditions:default": [],
})

def espalier_cc_test(name, srcs, deps = [], size = "small", copts = [], **kwargs):
    """cc_test with gtest, gmock and their main. Tags that mean something: see .bazelrc."""
    native.cc_test(
        name = name,
        srcs = srcs,
        size = size,
        copts = ["-include", "$(location %s)" % _PRECOMPILED] + TEST_COPTS + copts,
        deps = deps + [
            _PRECOMPILED,
            "//third_party/gtest:gtest_main",
        ],
        **kwargs
    )
