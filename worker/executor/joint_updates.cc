#include "worker/executor/joint_updates.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "google/protobuf/util/message_differencer.h"

namespace espalier {
namespace {

bool Elementwise(const proto::Instruction& instruction) {
  return instruction.has_update() && instruction.update().sums().empty() &&
         !instruction.update().has_result();
}

bool Alike(const proto::UpdateInstruction& a, const proto::UpdateInstruction& b) {
  if (a.op() != b.op() || a.hyper() != b.hyper() || a.scale() != b.scale() ||
      a.state_size() != b.state_size() || a.attributes_size() != b.attributes_size()) {
    return false;
  }
  for (int i = 0; i < a.state_size(); ++i) {
    if ((a.state(i) < 0) != (b.state(i) < 0)) return false;
  }
  for (const auto& [name, value] : a.attributes()) {
    const auto found = b.attributes().find(name);
    if (found == b.attributes().end() ||
        !google::protobuf::util::MessageDifferencer::Equals(value, found->second)) {
      return false;
    }
  }
  return true;
}

// Stretches of memory that do not overlap.
class Regions {
 public:
  explicit Regions(const ProgramMemory& memory) : memory_(memory) {}

  // False, and nothing is added, if buffer `b` overlaps what was added before it.
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

  bool Add(const proto::UpdateInstruction& update) {
    return Add(update.parameter()) && Add(update.gradient()) &&
           std::all_of(update.state().begin(), update.state().end(), [&](int b) { return Add(b); });
  }

 private:
  const ProgramMemory& memory_;
  std::map<const char*, const char*> ends_;  // by begin
};

}  // namespace

std::vector<int> JointUpdates(const proto::Program& program, const ProgramMemory& memory) {
  const int n = program.instructions_size();
  std::vector<int> counts(n, 1);
  for (int first = 0; first < n;) {
    int end = first + 1;
    if (Elementwise(program.instructions(first))) {
      const proto::UpdateInstruction& update = program.instructions(first).update();
      Regions regions(memory);
      bool apart =
          regions.Add(update.hyper()) && regions.Add(update.scale()) && regions.Add(update);
      while (apart && end < n && Elementwise(program.instructions(end)) &&
             Alike(update, program.instructions(end).update())) {
        apart = regions.Add(program.instructions(end).update());
        if (apart) ++end;
      }
    }
    counts[first] = end - first;
    for (int i = first + 1; i < end; ++i) counts[i] = 0;
    first = end;
  }
  return counts;
}

}  // namespace espalier
