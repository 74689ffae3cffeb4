// Simulator::EstimateMemory: the buffer lifetimes of lowering, without packing.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "planner/memory/arena.h"
#include "planner/simulator/schedule.h"

namespace espalier {
namespace {

// One layout in which a value is held, from one program point to another.
struct Held {
  int layout = 0;
  int first = 0;
  int last = 0;
};

}  // namespace

void Simulator::FindGradientStarts(std::vector<int>* starts) {
  // Gradients in a bucket live from the bucket's first member to the end.
  buckets_.Clear();
  absl::InlinedVector<int, 16> bucket_start;
  starts->assign(structure_.gradients.size(), -1);
  for (size_t g = 0; g < sync_tasks_.size(); ++g) {
    if (sync_tasks_[g] == nullptr || !sync_tasks_[g]->all_reduce_only) continue;
    const ValueId v = structure_.gradients[g].gradient;
    const int produced = ComputePoint(position_of_value_[v]);
    int start = produced;
    for (const auto& [group, bytes] : sync_tasks_[g]->reductions) {
      const int bucket = buckets_.Add(group, bytes);
      if (bucket == static_cast<int>(bucket_start.size())) bucket_start.push_back(produced);
      start = std::min(start, bucket_start[bucket]);
    }
    (*starts)[g] = start;
  }
}

void Simulator::AddMemory(const std::vector<ValueId>& values, int64_t sign) {
  const int end = static_cast<int>(structure_.positions.size());
  const auto add = [this](int64_t bytes, int64_t* to) {
    *to += bytes;
    if (memory_undo_.used) memory_undo_.changes.emplace_back(to, bytes);
  };
  auto alive = [&](const std::vector<int64_t>& bytes, int first, int last) {
    for (int d = 0; d < devices_; ++d) {
      if (bytes[d] == 0) continue;
      add(sign * bytes[d], &change_[d][first]);
      add(-sign * bytes[d], &change_[d][last + 1]);
      total_[d] += sign * bytes[d];
    }
  };

  // Workspace of the updates at the end, which run one after another.
  std::vector<int64_t> staging_at_end(devices_, 0);
  auto at_end = [&](const std::vector<int64_t>& bytes) {
    for (int d = 0; d < devices_; ++d) staging_at_end[d] = std::max(staging_at_end[d], bytes[d]);
  };
  // Gradients that wait for the end are accumulated into those of the first micro-batch.
  auto added_up = [&](const std::vector<int64_t>& bytes, int first, int last) {
    if (last < ReshardPoint(end)) return;
    for (int d = 0; d < devices_; ++d) gradient_change_[d][first] += bytes[d];
  };
  // The program point of the update that uses gradient `g`.
  auto used_until = [&](int g) {
    const bool early = sync_tasks_[g] == nullptr && UpdatesEarly(costs_.optimizer()) &&
                       structure_.micro_batches == 1;
    return ComputePoint(early ? structure_.gradients[g].ready : end);
  };

  absl::InlinedVector<Held, 8> held;
  for (ValueId v : values) {
    const Value& value = structure_.graph().value(v);
    const std::vector<int>& slots = structure_.slots_of_value[v];
    if (slots.empty()) continue;
    const int element = ElementBytes(v);
    const bool loaded = !structure_.base[v].present();
    const bool parameter = value.kind == ValueKind::kParameter;
    const bool anew = GatheredForEachUse(structure_, placement_, table_.layouts(), v);
    held.clear();
    if (!loaded) {
      const int produced = parameter ? 0 : ComputePoint(position_of_value_[v]);
      held.push_back({base_layout_[v], produced, produced});
    }
    for (int s : slots) {
      const int layout = slot_layout_[s];
      const int needed = ReshardPoint(structure_.slots[s].position);
      auto it = std::find_if(held.begin(), held.end(), [&](const Held& h) {
        return h.layout == layout && (!anew || &h == &held[0] || h.first == needed);
      });
      if (it == held.end()) {
        held.push_back({layout, needed, ComputePoint(last_use_[s])});
      } else {
        it->last = std::max(it->last, ComputePoint(last_use_[s]));
      }
    }
    if (loaded) {
      for (const Held& h : held) {
        const std::vector<int64_t>& bytes = costs_.BytesByDevice(h.layout, element);
        const int copies = structure_.BatchDim(v) < 0 ? 1 : structure_.micro_batches;
        for (int d = 0; d < devices_; ++d) kept_[d] += sign * copies * bytes[d];
      }
      continue;
    }
    Held& base = held[0];
    const int g = gradient_of_value_[v];
    Held* pieces = nullptr;  // shards of a gradient for its update
    if (g >= 0) {
      const LayoutRef& required = structure_.slots[structure_.gradients[g].slot].required;
      const int target = Resolved(required);
      if (target != base.layout && IsSharded(structure_, placement_, table_.layouts(), required)) {
        pieces = std::find_if(held.begin(), held.end(),
                              [&](const Held& h) { return h.layout == target; });
        pieces->last = used_until(g);
      }
    }
    bool in_place = false;
    for (size_t i = 1; i < held.size(); ++i) {
      const ReshardTasks& reshard = **costs_.Reshard(base.layout, held[i].layout, element);
      in_place =
          !parameter && held.size() == 2 && reshard.all_reduce_only && base.last <= held[i].first;
      base.last = std::max(base.last, reshard.aliases || in_place ? held[i].last : held[i].first);
      if (&held[i] == pieces && sync_tasks_[g] != nullptr) {
        // Gradients are sharded one after another; each frees memory for the next one's shards.
        alive(reshard.new_bytes, ComputePoint(end), held[i].last);
        at_end(reshard.staging_bytes);
        continue;
      }
      if (!in_place) alive(reshard.new_bytes, held[i].first, held[i].last);
      if (&held[i] == pieces) added_up(reshard.new_bytes, held[i].first, held[i].last);
      alive(reshard.staging_bytes, held[i].first, held[i].first);
    }
    const std::vector<int64_t>& bytes = costs_.BytesByDevice(base.layout, element);
    if (parameter) {
      for (int d = 0; d < devices_; ++d) kept_[d] += sign * bytes[d];
      const int updated = gradient_of_parameter_[v];
      if (updated < 0) continue;
      const int layout = Resolved(structure_.slots[structure_.gradients[updated].slot].required);
      const CostTables::OptimizerMemory& state = costs_.OptimizerMemoryOf(v);
      const std::vector<int64_t>& alike = costs_.BytesByDevice(layout, sizeof(float));
      for (int d = 0; d < devices_; ++d) kept_[d] += sign * state.alike * alike[d];
      for (const Shard& shard : table_.layouts().Get(layout).shards) {
        kept_[shard.device] += sign * state.bytes;
      }
      const std::vector<int64_t>& staging = update_tasks_[updated]->staging_bytes;
      const int when = used_until(updated);
      if (when < ComputePoint(end)) {
        alive(staging, when, when);
      } else {
        at_end(staging);
      }
      continue;
    }
    if (g >= 0 && pieces == nullptr) {
      if (starts_[g] >= 0) base.first = starts_[g];
      base.last = used_until(g);
    } else if (is_view_[v]) {
      continue;  // shares its operand's memory
    }
    alive(bytes, base.first, base.last);
    if (g >= 0) added_up(bytes, base.first, base.last);
  }
  alive(staging_at_end, ComputePoint(end), ComputePoint(end));
}

std::vector<int64_t> Simulator::FindMemoryChanges() {
  memory_undo_.used = false;
  kept_.assign(devices_, 0);
  total_.assign(devices_, 0);
  change_.resize(devices_);
  for (auto& change : change_) {
    change.assign(ComputePoint(static_cast<int>(structure_.positions.size())) + 2, 0);
  }
  gradient_change_ = change_;
  FindGradientStarts(&starts_);
  AddMemory(all_values_, 1);
  return kept_;
}

void Simulator::UpdateMemory() {
  memory_undo_.used = true;
  memory_undo_.kept = kept_;
  memory_undo_.total = total_;
  memory_undo_.starts = starts_;
  memory_undo_.changes.clear();
  std::vector<int> starts = starts_;
  if (!undo_.syncs.empty()) FindGradientStarts(&starts);
  for (size_t g = 0; g < starts.size(); ++g) {
    const ValueId v = structure_.gradients[g].gradient;
    if (starts[g] == starts_[g] || std::find(touched_.begin(), touched_.end(), v) != touched_.end())
      continue;
    touched_.push_back(v);
  }
  Flip();
  AddMemory(touched_, -1);
  Flip();
  starts_ = std::move(starts);
  AddMemory(touched_, 1);
}

void Simulator::RevertMemory() {
  kept_ = memory_undo_.kept;
  total_ = memory_undo_.total;
  starts_ = memory_undo_.starts;
  for (const auto& [to, bytes] : memory_undo_.changes) *to -= bytes;
  memory_undo_.used = false;
}

std::vector<std::pair<int, int>> Simulator::ProgramPoints() {
  std::vector<std::pair<int, int>> points;
  ForEachPosition([&](int p, int micro_batch) {
    points.emplace_back(ReshardPoint(p), micro_batch);
    points.emplace_back(ComputePoint(p), micro_batch);
  });
  const int end = static_cast<int>(structure_.positions.size());
  for (int m = 0; m < structure_.micro_batches; ++m) points.emplace_back(ReshardPoint(end), m);
  points.emplace_back(ComputePoint(end), 0);
  return points;
}

std::vector<int64_t> Simulator::PeakMemory() {
  std::vector<int64_t> bytes = kept_;
  if (structure_.micro_batches == 1) {
    for (int d = 0; d < devices_; ++d) {
      int64_t now = 0, peak = 0;
      for (int64_t change : change_[d]) {
        now += change;
        peak = std::max(peak, now);
      }
      bytes[d] += peak;
    }
    return bytes;
  }
  const std::vector<std::pair<int, int>> points = ProgramPoints();
  int64_t peak = 0;
  for (int d = 0; d < devices_; ++d) {
    // Devices that run the same operators have the same memory.
    const bool alike =
        d > 0 && change_[d] == change_[d - 1] && gradient_change_[d] == gradient_change_[d - 1];
    if (!alike) {
      peak = 0;
      int64_t now = 0;
      for (const auto& [point, micro_batch] : points) {
        now += ChangeAt(d, point, micro_batch);
        peak = std::max(peak, now);
      }
    }
    bytes[d] += peak;
  }
  return bytes;
}

std::vector<int64_t> Simulator::EstimateMemory() {
  FindMemoryChanges();
  return PeakMemory();
}

}  // namespace espalier
