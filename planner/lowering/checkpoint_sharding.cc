#include "planner/lowering/checkpoint_sharding.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "ops/program/unchanged_parameters.h"

namespace espalier {
namespace {

// How far beyond its equal share a rank may be filled: by this part of such a share.
constexpr double kSlack = 0.05;

struct Holder {
  int rank;
  v1::Buffer* buffer;
};

// Ordered by name, so that the result does not depend on the order of the programs' buffers.
using TensorRegion = std::tuple<int, std::string, std::vector<int64_t>, std::vector<int64_t>>;

TensorRegion RegionOf(const v1::Buffer& buffer) {
  const v1::TensorSpec& spec = buffer.spec();
  return {buffer.kind(),
          buffer.name(),
          {spec.offset().begin(), spec.offset().end()},
          {spec.dims().begin(), spec.dims().end()}};
}

// In elements; all types have about the same size.
double SizeOf(const v1::Buffer& buffer) {
  double elements = 1;
  for (int64_t extent : buffer.spec().dims()) elements *= static_cast<double>(extent);
  return elements;
}

bool IsSaved(const v1::Buffer& buffer) {
  return buffer.kind() == v1::PARAMETER_SHARD || buffer.kind() == v1::OPTIMIZER_STATE;
}

double SizeOf(const std::vector<std::vector<Holder>*>& regions) {
  double elements = 0;
  for (const std::vector<Holder>* holders : regions) elements += SizeOf(*(*holders)[0].buffer);
  return elements;
}

// Chooses who saves each of the regions, so that no rank has more than `share` of them, if
// possible.
void ShareOut(const std::vector<std::vector<Holder>*>& regions, size_t ranks, double share) {
  std::vector<double> load(ranks, 0);
  std::vector<std::vector<Holder>*> shared;
  for (std::vector<Holder>* holders : regions) {
    const double size = SizeOf(*(*holders)[0].buffer);
    if (holders->size() == 1) {
      load[(*holders)[0].rank] += size;
    } else {
      shared.push_back(holders);
    }
  }
  std::stable_sort(shared.begin(), shared.end(), [](const auto* a, const auto* b) {
    return SizeOf(*(*a)[0].buffer) > SizeOf(*(*b)[0].buffer);
  });
  for (std::vector<Holder>* holders : shared) {
    const double size = SizeOf(*(*holders)[0].buffer);
    auto saves = std::find_if(holders->begin(), holders->end(), [&](const Holder& holder) {
      return load[holder.rank] + size <= share;
    });
    if (saves == holders->end()) {
      saves = std::min_element(
          holders->begin(), holders->end(),
          [&](const Holder& a, const Holder& b) { return load[a.rank] < load[b.rank]; });
    }
    load[saves->rank] += size;
    for (Holder& holder : *holders) holder.buffer->set_saved_elsewhere(&holder != &*saves);
  }
}

}  // namespace

void ShardCheckpoints(std::vector<v1::Program>* programs) {
  std::map<TensorRegion, std::vector<Holder>> regions;
  std::set<TensorRegion> changed;
  for (size_t rank = 0; rank < programs->size(); ++rank) {
    v1::Program& program = (*programs)[rank];
    const std::vector<bool> unchanged = UnchangedParameters(program);
    for (int i = 0; i < program.buffers_size(); ++i) {
      v1::Buffer* const buffer = program.mutable_buffers(i);
      if (!IsSaved(*buffer)) continue;
      const TensorRegion region = RegionOf(*buffer);
      std::vector<Holder>& holders = regions[region];
      if (holders.empty() || holders.back().rank != static_cast<int>(rank)) {
        holders.push_back({static_cast<int>(rank), buffer});
      }
      if (!unchanged[static_cast<size_t>(i)]) changed.insert(region);
    }
  }
  std::vector<std::vector<Holder>*> of_each, of_the_first;  // checkpoints
  for (auto& [region, holders] : regions) {
    (changed.contains(region) ? of_each : of_the_first).push_back(&holders);
  }
  const auto ranks = static_cast<double>(std::max<size_t>(programs->size(), 1));
  const double changing = SizeOf(of_each), other = SizeOf(of_the_first);
  ShareOut(of_each, programs->size(), (1 + kSlack) * changing / ranks);
  // The first checkpoint has both.
  ShareOut(of_the_first, programs->size(), (other + kSlack * (changing + other)) / ranks);
}

std::set<int> SavingRanks(const std::vector<v1::Program>& programs) {
  std::set<int> saving;
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    for (const v1::Buffer& buffer : programs[rank].buffers()) {
      if (IsSaved(buffer) && !buffer.saved_elsewhere()) saving.insert(static_cast<int>(rank));
    }
  }
  return saving;
}

}  // namespace espalier
