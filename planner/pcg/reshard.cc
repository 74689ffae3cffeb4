#include "planner/pcg/reshard.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

using Collective = v1::CollectiveInstruction;

// Shards of one group, as indices into the layouts.
struct ShardGroup {
  std::vector<int> sources;
  std::vector<int> targets;
};

// Maps each shard to the first shard with the same box.
std::vector<int> FirstAlike(const std::vector<Shard>& shards) {
  std::map<std::pair<Dims, Dims>, int> seen;
  std::vector<int> first;
  for (size_t i = 0; i < shards.size(); ++i) {
    first.push_back(
        seen.try_emplace({shards[i].region.start, shards[i].region.size}, static_cast<int>(i))
            .first->second);
  }
  return first;
}

bool Overlaps(const Region& a, const Region& b) {
  for (size_t d = 0; d < a.size.size(); ++d) {
    if (std::max(a.start[d], b.start[d]) >=
        std::min(a.start[d] + a.size[d], b.start[d] + b.size[d])) {
      return false;
    }
  }
  return true;
}

// Calls meet(s, t) for all pairs of overlapping boxes; `sources` and `targets` are shards of `from`
// and `to`. A sweep along the dimension that `to` splits into most parts: on a thousand devices
// nearly all pairs are disjoint there.
template <typename Call>
void ForEachOverlap(const Layout& from, const Layout& to, const std::vector<int>& sources,
                    std::vector<int> targets, Call meet) {
  size_t widest = 0;
  for (size_t d = 0; d < to.degrees.size(); ++d) {
    if (to.degrees[d] > to.degrees[widest]) widest = d;
  }
  if (from.dims.empty()) {  // scalars
    for (int s : sources) {
      for (int t : targets) meet(s, t);
    }
    return;
  }
  const auto begin_of = [&](const Shard& shard) { return shard.region.start[widest]; };
  const auto end_of = [&](const Shard& shard) {
    return shard.region.start[widest] + shard.region.size[widest];
  };
  std::stable_sort(targets.begin(), targets.end(),
                   [&](int a, int b) { return begin_of(to.shards[a]) < begin_of(to.shards[b]); });
  std::vector<int64_t> reach;  // the largest end so far
  for (int t : targets) {
    reach.push_back(std::max(reach.empty() ? 0 : reach.back(), end_of(to.shards[t])));
  }
  for (int s : sources) {
    const Shard& source = from.shards[s];
    const auto first = std::upper_bound(reach.begin(), reach.end(), begin_of(source));
    for (size_t i = first - reach.begin(); i < targets.size(); ++i) {
      const Shard& target = to.shards[targets[i]];
      if (begin_of(target) >= end_of(source)) break;
      if (Overlaps(source.region, target.region)) meet(s, targets[i]);
    }
  }
}

std::vector<ShardGroup> GroupByOverlap(const Layout& from, const Layout& to) {
  const int n = static_cast<int>(from.shards.size()), m = static_cast<int>(to.shards.size());
  std::vector<int> parent(n + m);
  std::iota(parent.begin(), parent.end(), 0);
  auto find = [&](int i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
  };
  // Replicas have the same box, which is compared once.
  const std::vector<int> sources = FirstAlike(from.shards), targets = FirstAlike(to.shards);
  std::vector<int> some_sources, some_targets;
  for (int s = 0; s < n; ++s) {
    if (sources[s] == s) some_sources.push_back(s);
  }
  for (int t = 0; t < m; ++t) {
    if (targets[t] == t) some_targets.push_back(t);
  }
  ForEachOverlap(from, to, some_sources, std::move(some_targets),
                 [&](int s, int t) { parent[find(s)] = find(n + t); });
  // Empty boxes overlap nothing, not even each other.
  for (int s = 0; s < n; ++s) {
    if (sources[s] != s && from.shards[s].region.num_elements() > 0) {
      parent[find(s)] = find(sources[s]);
    }
  }
  for (int t = 0; t < m; ++t) {
    if (targets[t] != t && to.shards[t].region.num_elements() > 0) {
      parent[find(n + t)] = find(n + targets[t]);
    }
  }
  std::map<int, int> index;
  std::vector<ShardGroup> groups;
  for (int i = 0; i < n + m; ++i) {
    auto [it, inserted] = index.try_emplace(find(i), static_cast<int>(groups.size()));
    if (inserted) groups.emplace_back();
    ShardGroup& group = groups[it->second];
    (i < n ? group.sources : group.targets).push_back(i < n ? i : i - n);
  }
  return groups;
}

// Fills ranks, sources and targets in the order of the ranks. Returns false if source and target
// devices differ.
bool MatchDevices(const Layout& from, const Layout& to, const ShardGroup& group,
                  ReshardCollective* out) {
  std::map<int, int> source_on, target_on;
  for (int s : group.sources) source_on[from.shards[s].device] = s;
  for (int t : group.targets) target_on[to.shards[t].device] = t;
  if (source_on.size() < 2 || source_on.size() != target_on.size()) return false;
  for (const auto& [device, source] : source_on) {
    auto it = target_on.find(device);
    if (it == target_on.end()) return false;
    out->ranks.push_back(device);
    out->sources.push_back(source);
    out->targets.push_back(it->second);
  }
  return true;
}

