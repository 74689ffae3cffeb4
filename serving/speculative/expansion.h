// The shape of the trees that an SSM drafts: children per node at each depth. <1,1,3,1,1> of
// SpecInfer is a chain of two, three branches from its end, each a chain of three: widths 1,1,3,3,3
// and eleven nodes.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier {

class Expansion {
 public:
  static constexpr int kMaxNodes = 1024;

  // No drafting at all.
  Expansion() = default;

  // InvalidArgument naming the entry: each is at least 1, and all nodes together at most kMaxNodes.
  static absl::StatusOr<Expansion> Create(const std::vector<int>& children);

  // "1,1,3,1,1"; spaces are allowed around numbers. Empty text: no drafting.
  static absl::StatusOr<Expansion> Parse(const std::string& text);

  int depth() const { return static_cast<int>(children_.size()); }
  int children(int depth) const {
    return children_[depth];
  }                                                      // of each node at `depth`, 0: the root
  int width(int depth) const { return widths_[depth]; }  // nodes at `depth` + 1
  // Nodes of a tree that is cut at `depth` levels below the root.
  int nodes(int depth) const;
  std::string ToString() const;

 private:
  std::vector<int> children_;
  std::vector<int> widths_;  // running products
};

}  // namespace espalier
