#include "planner/pcg/layout.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace espalier {
namespace {

void AppendInt(std::string* key, int64_t value) {
  key->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string KeyOf(const Layout& layout) {
  std::string key;
  AppendInt(&key, static_cast<int64_t>(layout.dims.size()));
  for (int64_t d : layout.dims) AppendInt(&key, d);
  for (int d : layout.degrees) AppendInt(&key, d);
  AppendInt(&key, layout.replicas);
  AppendInt(&key, layout.partials);
  for (const Shard& shard : layout.shards) {
    AppendInt(&key, shard.device);
    AppendInt(&key, shard.replica);
    AppendInt(&key, shard.partial);
    for (int64_t d : shard.region.start) AppendInt(&key, d);
  }
  return key;
}

}  // namespace

Layout OperandLayout(const Dims& dims, const std::vector<int>& axis_of_dim,
                     const std::vector<int>& degrees, const std::vector<int>& devices,
                     bool output) {
  Layout layout;
  layout.dims = dims;
  layout.degrees.assign(dims.size(), 1);
  std::vector<bool> followed(degrees.size(), false);
  for (size_t d = 0; d < dims.size() && d < axis_of_dim.size(); ++d) {
    if (axis_of_dim[d] < 0) continue;
    layout.degrees[d] = degrees[axis_of_dim[d]];
    followed[axis_of_dim[d]] = true;
  }
  int same = 1;  // parts that hold the same box
  for (size_t a = 0; a < degrees.size(); ++a) {
    if (!followed[a]) same *= degrees[a];
  }
  (output ? layout.partials : layout.replicas) = same;

  layout.shards.reserve(devices.size());
  std::vector<int> coordinate(degrees.size(), 0);
  for (int device : devices) {
    Shard shard;
    shard.device = device;
    shard.region = Region::Whole(dims);
    for (size_t d = 0; d < dims.size() && d < axis_of_dim.size(); ++d) {
      if (axis_of_dim[d] < 0) continue;
      shard.region.size[d] = dims[d] / layout.degrees[d];
      shard.region.start[d] = shard.region.size[d] * coordinate[axis_of_dim[d]];
    }
    int index = 0;
    for (size_t a = 0; a < degrees.size(); ++a) {
      if (!followed[a]) index = index * degrees[a] + coordinate[a];
    }
    (output ? shard.partial : shard.replica) = index;
    layout.shards.push_back(std::move(shard));
    for (size_t a = degrees.size(); a-- > 0;) {
      if (++coordinate[a] < degrees[a]) break;
      coordinate[a] = 0;
    }
  }
  return layout;
}

Layout Dual(const Layout& layout) {
  Layout dual = layout;
  std::swap(dual.replicas, dual.partials);
  for (Shard& shard : dual.shards) std::swap(shard.replica, shard.partial);
  return dual;
}

std::optional<Region> Intersect(const Region& a, const Region& b) {
  Region box;
  box.start.resize(a.start.size());
  box.size.resize(a.start.size());
  for (size_t d = 0; d < a.start.size(); ++d) {
    const int64_t start = std::max(a.start[d], b.start[d]);
    const int64_t end = std::min(a.start[d] + a.size[d], b.start[d] + b.size[d]);
    if (end <= start) return std::nullopt;
    box.start[d] = start;
    box.size[d] = end - start;
  }
  return box;
}

Dims StartWithin(const Region& shard, const Region& box) {
  Dims start = box.start;
  for (size_t d = 0; d < start.size(); ++d) start[d] -= shard.start[d];
  return start;
}

std::string ToString(const Layout& layout) {
  std::vector<std::string> parts;
  for (size_t d = 0; d < layout.degrees.size(); ++d) {
    if (layout.degrees[d] > 1)
      parts.push_back(absl::StrCat("dimension ", d, " x", layout.degrees[d]));
  }
  if (layout.replicas > 1) parts.push_back(absl::StrCat("replicas x", layout.replicas));
  if (layout.partials > 1) parts.push_back(absl::StrCat("partial sums x", layout.partials));
  if (parts.empty()) parts.push_back("whole");
  return absl::StrCat(absl::StrJoin(parts, ", "), " on ",
                      absl::StrJoin(layout.shards, ",", [](std::string* out, const Shard& shard) {
                        absl::StrAppend(out, shard.device);
                      }));
}

int LayoutTable::Intern(const Layout& layout) {
  auto [it, inserted] = ids_.try_emplace(KeyOf(layout), static_cast<int>(layouts_.size()));
  if (inserted) {
    layouts_.push_back(layout);
    duals_.push_back(-1);
  }
  return it->second;
}

int LayoutTable::Dual(int id) {
  if (duals_[id] < 0) {
    const int dual = Intern(espalier::Dual(layouts_[id]));
    duals_[id] = dual;
    duals_[dual] = id;
  }
  return duals_[id];
}

}  // namespace espalier
