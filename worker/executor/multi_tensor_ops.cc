#include "worker/executor/multi_tensor_ops.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>

#include "google/protobuf/util/message_differencer.h"

namespace espalier {
namespace {

bool Elementwise(const v1::Instruction& instruction) {
  return instruction.has_update() && instruction.update().sums().empty() &&
         !instruction.update().has_result();
}

using AttributeMap = google::protobuf::Map<std::string, v1::Attribute>;

bool Equal(const AttributeMap& a, const AttributeMap& b, const std::vector<std::string>& but = {}) {
  const auto within = [&](const AttributeMap& some, const AttributeMap& all) {
    return std::all_of(some.begin(), some.end(), [&](const auto& attribute) {
      if (std::find(but.begin(), but.end(), attribute.first) != but.end()) return true;
      const auto found = all.find(attribute.first);
      return found != all.end() &&
             google::protobuf::util::MessageDifferencer::Equals(attribute.second, found->second);
    });
  };
  return within(a, b) && within(b, a);
}

bool SameUpdate(const v1::UpdateInstruction& a, const v1::UpdateInstruction& b) {
  if (a.op() != b.op() || a.hyper() != b.hyper() || a.scale() != b.scale() ||
      a.state_size() != b.state_size()) {
    return false;
  }
  for (int i = 0; i < a.state_size(); ++i) {
    if ((a.state(i) < 0) != (b.state(i) < 0)) return false;
  }
  return Equal(a.attributes(), b.attributes());
}

// Disjoint memory ranges.
class Regions {
 public:
  explicit Regions(const ProgramMemory& memory) : memory_(memory) {}

  // Adds buffer `b`; returns false without adding it if it overlaps.
  bool Add(int b) {
    if (b < 0 || memory_.bytes(b) == 0) return true;
    const char* begin = memory_.data(b);
    const char* end = begin + memory_.bytes(b);
    const auto next = ends_.upper_bound(begin);
    if (next != ends_.end() && next->first < end) return false;
    if (next != ends_.begin() && std::prev(next)->second > begin) return false;
    ends_[begin] = end;
    return true;
  }

  bool Add(const v1::UpdateInstruction& update) {
    return Add(update.parameter()) && Add(update.gradient()) &&
           std::all_of(update.state().begin(), update.state().end(), [&](int b) { return Add(b); });
  }

 private:
  const ProgramMemory& memory_;
  std::map<const char*, const char*> ends_;  // by begin
};

// Returns the size of the group of updates that starts at `first`.
int GroupUpdates(const v1::Program& program, const ProgramMemory& memory, int first) {
  const v1::UpdateInstruction& update = program.instructions(first).update();
  int end = first + 1;
  Regions regions(memory);
  bool apart = regions.Add(update.hyper()) && regions.Add(update.scale()) && regions.Add(update);
  while (apart && end < program.instructions_size() && Elementwise(program.instructions(end)) &&
         SameUpdate(update, program.instructions(end).update())) {
    apart = regions.Add(program.instructions(end).update());
    if (apart) ++end;
  }
  return end - first;
}

bool Overlap(const ProgramMemory& memory, int a, int b) {
  return a >= 0 && b >= 0 && memory.data(a) < memory.data(b) + memory.bytes(b) &&
         memory.data(b) < memory.data(a) + memory.bytes(a);
}

// True if `writer` writes memory that `other` reads or writes.
bool Conflicts(const ProgramMemory& memory, const v1::ComputeInstruction& writer,
               const v1::ComputeInstruction& other) {
  return std::any_of(writer.outputs().begin(), writer.outputs().end(), [&](int written) {
    const auto overlaps = [&](int b) { return Overlap(memory, written, b); };
    return std::any_of(other.inputs().begin(), other.inputs().end(), overlaps) ||
           std::any_of(other.outputs().begin(), other.outputs().end(), overlaps);
  });
}

// Returns the size of the group of compute instructions that starts at `first`.
int GroupComputes(const v1::Program& program, const ProgramMemory& memory,
                  const SwapDependencies& dependencies, const KernelRegistry& kernels, int first) {
  const v1::ComputeInstruction& one = program.instructions(first).compute();
  const std::vector<std::string>* const may_differ = kernels.HorizontalFusion(one.op());
  if (may_differ == nullptr || !program.batch_invariant()) return 1;
  int end = first + 1;
  for (; end < program.instructions_size(); ++end) {
    const v1::ComputeInstruction& next = program.instructions(end).compute();
    if (next.op() != one.op() || next.inputs(0) != one.inputs(0) ||
        next.inputs_size() != one.inputs_size() || next.outputs_size() != one.outputs_size() ||
        !Equal(next.attributes(), one.attributes(), *may_differ) ||
        !dependencies.before[end].empty()) {
      break;
    }
    bool apart = true;
    for (int i = first; i < end && apart; ++i) {
      const v1::ComputeInstruction& before = program.instructions(i).compute();
      apart = !Conflicts(memory, before, next) && !Conflicts(memory, next, before);
    }
    if (!apart) break;
  }
  return end - first;
}

}  // namespace

std::vector<int> MultiTensorGroups(const v1::Program& program, const ProgramMemory& memory,
                                   const SwapDependencies& dependencies,
                                   const KernelRegistry& kernels) {
  const int n = program.instructions_size();
  std::vector<int> counts(n, 1);
  for (int first = 0; first < n; first += counts[first]) {
    const v1::Instruction& instruction = program.instructions(first);
    if (Elementwise(instruction)) counts[first] = GroupUpdates(program, memory, first);
    if (instruction.has_compute()) {
      counts[first] = GroupComputes(program, memory, dependencies, kernels, first);
    }
    std::fill_n(counts.begin() + first + 1, counts[first] - 1, 0);
  }
  return counts;
}

}  // namespace espalier
