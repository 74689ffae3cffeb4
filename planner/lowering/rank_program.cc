#include "planner/lowering/rank_program.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "ops/program/buffer_accesses.h"
#include "planner/memory/arena.h"

namespace espalier {

v1::TensorSpec ToProto(const TensorSpec& spec) {
  v1::TensorSpec out;
  out.set_dtype(ToProto(spec.dtype));
  for (int64_t d : spec.dims) out.add_dims(d);
  if (spec.dims != spec.global) {
    for (int64_t d : spec.offset) out.add_offset(d);
    for (int64_t d : spec.global) out.add_global(d);
  }
  return out;
}

RankProgram::RankProgram(int rank, int world_size) {
  program_.set_format_version(1);
  program_.set_rank(rank);
  program_.set_world_size(world_size);
}

int RankProgram::Allocate(int64_t bytes) {
  allocation_bytes_.push_back(bytes);
  allocation_users_.push_back(0);
  kind_of_.push_back(v1::SCRATCH);
  return static_cast<int>(allocation_bytes_.size()) - 1;
}

int RankProgram::AddBuffer(const std::string& name, const TensorSpec& spec, v1::BufferKind kind,
                           int allocation, int64_t offset) {
  if (allocation < 0) allocation = Allocate(spec.bytes());
  v1::Buffer* buffer = program_.add_buffers();
  std::string unique = name;
  for (int n = 2; !names_.insert(unique).second; ++n) unique = absl::StrCat(name, "#", n);
  buffer->set_name(unique);
  *buffer->mutable_spec() = ToProto(spec);
  buffer->set_kind(kind);
  specs_.push_back(spec);
  kind_of_[allocation] = kind;
  allocation_of_.push_back(allocation);
  offset_in_allocation_.push_back(offset);
  ++allocation_users_[allocation];
  return program_.buffers_size() - 1;
}

int RankProgram::AddAlias(const std::string& name, const TensorSpec& spec, int buffer) {
  return AddSubBuffer(name, spec, buffer, 0);
}

int RankProgram::AddSubBuffer(const std::string& name, const TensorSpec& spec, int buffer,
                              int64_t begin_bytes) {
  return AddBuffer(name, spec, kind(buffer), allocation_of_[buffer],
                   offset_in_allocation_[buffer] + begin_bytes);
}

void RankProgram::SetSpec(int index, const TensorSpec& spec) {
  specs_[index] = spec;
  *program_.mutable_buffers(index)->mutable_spec() = ToProto(spec);
}

int RankProgram::CloneInto(int buffer, int allocation) {
  const int clone = AddBuffer(program_.buffers(buffer).name(), specs_[buffer], kind(buffer),
                              allocation, offset_in_allocation_[buffer]);
  program_.mutable_buffers(clone)->set_partial_sum(program_.buffers(buffer).partial_sum());
  return clone;
}

void RankProgram::MoveInto(int buffer, int allocation, int64_t offset) {
  const int from = allocation_of_[buffer];
  if (--allocation_users_[from] == 0) allocation_bytes_[from] = 0;
  ++allocation_users_[allocation];
  kind_of_[allocation] = kind(buffer);
  allocation_of_[buffer] = allocation;
  offset_in_allocation_[buffer] = offset;
}

bool RankProgram::owns_memory(int index) const {
  return allocation_users_[allocation_of_[index]] == 1;
}

v1::Instruction* RankProgram::Emit(const std::string& node) {
  v1::Instruction* instruction = program_.add_instructions();
  instruction->set_node(node);
  return instruction;
}

v1::Instruction* RankProgram::EmitPrologue(const std::string& node) {
  first_.emplace_back().set_node(node);
  return &first_.back();
}

void RankProgram::Copy(const std::string& node, int source, int destination,
                       const Dims& source_start, const Dims& destination_start, const Dims& size,
                       bool accumulate) {
  v1::CopyInstruction* copy = Emit(node)->mutable_copy();
  copy->set_source(source);
  copy->set_destination(destination);
  for (int64_t d : source_start) copy->add_source_start(d);
  for (int64_t d : destination_start) copy->add_destination_start(d);
  for (int64_t d : size) copy->add_size(d);
  copy->set_accumulate(accumulate);
}

void RankProgram::AddOutput(const std::string& name, int buffer) {
  KeepToEnd(buffer);
  std::string unique = name;
  for (int n = 2; program_.outputs().contains(unique); ++n) unique = absl::StrCat(name, "#", n);
  (*program_.mutable_outputs())[unique] = buffer;
}

int RankProgram::Group(const std::vector<int>& ranks) {
  auto [it, inserted] = groups_.try_emplace(ranks, program_.groups_size());
  if (inserted) {
    v1::Group* group = program_.add_groups();
    for (int rank : ranks) group->add_ranks(rank);
  }
  return it->second;
}

void RankProgram::MergePrologue() {
  if (first_.empty()) return;
  google::protobuf::RepeatedPtrField<v1::Instruction> all;
  all.Reserve(static_cast<int>(first_.size()) + program_.instructions_size());
  for (v1::Instruction& instruction : first_) *all.Add() = std::move(instruction);
  for (v1::Instruction& instruction : *program_.mutable_instructions()) {
    *all.Add() = std::move(instruction);
  }
  program_.mutable_instructions()->Swap(&all);
  for (int& mark : marks_) mark += static_cast<int>(first_.size());
  first_.clear();
}

void RankProgram::SetInstructions(std::vector<v1::Instruction> instructions,
                                  std::vector<int> points) {
  points_ = std::move(points);
  for (int& mark : marks_) {
    const auto behind = std::lower_bound(points_.begin(), points_.end(), mark);
    mark = static_cast<int>(behind - points_.begin());
  }
  program_.clear_instructions();
  for (v1::Instruction& instruction : instructions) {
    *program_.add_instructions() = std::move(instruction);
  }
}

void RankProgram::SplitAllocations() {
  MergePrologue();
  std::vector<bool> touched(program_.buffers_size(), false);
  for (const v1::Instruction& instruction : program_.instructions()) {
    for (const BufferAccess& access : AccessesOf(instruction)) touched[access.buffer] = true;
  }
  for (const auto& [name, buffer] : program_.outputs()) touched[buffer] = true;
  std::vector<std::vector<int>> buffers(num_allocations());
  for (int b = 0; b < program_.buffers_size(); ++b) {
    const int a = allocation_of_[b];
    if (kind_of_[a] != v1::SCRATCH) {
      touched[b] = true;
    } else if (touched[b]) {
      buffers[a].push_back(b);
    }
  }
  const int before = num_allocations();
  for (int a = 0; a < before; ++a) {
    if (buffers[a].size() < 2 || kept_.count(a) > 0) continue;
    std::vector<int>& of = buffers[a];
    std::stable_sort(of.begin(), of.end(), [this](int x, int y) {
      return offset_in_allocation_[x] < offset_in_allocation_[y];
    });
    int64_t begin = 0, end = 0;
    int piece = a;
    for (int b : of) {
      const int64_t at = offset_in_allocation_[b];
      if (at >= end && at > 0 && at % kArenaAlignment == 0) {
        allocation_bytes_[piece] = end - begin;
        piece = Allocate(0);
        begin = at;
      }
      end = std::max(end, at + specs_[b].bytes());
      allocation_of_[b] = piece;
      offset_in_allocation_[b] = at - begin;
      if (piece != a) {
        --allocation_users_[a];
        ++allocation_users_[piece];
      }
    }
    allocation_bytes_[piece] = end - begin;
  }
  KeepBuffers(touched);
}

void RankProgram::KeepBuffers(const std::vector<bool>& keep) {
  std::vector<int> renamed(keep.size(), -1);
  google::protobuf::RepeatedPtrField<v1::Buffer> left;
  for (size_t b = 0; b < keep.size(); ++b) {
    if (!keep[b]) {
      names_.erase(program_.buffers(static_cast<int>(b)).name());
      --allocation_users_[allocation_of_[b]];
      continue;
    }
    const int to = left.size();
    renamed[b] = to;
    *left.Add() = std::move(*program_.mutable_buffers(static_cast<int>(b)));
    specs_[to] = specs_[b];
    allocation_of_[to] = allocation_of_[b];
    offset_in_allocation_[to] = offset_in_allocation_[b];
  }
  specs_.resize(left.size());
  allocation_of_.resize(left.size());
  offset_in_allocation_.resize(left.size());
  program_.mutable_buffers()->Swap(&left);
  for (v1::Instruction& instruction : *program_.mutable_instructions()) {
    RenameBuffers(renamed, &instruction);
  }
  for (auto& [name, buffer] : *program_.mutable_outputs()) buffer = renamed[buffer];
  // An allocation without buffers takes no memory.
  for (int a = 0; a < num_allocations(); ++a) {
    if (allocation_users_[a] == 0) allocation_bytes_[a] = 0;
  }
}

RankProgram::Kept RankProgram::PlaceKept(int64_t reserved_bytes) const {
  const int allocations = num_allocations();
  Kept kept;
  kept.offsets.assign(allocations, -1);
  const auto place = [&](std::initializer_list<v1::BufferKind> which) {
    for (v1::BufferKind wanted : which) {
      for (int a = 0; a < allocations; ++a) {
        if (kind_of_[a] != wanted) continue;
        kept.offsets[a] = kept.end;
        kept.end += AlignUp(allocation_bytes_[a]);
      }
    }
  };
  place({v1::PARAMETER_SHARD, v1::OPTIMIZER_STATE});
  kept.parameter_bytes = kept.end;
  kept.end = std::max(kept.end, reserved_bytes);
  place({v1::LITERAL, v1::PERSISTENT, v1::HOST_INPUT, v1::SCHEDULE});
  return kept;
}

int64_t RankProgram::Finish(int64_t reserved_bytes) {
  MergePrologue();
  Kept kept = PlaceKept(reserved_bytes);
  const int allocations = num_allocations();
  std::vector<Lifetime> lives(allocations);
  for (int a = 0; a < allocations; ++a) lives[a] = {allocation_bytes_[a], -1, -1};
  int point = -1;
  for (int i = 0; i < program_.instructions_size(); ++i) {
    point = points_.empty() ? i : points_[i];
    for (const BufferAccess& access : AccessesOf(program_.instructions(i))) {
      Lifetime& life = lives[allocation_of_[access.buffer]];
      if (life.first < 0) life.first = point;
      life.last = point;
    }
  }
  std::vector<int> scratch;
  std::vector<Lifetime> scratch_lives;
  for (int a = 0; a < allocations; ++a) {
    if (kind_of_[a] != v1::SCRATCH) continue;
    if (kept_.count(a) > 0) lives[a].last = std::max(point, 0);
    if (const auto held = held_until_.find(a); held != held_until_.end()) {
      lives[a].last = std::max(lives[a].last, held->second);
    }
    if (lives[a].first < 0) lives[a].first = lives[a].last = 0;
    scratch.push_back(a);
    scratch_lives.push_back(lives[a]);
  }
  const ArenaPlan arena = PlaceInArena(scratch_lives);
  for (size_t i = 0; i < scratch.size(); ++i) {
    kept.offsets[scratch[i]] = kept.end + arena.offsets[i];
  }
  for (int b = 0; b < program_.buffers_size(); ++b) {
    buffer(b)->set_offset_bytes(kept.offsets[allocation_of_[b]] + offset_in_allocation_[b]);
  }
  program_.set_arena_bytes(kept.end + arena.bytes);
  program_.set_peak_bytes(kept.end + arena.peak_bytes);
  return kept.parameter_bytes;
}

}  // namespace espalier
