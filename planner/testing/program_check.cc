#include "planner/testing/program_check.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "ops/program/buffer_accesses.h"

namespace espalier {
namespace {

constexpr int64_t kAlignment = 64;

int64_t BytesOf(const v1::Buffer& buffer) {
  int64_t bytes = static_cast<int64_t>(SizeOf(FromProto(buffer.spec().dtype())));
  for (int64_t d : buffer.spec().dims()) bytes *= d;
  return bytes;
}

class RankChecker {
 public:
  explicit RankChecker(const v1::Program& program) : program_(program) {}

  absl::Status CheckBuffers() {
    std::set<std::string> names;
    for (const v1::Buffer& buffer : program_.buffers()) {
      if (!names.insert(buffer.name()).second) {
        return Error(absl::StrCat("two buffers are called '", buffer.name(), "'"));
      }
      if (buffer.offset_bytes() < 0 || buffer.offset_bytes() % kAlignment != 0 ||
          buffer.offset_bytes() + BytesOf(buffer) > program_.arena_bytes()) {
        return Error(absl::StrCat("buffer '", buffer.name(), "' at ", buffer.offset_bytes(), " of ",
                                  BytesOf(buffer), " bytes does not lie in the arena"));
      }
    }
    if (program_.peak_bytes() > program_.arena_bytes()) return Error("peak above arena");
    written_.assign(program_.buffers_size(), false);
    return absl::OkStatus();
  }

  // Tracks which buffers hold the data written into them.
  absl::Status Run(const v1::Instruction& instruction) {
    const std::vector<BufferAccess> accesses = AccessesOf(instruction);
    for (const BufferAccess& access : accesses) {
      if (access.buffer >= program_.buffers_size()) return Error("no such buffer");
    }
    if (instruction.has_copy()) {
      if (absl::Status status = CheckCopy(instruction.copy()); !status.ok()) return status;
    }
    for (const auto& [b, reads, writes] : accesses) {
      if (!reads || program_.buffers(b).kind() != v1::SCRATCH || Holds(b)) continue;
      // A bucket is sent with the gradients written so far.
      if (instruction.has_swap_out() && IsBucket(b) && HoldsSome(b)) continue;
      return Error(absl::StrCat("'", instruction.node(), "' ", instruction.ShortDebugString(),
                                " reads '", program_.buffers(b).name(),
                                "', which was not written or is overwritten"));
    }
    const bool in_place = instruction.has_update() ||
                          (instruction.has_collective() &&
                           instruction.collective().input() == instruction.collective().output());
    for (const auto& [b, reads, writes] : accesses) {
      const v1::BufferKind kind = program_.buffers(b).kind();
      if (!writes || kind == v1::PARAMETER_SHARD || kind == v1::OPTIMIZER_STATE) continue;
      // Copies fill a buffer box by box; other instructions write it whole, once.
      if (!instruction.has_copy() && !in_place && written_[b]) {
        return Error(absl::StrCat("buffer '", program_.buffers(b).name(), "' is written again by ",
                                  instruction.ShortDebugString()));
      }
      Write(b);
    }
    return absl::OkStatus();
  }

  absl::Status Error(const std::string& what) const {
    return absl::InternalError(absl::StrCat("rank ", program_.rank(), ": ", what));
  }

  int64_t bytes(int buffer) const { return BytesOf(program_.buffers(buffer)); }

 private:
  bool SameMemory(int a, int b) const {
    return program_.buffers(a).offset_bytes() == program_.buffers(b).offset_bytes() &&
           bytes(a) == bytes(b);
  }
  bool IsBucket(int b) const { return absl::StartsWith(program_.buffers(b).name(), "gradients."); }
  bool IsView(int b) const { return absl::StrContains(program_.buffers(b).name(), ".view"); }

  // "x" of "x#3": shards and copies of a tensor are numbered.
  static std::string BaseName(const std::string& name) { return name.substr(0, name.find('#')); }

