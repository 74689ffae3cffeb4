#include "serving/speculative/expansion.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace espalier {

absl::StatusOr<Expansion> Expansion::Create(const std::vector<int>& children) {
  Expansion expansion;
  int64_t width = 1;
  int64_t nodes = 0;
  for (size_t i = 0; i < children.size(); ++i) {
    if (children[i] < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("expansion entry ", i + 1, " is ", children[i], ", expected 1 or more"));
    }
    width *= children[i];
    nodes += width;
    if (nodes > kMaxNodes) {
      return absl::InvalidArgumentError(
          absl::StrCat("expansion has more than ", kMaxNodes, " nodes at entry ", i + 1));
    }
    expansion.children_.push_back(children[i]);
    expansion.widths_.push_back(static_cast<int>(width));
  }
  return expansion;
}

absl::StatusOr<Expansion> Expansion::Parse(const std::string& text) {
  std::vector<int> children;
  if (absl::StripAsciiWhitespace(text).empty()) return Create(children);
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    int value = 0;
    if (!absl::SimpleAtoi(part, &value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("expansion entry ", children.size() + 1, " is \"", part.substr(0, 40),
                       "\", expected numbers with commas such as 1,1,3,1,1"));
    }
    children.push_back(value);
  }
  return Create(children);
}

int Expansion::nodes(int depth) const {
  int sum = 0;
  for (int i = 0; i < std::min(depth, this->depth()); ++i) sum += widths_[i];
  return sum;
}

std::string Expansion::ToString() const { return absl::StrJoin(children_, ","); }

}  // namespace espalier
