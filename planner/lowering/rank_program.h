// The program of one device under construction. Buffers live in allocations (several may share
// one); Finish sets their offsets from the instructions that touch them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "espalier/v1/program.pb.h"
#include "ops/tensor/view.h"

namespace espalier {

v1::TensorSpec ToProto(const TensorSpec& spec);

class RankProgram {
 public:
  RankProgram(int rank, int world_size);

  // Adds a block of memory.
  int Allocate(int64_t bytes);

  // Adds a buffer in `allocation` at `offset`, or in a new allocation if -1. A taken name gets "#2"
  // appended, and so on. Returns its index.
  int AddBuffer(const std::string& name, const TensorSpec& spec, v1::BufferKind kind,
                int allocation = -1, int64_t offset = 0);

  // Adds a view of the memory of `buffer` with type `spec`.
  int AddAlias(const std::string& name, const TensorSpec& spec, int buffer);

  // Adds a view of the memory of `buffer` from `begin_bytes` on.
  int AddSubBuffer(const std::string& name, const TensorSpec& spec, int buffer,
                   int64_t begin_bytes);

  // Reinterprets the buffer's bytes as `spec`.
  void SetSpec(int index, const TensorSpec& spec);

  v1::Buffer* buffer(int index) { return program_.mutable_buffers(index); }
  const TensorSpec& spec(int index) const { return specs_[index]; }
  v1::BufferKind kind(int index) const { return program_.buffers(index).kind(); }
  // Whether no other buffer shares the memory of `buffer`.
  bool owns_memory(int index) const;

  // Appends an empty instruction; `node` is the plan's operator that it belongs to.
  v1::Instruction* Emit(const std::string& node);
  // Adds an instruction that runs before all those from Emit.
  v1::Instruction* EmitPrologue(const std::string& node);

  void Copy(const std::string& node, int source, int destination, const Dims& source_start,
            const Dims& destination_start, const Dims& size, bool accumulate);

  int Group(const std::vector<int>& ranks);

  // Keeps the contents of `buffer` until the end of the program.
  void KeepToEnd(int buffer) { kept_.insert(allocation_of_[buffer]); }

  // Makes `buffer` hold a part of a named output, until the end: Program.outputs gets "<name>",
  // then
  // "<name>#2", ...
  void AddOutput(const std::string& name, int buffer);

  // Marks the place behind the last instruction from Emit. Returns, by mark, the number of the
  // first instruction behind it; after Finish, those of the finished program.
  void Mark() { marks_.push_back(program_.instructions_size()); }
  const std::vector<int>& marks() const { return marks_; }

  // Splits allocations that instructions touch only in parts into one allocation per part, and
  // removes scratch buffers that no instruction touches. Invalidates buffer indices.
  void SplitAllocations();

  // For memory planning (offload_recompute_pass.h), which rewrites a complete program.
  void MergePrologue();  // makes the prologue ordinary instructions
  int num_allocations() const { return static_cast<int>(allocation_bytes_.size()); }
  int64_t allocation_bytes(int allocation) const { return allocation_bytes_[allocation]; }
  int allocation_of(int buffer) const { return allocation_of_[buffer]; }
  int64_t offset_in_allocation(int buffer) const { return offset_in_allocation_[buffer]; }
  v1::BufferKind kind_of(int allocation) const { return kind_of_[allocation]; }
  bool kept_to_end(int allocation) const { return kept_.count(allocation) > 0; }
  // Adds a copy of `buffer` at the same offset of another allocation.
  int CloneInto(int buffer, int allocation);
  // Moves `buffer` to `offset` of `allocation`. REQUIRES: owns_memory(buffer).
  void MoveInto(int buffer, int allocation, int64_t offset);
  // `points`, by instruction, ascending: the program points in which lifetimes are measured.
  void SetInstructions(std::vector<v1::Instruction> instructions, std::vector<int> points);
  // Reserves the memory of `allocation` until the end of program point `last`.
  void HoldUntil(int allocation, int last) { held_until_[allocation] = last; }
  // Returns the offset at which scratch memory begins.
  int64_t ScratchBegin(int64_t reserved_bytes) const { return PlaceKept(reserved_bytes).end; }

  // Sets offsets, arena size and peak. The arena holds, in order: parameters and optimizer states;
  // nothing below `reserved_bytes`; literals, persistent and host input buffers; scratch. Returns
  // the bytes of parameters and optimizer states.
  int64_t Finish(int64_t reserved_bytes);

  v1::Program TakeProgram() { return std::move(program_); }
  const v1::Program& program() const { return program_; }

 private:
  // The allocations that are not scratch, one after another.
  struct Kept {
    std::vector<int64_t> offsets;  // by allocation; -1: scratch
    int64_t parameter_bytes = 0;   // and optimizer states
    int64_t end = 0;
  };
  Kept PlaceKept(int64_t reserved_bytes) const;
  // Keeps the buffers with `keep` set and renumbers them in all instructions.
  void KeepBuffers(const std::vector<bool>& keep);

  v1::Program program_;
  std::vector<v1::Instruction> first_;
  std::vector<TensorSpec> specs_;
  std::vector<int64_t> allocation_bytes_;
  std::vector<int> allocation_users_;
  std::vector<v1::BufferKind> kind_of_;  // by allocation
  std::vector<int> allocation_of_;       // by buffer
  std::vector<int64_t> offset_in_allocation_;
  std::set<int> kept_;
  std::vector<int> marks_;
  std::map<int, int> held_until_;
  std::vector<int> points_;  // by instruction; empty: their numbers
  std::set<std::string> names_;
  std::map<std::vector<int>, int> groups_;
};

}  // namespace espalier