  // Whether `a` and `b` hold the same elements of a tensor where they overlap: one is a slice of
  // the other along dimension 0.
  bool ArePieces(int a, int b) const {
    const v1::Buffer &x = program_.buffers(a), &y = program_.buffers(b);
    if (BaseName(x.name()) != BaseName(y.name()) || x.spec().dtype() != y.spec().dtype() ||
        x.spec().dims_size() != y.spec().dims_size() || x.spec().dims_size() == 0 ||
        x.spec().dims(0) == 0) {
      return false;
    }
    for (int d = 1; d < x.spec().dims_size(); ++d) {
      if (x.spec().dims(d) != y.spec().dims(d)) return false;
    }
    const auto first = [](const v1::TensorSpec& spec) {
      return spec.offset().empty() ? int64_t{0} : spec.offset(0);
    };
    const int64_t row = bytes(a) / x.spec().dims(0);
    return (first(x.spec()) - first(y.spec())) * row == x.offset_bytes() - y.offset_bytes();
  }

  // Whether the data written to `a` may be read as `b`. A buffer that no instruction writes is a
  // view of a written buffer, or a slice of such a view.
  bool IsRead(int a, int b) const {
    if (a == b || IsBucket(a) || IsBucket(b)) return true;
    if ((IsView(a) || IsView(b) || !written_[b]) && SameMemory(a, b)) return true;
    if (ArePieces(a, b)) return true;
    const int64_t apart = program_.buffers(b).offset_bytes() - program_.buffers(a).offset_bytes();
    return !written_[b] && bytes(b) > 0 && apart >= 0 && apart % bytes(b) == 0 &&
           bytes(a) % bytes(b) == 0 && apart + bytes(b) <= bytes(a);
  }

  // Whether every byte of `b` was last written as part of it.
  bool Holds(int b) const {
    const int64_t begin = program_.buffers(b).offset_bytes(), end = begin + bytes(b);
    std::set<std::string> pieces;
    for (int64_t at = begin; at < end;) {
      const auto after = owners_.upper_bound(at);
      const auto range = after == owners_.begin() ? owners_.end() : std::prev(after);
      if (range == owners_.end() || range->second.first <= at) {
        // Nothing writes the alignment padding between a bucket's gradients.
        const int64_t next = after == owners_.end() ? end : std::min(end, after->first);
        if (!IsBucket(b) || next - at >= kAlignment) return false;
        at = next;
        continue;
      }
      const auto& [last, owner] = range->second;
      if (!IsRead(owner, b)) {
        // A view of data written in slices.
        const int64_t from = program_.buffers(owner).offset_bytes();
        const bool inside = from >= begin && from + bytes(owner) <= end;
        pieces.insert(BaseName(program_.buffers(owner).name()));
        if (written_[b] || !inside || pieces.size() > 1) return false;
      }
      at = last;
    }
    return true;
  }

  bool HoldsSome(int b) const {
    const int64_t begin = program_.buffers(b).offset_bytes(), end = begin + bytes(b);
    return std::any_of(owners_.begin(), owners_.end(), [&](const auto& range) {
      return range.first >= begin && range.second.first <= end;
    });
  }

  void Write(int b) {
    const int64_t begin = program_.buffers(b).offset_bytes(), end = begin + bytes(b);
    written_[b] = true;
    if (begin == end) return;
    auto range = owners_.upper_bound(begin);
    if (range != owners_.begin()) --range;
    while (range != owners_.end() && range->first < end) {
      const auto [first, owned] = *range;
      if (owned.first <= begin) {
        ++range;
        continue;
      }
      range = owners_.erase(range);
      if (first < begin) owners_[first] = {begin, owned.second};
      if (owned.first > end) range = owners_.insert_or_assign(end, owned).first;
    }
    owners_[begin] = {end, b};
    // Written through a view.
    if (!IsView(b)) return;
    for (int a = 0; a < program_.buffers_size(); ++a) {
      const std::string& name = program_.buffers(a).name();
      if (a != b && SameMemory(a, b) &&
          absl::StartsWith(program_.buffers(b).name(), absl::StrCat(name, ".view"))) {
        written_[a] = true;
      }
    }
  }

