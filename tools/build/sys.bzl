"""sys_library: a Debian -dev package as a Bazel dependency."""

def sys_library(name, libs = [], shared_only = [], whole = [], linkopts = [], **kwargs):
    """Links system libraries; their headers are found in /usr/include.

    Args:
      libs: library names, shared by default, archives under --config=static.
      shared_only: libraries of which Debian has no archive.
      whole: like libs, but every object of the archive is kept (it registers itself at start).
      linkopts: further flags, after the libraries.
    """
    shared = ["-l" + l for l in whole]
    if libs or shared_only:
        # As needed: a program loads at start only what it uses.
        shared += ["-Wl,--push-state,--as-needed"] + ["-l" + l for l in libs + shared_only] + ["-Wl,--pop-state"]
    static = []
    if whole:
        static += ["-Wl,--whole-archive"] + ["-l:lib%s.a" % l for l in whole] + ["-Wl,--no-whole-archive"]
    if libs:
        static += ["-Wl,--start-group"] + ["-l:lib%s.a" % l for l in libs] + ["-Wl,--end-group"]
    static += ["-l" + l for l in shared_only]
    native.cc_library(
        name = name,
        linkopts = select({
            "//tools/build:static": static,
            "//conditions:default": shared,
        }) + linkopts,
        visibility = ["//visibility:public"],
        **kwargs
    )
