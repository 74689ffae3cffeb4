"""C++ protobuf and gRPC code generation with the system's protoc and grpc_cpp_plugin."""

load("//tools/build:cc.bzl", "cc_library")

def _srcs_of(label):
    """The label of the .proto files of a cc_grpc_library."""
    if ":" not in label:
        label += ":" + label.split("/")[-1]
    return label + "_srcs"

def cc_grpc_library(name, srcs, deps = [], grpc = True, **kwargs):
    """A cc_library of the messages of some .proto files, and with grpc another, <name>_grpc, of the services.

    Files are imported, and their headers included, by workspace path: `import "proto/espalier/v1/graph.proto";`
    and `#include "espalier/v1/graph.pb.h"`. `<name>_srcs` holds the .proto files with those they import.

    Args:
      srcs: .proto files of this package.
      deps: cc_grpc_library targets whose .proto files srcs import.
      grpc: whether srcs define services.
    """
    ours = native.package_name().startswith("proto/")
    root, include_root = ("proto", ["//proto:include_root"]) if ours else (".", [])
    kinds = [".pb"] + ([".grpc.pb"] if grpc else [])
    files = {kind: [src[:-len(".proto")] + kind for src in srcs] for kind in kinds}
    common = {k: kwargs[k] for k in ["visibility", "testonly", "tags"] if k in kwargs}
    imports = [_srcs_of(d) for d in deps]
    native.filegroup(name = name + "_srcs", srcs = srcs + imports, **common)
    native.genrule(
        name = name + "_gen",
        srcs = srcs + imports,
        outs = [f + end for kind in kinds for f in files[kind] for end in [".h", ".cc"]],
        cmd = "/usr/bin/protoc -I{root} --cpp_out=$(BINDIR)/{root} ".format(root = root) +
              ("--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin --grpc_out=$(BINDIR)/{root} ".format(root = root) if grpc else "") +
              " ".join(["$(location %s)" % s for s in srcs]),
        message = "Generating C++ of",
        **common
    )
    cc_library(
        name = name,
        srcs = [f + ".cc" for f in files[".pb"]],
        hdrs = [f + ".h" for f in files[".pb"]],
        copts = ["-w"],
        deps = deps + include_root + ["//third_party/protobuf"],
        **kwargs
    )
    if grpc:
        cc_library(
            name = name + "_grpc",
            srcs = [f + ".cc" for f in files[".grpc.pb"]],
            hdrs = [f + ".h" for f in files[".grpc.pb"]],
            copts = ["-w"],
            deps = [":" + name, "//third_party/grpc:grpc++"],
            **kwargs
        )
