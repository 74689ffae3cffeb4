#include "planner/pcg/layout.h"

#include <algorithm>
#include <tuple>
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
  AppendInt(&key, static_cast<int64_t>(layout.overlap));
  for (const Shard& shard : layout.shards) {
    AppendInt(&key, shard.device);
    AppendInt(&key, shard.replica);
    AppendInt(&key, shard.partial);
    for (int64_t d : shard.region.start) AppendInt(&key, d);
    for (int64_t d : shard.region.size) AppendInt(&key, d);
  }
  return key;
}

}  // namespace

std::vector<OperandHalo> HalosOf(const SplitRule& rule, int input) {
  std::vector<OperandHalo> halos;
  for (const Halo& halo : rule.halos) {
    if (halo.input != input) continue;
    halos.push_back({halo, rule.axes[rule.inputs[input][halo.dim]].size});
  }
  return halos;
}

std::pair<int64_t, int64_t> WindowedPart(const OperandHalo& operand, int64_t extent, int parts,
                                         int part) {
  const Halo& halo = operand.halo;
  const int64_t outputs = operand.axis_size / parts;
  const auto first = [&](int p) {
    return p == 0 ? 0 : std::max<int64_t>(0, p * outputs * halo.stride - halo.before);
  };
  if (part + 1 == parts) return {first(part), extent};
  const int64_t end = ((part + 1) * outputs - 1) * halo.stride - halo.before + halo.reach;
  return {first(part), std::min(extent, std::max(end, first(part + 1)))};
}

Layout OperandLayout(const Dims& dims, const std::vector<int>& axis_of_dim,
                     const std::vector<int>& degrees, const std::vector<int>& devices, bool output,
                     const std::vector<OperandHalo>& halos) {
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
    for (const OperandHalo& operand : halos) {
      const int d = operand.halo.dim;
      if (layout.degrees[d] == 1) continue;
      const auto [first, end] =
          WindowedPart(operand, dims[d], layout.degrees[d], coordinate[axis_of_dim[d]]);
      shard.region.start[d] = first;
      shard.region.size[d] = end - first;
      layout.overlap = Overlap::kShared;
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

Layout ReplicatedLayout(const Dims& dims, const std::vector<int>& devices) {
  Layout layout;
  layout.dims = dims;
  layout.degrees.assign(dims.size(), 1);
  layout.replicas = static_cast<int>(devices.size());
  for (size_t i = 0; i < devices.size(); ++i) {
    layout.shards.push_back({devices[i], Region::Whole(dims), static_cast<int>(i), 0});
  }
  return layout;
}

Layout Dual(const Layout& layout) {
  Layout dual = layout;
  std::swap(dual.replicas, dual.partials);
  for (Shard& shard : dual.shards) std::swap(shard.replica, shard.partial);
  if (layout.overlap == Overlap::kShared) dual.overlap = Overlap::kSummed;
  if (layout.overlap == Overlap::kSummed) dual.overlap = Overlap::kShared;
  return dual;
}

Layout Sharded(const Layout& layout) {
  const int replicas = layout.replicas;
  if (replicas == 1 || layout.partials > 1 || layout.overlap != Overlap::kNone) return layout;
  const Region& box = layout.shards[0].region;  // all boxes have the same size
  const auto cut = std::find_if(box.size.begin(), box.size.end(),
                                [&](int64_t extent) { return extent % replicas == 0; });
  if (box.num_elements() < kMinShardedElements || cut == box.size.end()) return layout;
  const size_t d = static_cast<size_t>(cut - box.size.begin());
  Layout sharded = layout;
  sharded.replicas = 1;
  sharded.degrees[d] *= replicas;
  std::vector<Shard*> order;  // grouped by box
  for (Shard& shard : sharded.shards) order.push_back(&shard);
  std::sort(order.begin(), order.end(), [](const Shard* a, const Shard* b) {
    return std::tie(a->region.start, a->device) < std::tie(b->region.start, b->device);
  });
  for (size_t i = 0; i < order.size(); ++i) {
    Region& region = order[i]->region;
    region.size[d] /= replicas;
    region.start[d] += static_cast<int64_t>(i % replicas) * region.size[d];
    order[i]->replica = 0;
  }
  return sharded;
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
  if (layout.overlap == Overlap::kShared) parts.push_back("overlapping");
  if (layout.overlap == Overlap::kSummed) parts.push_back("sums where parts overlap");
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
    sharded_.push_back(-1);
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

int LayoutTable::Sharded(int id) {
  if (sharded_[id] < 0) {
    const int sharded = Intern(espalier::Sharded(layouts_[id]));
    sharded_[id] = sharded;
  }
  return sharded_[id];
}

}  // namespace espalier
