// The shape of an SSM's token trees: children per node at each depth (SpecInfer's expansion
// configuration). <1,1,3,1,1> is a chain of two tokens, then three branches of three tokens each:
// widths 1,1,3,3,3 and eleven nodes.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier {

class Expansion {
 public:
  static constexpr int kMaxNodes = 1024;

  // No drafting.
  Expansion() = default;

  // Returns InvalidArgument naming the entry unless each is at least 1 and the tree has at most
  // kMaxNodes nodes.
  static absl::StatusOr<Expansion> Create(const std::vector<int>& children);

  // Parses "1,1,3,1,1", with optional spaces around numbers. Empty text: no drafting.
  static absl::StatusOr<Expansion> Parse(const std::string& text);

  int depth() const { return static_cast<int>(children_.size()); }
  // Children of each node at `depth`; 0: the root.
  int children(int depth) const { return children_[depth]; }
  int width(int depth) const { return widths_[depth]; }  // nodes at `depth` + 1
  // Nodes of the tree cut at `depth` levels below the root.
  int nodes(int depth) const;
  std::string ToString() const;

 private:
  std::vector<int> children_;
  std::vector<int> widths_;  // running products
};

}  // namespace espalier