  absl::Status CheckCopy(const v1::CopyInstruction& copy) const {
    auto inside = [&](int buffer, const auto& start) {
      const v1::TensorSpec& spec = program_.buffers(buffer).spec();
      if (spec.dims_size() != copy.size_size() || start.size() != copy.size_size()) return false;
      for (int d = 0; d < copy.size_size(); ++d) {
        if (start.Get(d) < 0 || copy.size(d) < 1 || start.Get(d) + copy.size(d) > spec.dims(d)) {
          return false;
        }
      }
      return true;
    };
    if (!inside(copy.source(), copy.source_start()) ||
        !inside(copy.destination(), copy.destination_start())) {
      return Error(absl::StrCat("box outside its buffer: ", copy.ShortDebugString()));
    }
    return absl::OkStatus();
  }

  const v1::Program& program_;
  std::vector<bool> written_;
  // First byte -> end, and the buffer that wrote it last.
  std::map<int64_t, std::pair<int64_t, int>> owners_;
};

}  // namespace

absl::Status CheckPrograms(const std::vector<v1::Program>& programs) {
  std::vector<RankChecker> ranks;
  for (const v1::Program& program : programs) {
    ranks.emplace_back(program);
    if (absl::Status status = ranks.back().CheckBuffers(); !status.ok()) return status;
  }
  std::vector<int> at(programs.size(), 0);
  std::set<uint64_t> tags;
  auto current = [&](size_t r) -> const v1::Instruction* {
    return at[r] < programs[r].instructions_size() ? &programs[r].instructions(at[r]) : nullptr;
  };
  auto step = [&](size_t r) {
    absl::Status status = ranks[r].Run(*current(r));
    ++at[r];
    return status;
  };
  bool moved = true;
  while (moved) {
    moved = false;
    for (size_t r = 0; r < programs.size(); ++r) {
      const v1::Instruction* instruction = current(r);
      if (instruction == nullptr) continue;
      if (instruction->has_receive()) continue;  // runs with its send
      if (instruction->has_send()) {
        const v1::SendInstruction& send = instruction->send();
        const v1::Instruction* other = current(send.peer());
        if (other == nullptr || !other->has_receive() || other->receive().tag() != send.tag()) {
          continue;
        }
        if (other->receive().peer() != static_cast<int>(r) ||
            ranks[r].bytes(send.buffer()) != ranks[send.peer()].bytes(other->receive().buffer())) {
          return ranks[r].Error("send and receive do not fit together");
        }
        if (!tags.insert(send.tag()).second) return ranks[r].Error("tag used twice");
        const size_t peer = send.peer();
        for (size_t both : {r, peer}) {
          if (absl::Status status = step(both); !status.ok()) return status;
        }
      } else if (instruction->has_collective()) {
        const v1::CollectiveInstruction collective = instruction->collective();
        const auto& group = programs[r].groups(collective.group()).ranks();
        bool all = true;
        for (int member : group) {
          const v1::Instruction* other = current(member);
          all = all && other != nullptr && other->has_collective() &&
                other->collective().tag() == collective.tag();
        }
        if (!all) continue;
        for (int member : group) {
          const v1::CollectiveInstruction& other = current(member)->collective();
          const auto& other_group = programs[member].groups(other.group()).ranks();
          if (other.kind() != collective.kind() ||
              !std::equal(group.begin(), group.end(), other_group.begin(), other_group.end()) ||
              ranks[member].bytes(other.input()) != ranks[r].bytes(collective.input()) ||
              ranks[member].bytes(other.output()) != ranks[r].bytes(collective.output())) {
            return ranks[r].Error("members of a collective do not agree");
          }
        }
        if (!tags.insert(collective.tag()).second) return ranks[r].Error("tag used twice");
        for (int member : group) {
          if (absl::Status status = step(member); !status.ok()) return status;
        }
      } else if (absl::Status status = step(r); !status.ok()) {
        return status;
      }
      moved = true;
    }
  }
  for (size_t r = 0; r < programs.size(); ++r) {
    if (current(r) != nullptr) {
      return ranks[r].Error(absl::StrCat("waits forever in instruction ", at[r], ": ",
                                         current(r)->ShortDebugString()));
    }
  }
  return absl::OkStatus();
}

}  // namespace espalier