bool AllSame(const std::vector<Region>& regions) {
  return std::all_of(regions.begin(), regions.end(),
                     [&](const Region& r) { return r == regions[0]; });
}

bool DistinctEqualSized(const std::vector<Region>& regions) {
  std::set<Dims> starts;
  for (const Region& r : regions) {
    if (r.size != regions[0].size || !starts.insert(r.start).second) return false;
  }
  return true;
}

// Returns the group as one collective, if it is one.
std::optional<ReshardCollective> AsCollective(const Layout& from, const Layout& to,
                                              const ShardGroup& group) {
  ReshardCollective c;
  if (from.overlap != Overlap::kNone || to.overlap != Overlap::kNone) return std::nullopt;
  if (from.replicas > 1 || !MatchDevices(from, to, group, &c)) return std::nullopt;
  const int n = static_cast<int>(c.ranks.size());
  std::vector<Region> in, out;
  for (int r = 0; r < n; ++r) {
    in.push_back(from.shards[c.sources[r]].region);
    out.push_back(to.shards[c.targets[r]].region);
  }
  c.elements = in[0].num_elements();
  if (from.partials > 1) {
    if (from.partials != n || !AllSame(in)) return std::nullopt;
    if (AllSame(out) && out[0] == in[0]) {
      c.kind = Collective::ALL_REDUCE;
      return c;
    }
    if (DistinctEqualSized(out) && out[0].num_elements() * n == c.elements) {
      c.kind = Collective::REDUCE_SCATTER;
      c.pack = !IsRankMajor(out, in[0]);
      return c;
    }
    return std::nullopt;
  }
  if (!DistinctEqualSized(in)) return std::nullopt;
  if (AllSame(out)) {
    if (out[0].num_elements() != c.elements * n) return std::nullopt;
    c.kind = Collective::ALL_GATHER;
    c.unpack = !IsRankMajor(in, out[0]);
    return c;
  }
  if (!DistinctEqualSized(out)) return std::nullopt;
  c.kind = Collective::ALL_TO_ALL;
  for (int i = 0; i < n; ++i) {
    std::vector<Region> sent, received;
    for (int j = 0; j < n; ++j) {
      const auto there = Intersect(in[i], out[j]), here = Intersect(in[j], out[i]);
      if (!there || !here || there->num_elements() * n != c.elements || here->size != there->size ||
          (!sent.empty() && there->size != sent[0].size)) {
        return std::nullopt;
      }
      sent.push_back(*there);
      received.push_back(*here);
    }
    if (!IsRankMajor(sent, in[i])) c.pack = true;
    if (!IsRankMajor(received, out[i])) c.unpack = true;
  }
  return c;
}

// Returns the boxes into which the edges of `regions` divide `target`.
std::vector<Region> CutAtEdges(const Region& target, const std::vector<Region>& regions) {
  std::vector<Region> boxes = {target};
  for (size_t d = 0; d < target.size.size(); ++d) {
    const int64_t begin = target.start[d], end = begin + target.size[d];
    std::set<int64_t> edges = {begin, end};
    for (const Region& region : regions) {
      for (int64_t edge : {region.start[d], region.start[d] + region.size[d]}) {
        if (edge > begin && edge < end) edges.insert(edge);
      }
    }
    std::vector<Region> cut;
    for (const Region& box : boxes) {
      for (auto it = edges.begin(); std::next(it) != edges.end(); ++it) {
        cut.push_back(box);
        cut.back().start[d] = *it;
        cut.back().size[d] = *std::next(it) - *it;
      }
    }
    boxes = std::move(cut);
  }
  return boxes;
}

bool Inside(const Region& box, const Region& region) {
  const std::optional<Region> common = Intersect(box, region);
  return common && *common == box;
}

// Adds the copies and transfers that fill target shard `t` from boxes that overlap: each range
// covered by the same boxes is one piece of each of them (partial sums), or of one (replicas).
absl::Status AddOverlapping(const Layout& from, const Layout& to, const ShardGroup& group, int t,
                            ReshardPlan* plan) {
  const Shard& target = to.shards[t];
  // One source per box and partial index: replicas are interchangeable.
  std::map<std::tuple<Dims, Dims, int>, int> holders;
  std::vector<Region> regions;
  for (int s : group.sources) {
    const Shard& source = from.shards[s];
    int& holder = holders.try_emplace({source.region.start, source.region.size, source.partial}, s)
                      .first->second;
    if (source.device == target.device) holder = s;
    regions.push_back(source.region);
  }
  for (const Region& box : CutAtEdges(target.region, regions)) {
    std::vector<int> sources;
    for (const auto& [place, s] : holders) {
      if (Inside(box, from.shards[s].region)) sources.push_back(s);
    }
    if (sources.empty()) {
      return absl::InternalError(absl::StrCat("source layout (", ToString(from),
                                              ") does not cover the target layout (", ToString(to),
                                              ")"));
    }
    if (from.overlap == Overlap::kShared && from.partials == 1) {
      auto here = std::find_if(sources.begin(), sources.end(),
                               [&](int s) { return from.shards[s].device == target.device; });
      sources = {here == sources.end() ? sources[0] : *here};
    }
    for (size_t i = 0; i < sources.size(); ++i) {
      plan->pieces.push_back({sources[i], t, box, /*accumulate=*/i > 0});
    }
  }
  return absl::OkStatus();
}

