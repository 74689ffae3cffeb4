#include "planner/lowering/rank_program.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "planner/memory/arena.h"

namespace espalier {

proto::TensorSpec ToProto(const TensorSpec& spec) {
  proto::TensorSpec out;
  out.set_dtype(ToProto(spec.dtype));
  for (int64_t d : spec.dims) out.add_dims(d);
  if (spec.dims != spec.global) {
    for (int64_t d : spec.offset) out.add_offset(d);
    for (int64_t d : spec.global) out.add_global(d);
  }
  return out;
}

std::vector<int> BuffersOf(const proto::Instruction& instruction) {
  using Kind = proto::Instruction;
  std::vector<int> all;
  switch (instruction.kind_case()) {
    case Kind::kCompute:
      for (int b : instruction.compute().inputs()) all.push_back(b);
      for (int b : instruction.compute().outputs()) all.push_back(b);
      break;
    case Kind::kCopy:
      all = {instruction.copy().source(), instruction.copy().destination()};
      break;
    case Kind::kFill:
      all = {instruction.fill().buffer()};
      break;
    case Kind::kSend:
      all = {instruction.send().buffer()};
      break;
    case Kind::kReceive:
      all = {instruction.receive().buffer()};
      break;
    case Kind::kCollective:
      all = {instruction.collective().input(), instruction.collective().output()};
      break;
    case Kind::kSwapOut:
      all = {instruction.swap_out().buffer()};
      break;
    case Kind::kSwapIn:
      all = {instruction.swap_in().buffer()};
      break;
    case Kind::kLoadBatch:
      all = {instruction.load_batch().buffer()};
      break;
    case Kind::kReport:
      all = {instruction.report().buffer()};
      break;
    case Kind::kUpdate:
      all = {instruction.update().parameter(), instruction.update().gradient(),
             instruction.update().scale(), instruction.update().hyper()};
      for (int b : instruction.update().state()) all.push_back(b);
      for (int b : instruction.update().sums()) all.push_back(b);
      if (instruction.update().has_result()) all.push_back(instruction.update().result());
      break;
    case Kind::KIND_NOT_SET:
      break;
  }
  all.erase(std::remove(all.begin(), all.end(), -1), all.end());
  return all;
}

RankProgram::RankProgram(int rank, int world_size) {
  program_.set_format_version(1);
  program_.set_rank(rank);
  program_.set_world_size(world_size);
}

int RankProgram::Allocate(int64_t bytes) {
  allocation_bytes_.push_back(bytes);
  allocation_users_.push_back(0);
  return static_cast<int>(allocation_bytes_.size()) - 1;
}

int RankProgram::AddBuffer(const std::string& name, const TensorSpec& spec, proto::BufferKind kind,
                           int allocation, int64_t offset) {
  if (allocation < 0) allocation = Allocate(spec.bytes());
  proto::Buffer* buffer = program_.add_buffers();
  std::string unique = name;
  for (int n = 2; !names_.insert(unique).second; ++n) unique = absl::StrCat(name, "#", n);
  buffer->set_name(unique);
  *buffer->mutable_spec() = ToProto(spec);
  buffer->set_kind(kind);
  specs_.push_back(spec);
  allocation_of_.push_back(allocation);
  offset_in_allocation_.push_back(offset);
  ++allocation_users_[allocation];
  return program_.buffers_size() - 1;
}

int RankProgram::AddAlias(const std::string& name, const TensorSpec& spec, int buffer) {
  return AddBuffer(name, spec, kind(buffer), allocation_of_[buffer], offset_in_allocation_[buffer]);
}

bool RankProgram::owns_memory(int index) const {
  return allocation_users_[allocation_of_[index]] == 1;
}

proto::Instruction* RankProgram::Emit(const std::string& node) {
  proto::Instruction* instruction = program_.add_instructions();
  instruction->set_node(node);
  return instruction;
}

proto::Instruction* RankProgram::EmitFirst(const std::string& node) {
  first_.emplace_back().set_node(node);
  return &first_.back();
}

void RankProgram::Copy(const std::string& node, int source, int destination,
                       const Dims& source_start, const Dims& destination_start, const Dims& size,
                       bool accumulate) {
  proto::CopyInstruction* copy = Emit(node)->mutable_copy();
  copy->set_source(source);
  copy->set_destination(destination);
  for (int64_t d : source_start) copy->add_source_start(d);
  for (int64_t d : destination_start) copy->add_destination_start(d);
  for (int64_t d : size) copy->add_size(d);
  copy->set_accumulate(accumulate);
}

int RankProgram::Group(const std::vector<int>& ranks) {
  auto [it, inserted] = groups_.try_emplace(ranks, program_.groups_size());
  if (inserted) {
    proto::Group* group = program_.add_groups();
    for (int rank : ranks) group->add_ranks(rank);
  }
  return it->second;
}

int64_t RankProgram::Finish(int64_t reserved_bytes) {
  if (!first_.empty()) {
    google::protobuf::RepeatedPtrField<proto::Instruction> all;
    all.Reserve(static_cast<int>(first_.size()) + program_.instructions_size());
    for (proto::Instruction& instruction : first_) *all.Add() = std::move(instruction);
    for (proto::Instruction& instruction : *program_.mutable_instructions()) {
      *all.Add() = std::move(instruction);
    }
    program_.mutable_instructions()->Swap(&all);
    first_.clear();
  }

  const int allocations = static_cast<int>(allocation_bytes_.size());
  std::vector<int64_t> offsets(allocations, -1);
  std::vector<proto::BufferKind> kinds(allocations, proto::SCRATCH);
  for (int b = 0; b < program_.buffers_size(); ++b) kinds[allocation_of_[b]] = kind(b);
  int64_t next = 0;
  auto place = [&](std::initializer_list<proto::BufferKind> which) {
    for (proto::BufferKind wanted : which) {
      for (int a = 0; a < allocations; ++a) {
        if (kinds[a] != wanted) continue;
        offsets[a] = next;
        next += AlignUp(allocation_bytes_[a]);
      }
    }
  };
  place({proto::PARAMETER_SHARD, proto::OPTIMIZER_STATE});
  const int64_t kept_bytes = next;
  next = std::max(next, reserved_bytes);
  place({proto::LITERAL, proto::PERSISTENT, proto::HOST_INPUT, proto::SCHEDULE});

  std::vector<Lifetime> lives(allocations);
  for (int a = 0; a < allocations; ++a) lives[a] = {allocation_bytes_[a], -1, -1};
  const int count = program_.instructions_size();
  for (int i = 0; i < count; ++i) {
    for (int b : BuffersOf(program_.instructions(i))) {
      Lifetime& life = lives[allocation_of_[b]];
      if (life.first < 0) life.first = i;
      life.last = i;
    }
  }
  std::vector<int> scratch;
  std::vector<Lifetime> scratch_lives;
  for (int a = 0; a < allocations; ++a) {
    if (kinds[a] != proto::SCRATCH) continue;
    if (kept_.count(a) > 0) lives[a].last = count;
    if (lives[a].first < 0) lives[a].first = lives[a].last = 0;
    scratch.push_back(a);
    scratch_lives.push_back(lives[a]);
  }
  const ArenaPlan arena = PlaceInArena(scratch_lives);
  for (size_t i = 0; i < scratch.size(); ++i) offsets[scratch[i]] = next + arena.offsets[i];
  for (int b = 0; b < program_.buffers_size(); ++b) {
    buffer(b)->set_offset_bytes(offsets[allocation_of_[b]] + offset_in_allocation_[b]);
  }
  program_.set_arena_bytes(next + arena.bytes);
  program_.set_peak_bytes(next + arena.peak_bytes);
  return kept_bytes;
}

}  // namespace espalier
