#include "planner/memory/weight_streaming.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "planner/memory/arena.h"

namespace espalier {
namespace {

// Fraction of all bytes that the smallest parameters may occupy to stay resident: a copy has a
// fixed cost.
constexpr int64_t kSmallest = 100;

// Parameters that stream together or stay together.
struct Group {
  int step = 0;
  int64_t bytes = 0;
  std::vector<size_t> members;
  bool resident = false;
};

class Streamer {
 public:
  explicit Streamer(const std::vector<StreamableWeight>& parameters) : parameters_(parameters) {
    for (const StreamableWeight& p : parameters) all_ += AlignUp(p.bytes);
    MakeGroups();
  }

  absl::StatusOr<WeightStreamingPlan> Plan(int64_t budget) {
    WeightStreamingPlan plan;
    plan.places.resize(parameters_.size());
    plan.resident_bytes = all_;
    if (all_ <= budget) return plan;
    // Groups above a size stay resident. A smaller size means a smaller double buffer and fewer
    // copies.
    std::vector<int64_t> sizes;
    for (const Group& group : groups_) sizes.push_back(group.bytes);
    std::sort(sizes.begin(), sizes.end());
    for (const int64_t most : sizes) {
      const int64_t needed = ResidentBytes(most) + 2 * most;
      if (needed > budget) continue;
      for (Group& group : groups_) group.resident = group.bytes > most;
      SpreadResident(budget - needed);
      Place(&plan);
      return plan;
    }
    return absl::ResourceExhaustedError(
        absl::StrCat("parameters of ", all_, " bytes cannot stream through ", budget,
                     ": what must stay, and a double buffer, take ", MinBudget()));
  }

  int64_t MinBudget() const {
    int64_t least = all_;
    for (const Group& group : groups_) {
      least = std::min(least, ResidentBytes(group.bytes) + 2 * group.bytes);
    }
    return least;
  }

 private:
  void MakeGroups() {
    std::vector<size_t> order(parameters_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [this](size_t a, size_t b) {
      return parameters_[a].bytes < parameters_[b].bytes;
    });
    int64_t small = 0;
    std::map<int, Group> by_step;
    for (const size_t i : order) {
      const StreamableWeight& p = parameters_[i];
      small += AlignUp(p.bytes);
      if (p.must_stay || p.first_use != p.last_use || small <= all_ / kSmallest) {
        always_ += AlignUp(p.bytes);
        continue;
      }
      Group& group = by_step[p.first_use];
      group.step = p.first_use;
      group.bytes += AlignUp(p.bytes);
      group.members.push_back(i);
    }
    for (auto& [step, group] : by_step) groups_.push_back(std::move(group));
  }

  // Bytes that stay if groups larger than `most` stay.
  int64_t ResidentBytes(int64_t most) const {
    int64_t bytes = always_;
    for (const Group& group : groups_) bytes += group.bytes > most ? group.bytes : 0;
    return bytes;
  }

  // Makes `room` more bytes resident, spread evenly over the steps.
  void SpreadResident(int64_t room) {
    double streamed = 0, due = 0;
    for (const Group& group : groups_) {
      streamed += group.resident ? 0.0 : static_cast<double>(group.bytes);
    }
    const double part = static_cast<double>(room) / std::max(streamed, 1.0);
    const auto stay = [&room](Group& group) {
      room -= group.bytes;
      group.resident = true;
    };
    for (Group& group : groups_) {
      if (group.resident) continue;
      const double bytes = static_cast<double>(group.bytes);
      due += part * bytes;
      if (due < bytes / 2 || group.bytes > room) continue;
      due -= bytes;
      stay(group);
    }
    for (Group& group : groups_) {
      if (!group.resident && group.bytes <= room) stay(group);
    }
  }

  // Groups alternate between the two ends of the buffer.
  void Place(WeightStreamingPlan* plan) const {
    std::vector<const Group*> streamed;
    for (const Group& group : groups_) {
      if (!group.resident) streamed.push_back(&group);
    }
    for (size_t g = 0; g < streamed.size(); ++g) {
      const int64_t next = g + 1 < streamed.size() ? streamed[g + 1]->bytes : 0;
      plan->buffer_bytes = std::max(plan->buffer_bytes, streamed[g]->bytes + next);
      plan->streamed_bytes += streamed[g]->bytes;
    }
    for (size_t g = 0; g < streamed.size(); ++g) {
      int64_t offset = g % 2 == 0 ? 0 : plan->buffer_bytes - streamed[g]->bytes;
      for (const size_t i : streamed[g]->members) {
        plan->places[i] = {true, offset, g < 2 ? 0 : streamed[g - 2]->step + 1};
        offset += AlignUp(parameters_[i].bytes);
      }
    }
    plan->resident_bytes = all_ - plan->streamed_bytes + plan->buffer_bytes;
  }

  const std::vector<StreamableWeight>& parameters_;
  int64_t all_ = 0, always_ = 0;
  std::vector<Group> groups_;  // by step
};

}  // namespace

absl::StatusOr<WeightStreamingPlan> PlanWeightStreaming(
    const std::vector<StreamableWeight>& parameters, int64_t budget) {
  return Streamer(parameters).Plan(budget);
}

int64_t MinWeightBudget(const std::vector<StreamableWeight>& parameters) {
  return Streamer(parameters).MinBudget();
}

}  // namespace espalier