// Adds the copies and transfers that fill target shard `t`.
absl::Status AddPieces(const Layout& from, const Layout& to, const ShardGroup& group, int t,
                       ReshardPlan* plan) {
  if (from.overlap != Overlap::kNone) return AddOverlapping(from, to, group, t, plan);
  const Shard& target = to.shards[t];
  // Source shards by box and partial index.
  std::map<std::pair<Dims, int>, std::vector<int>> holders;
  for (int s : group.sources) {
    const Shard& source = from.shards[s];
    if (!Intersect(source.region, target.region)) continue;
    if (from.partials == 1 && source.device == target.device && source.region == target.region) {
      plan->alias[t] = s;
      return absl::OkStatus();
    }
    holders[{source.region.start, source.partial}].push_back(s);
  }
  int64_t covered = 0;
  for (const auto& [place, sources] : holders) {
    // Prefers a replica on the target's device; otherwise targets use different replicas.
    int chosen = sources[t % sources.size()];
    for (int s : sources) {
      if (from.shards[s].device == target.device) chosen = s;
    }
    ReshardPiece piece;
    piece.source = chosen;
    piece.target = t;
    piece.box = *Intersect(from.shards[chosen].region, target.region);
    piece.accumulate = place.second > 0;
    if (!piece.accumulate) covered += piece.box.num_elements();
    plan->pieces.push_back(std::move(piece));
  }
  if (covered != target.region.num_elements()) {
    return absl::InternalError(absl::StrCat("source layout (", ToString(from),
                                            ") does not cover the target layout (", ToString(to),
                                            ")"));
  }
  return absl::OkStatus();
}

}  // namespace

bool ReshardPlan::all_reduce_only() const {
  if (collectives.empty() || !pieces.empty()) return false;
  for (int source : alias) {
    if (source >= 0) return false;
  }
  return std::all_of(collectives.begin(), collectives.end(),
                     [](const ReshardCollective& c) { return c.kind == Collective::ALL_REDUCE; });
}

int64_t ElementsMoved(const ReshardPlan& plan, const Layout& from, const Layout& to) {
  int64_t total = 0;
  for (const ReshardPiece& piece : plan.pieces) {
    if (from.shards[piece.source].device != to.shards[piece.target].device) {
      total += piece.box.num_elements();
    }
  }
  for (const ReshardCollective& c : plan.collectives) {
    const int64_t others = static_cast<int64_t>(c.ranks.size()) - 1;
    switch (c.kind) {
      case Collective::ALL_REDUCE:
        total += 2 * others * c.elements;
        break;
      case Collective::ALL_GATHER:
        total += others * (others + 1) * c.elements;
        break;
      default:
        total += others * c.elements;
        break;
    }
  }
  return total;
}

bool IsRankMajor(const std::vector<Region>& parts, const Region& whole) {
  int split = -1;
  for (size_t d = 0; d < whole.size.size(); ++d) {
    if (parts[0].size[d] == whole.size[d]) continue;
    if (split >= 0) return false;
    split = static_cast<int>(d);
  }
  if (split < 0) return parts.size() == 1;
  for (int d = 0; d < split; ++d) {
    if (whole.size[d] != 1) return false;
  }
  int64_t next = whole.start[split];
  for (const Region& part : parts) {
    if (part.start[split] != next) return false;
    next += part.size[split];
  }
  return next == whole.start[split] + whole.size[split];
}

absl::StatusOr<ReshardPlan> PlanReshard(const Layout& from, const Layout& to) {
  if (to.partials > 1 || to.overlap == Overlap::kSummed) {
    return absl::InternalError(absl::StrCat("a layout of partial sums (", ToString(to),
                                            ") cannot be made from another (", ToString(from),
                                            ")"));
  }
  ReshardPlan plan;
  plan.alias.assign(to.shards.size(), -1);
  for (const ShardGroup& group : GroupByOverlap(from, to)) {
    if (std::optional<ReshardCollective> c = AsCollective(from, to, group)) {
      plan.collectives.push_back(*std::move(c));
      continue;
    }
    for (int t : group.targets) {
      if (absl::Status status = AddPieces(from, to, group, t, &plan); !status.ok()) return status;
    }
  }
  return plan;
}

}  // namespace espalier
