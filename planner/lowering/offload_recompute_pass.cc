#include "planner/lowering/offload_recompute_pass.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/program/buffer_accesses.h"
#include "planner/memory/arena.h"

namespace espalier {
namespace {

// How often to lower the limit because of fragmentation of the arena.
constexpr int kRounds = 12;

// Number of tensors that an error message names.
constexpr size_t kNamed = 8;

// The program as a memory planning problem. Tensors are the allocations of scratch memory.
struct View {
  OffloadProblem problem;
  std::vector<int> allocation_of_tensor;
  std::vector<int> tensor_of_allocation;  // -1: not scratch, or never used
  std::vector<int> whole;                 // by tensor: a buffer that covers it, or -1
};

class ViewBuilder {
 public:
  explicit ViewBuilder(const RankProgram& program)
      : program_(program),
        accesses_(program.program().instructions_size()),
        writers_(program.num_allocations()) {
    for (size_t i = 0; i < accesses_.size(); ++i) {
      accesses_[i] = AccessesOf(Instruction(static_cast<int>(i)));
      for (const BufferAccess& access : accesses_[i]) {
        std::vector<int>& writers = writers_[program.allocation_of(access.buffer)];
        if (access.writes && (writers.empty() || writers.back() != static_cast<int>(i))) {
          writers.push_back(static_cast<int>(i));
        }
      }
    }
  }

  View Make(const OffloadRequest& request) {
    View view;
    view.problem.limit = request.limit - request.workspace;
    view.problem.fixed_bytes = program_.ScratchBegin(request.reserved_bytes);
    const int steps = static_cast<int>(accesses_.size());
    for (int i = 0; i < steps; ++i) view.problem.seconds.push_back(request.seconds(Instruction(i)));
    view.tensor_of_allocation.assign(program_.num_allocations(), -1);
    for (int i = 0; i < steps; ++i) {
      for (const BufferAccess& access : accesses_[i]) {
        const int allocation = program_.allocation_of(access.buffer);
        if (program_.kind_of(allocation) != v1::SCRATCH) continue;
        int& t = view.tensor_of_allocation[allocation];
        if (t < 0) {
          t = static_cast<int>(view.problem.tensors.size());
          OffloadTensor tensor;
          tensor.bytes = AlignUp(program_.allocation_bytes(allocation));
          view.problem.tensors.push_back(tensor);
          view.allocation_of_tensor.push_back(allocation);
          view.whole.push_back(-1);
        }
        OffloadTensor& tensor = view.problem.tensors[t];
        if (tensor.uses.empty() || tensor.uses.back() != i) tensor.uses.push_back(i);
        if (access.writes) tensor.last_write = i;
        if (program_.offset_in_allocation(access.buffer) == 0 &&
            program_.spec(access.buffer).bytes() == program_.allocation_bytes(allocation)) {
          view.whole[t] = access.buffer;
        }
      }
    }
    for (size_t t = 0; t < view.problem.tensors.size(); ++t) {
      OffloadTensor& tensor = view.problem.tensors[t];
      tensor.can_swap = view.whole[t] >= 0;
      if (program_.kept_to_end(view.allocation_of_tensor[t])) {
        tensor.can_swap = false;
        if (tensor.uses.back() != steps - 1) tensor.uses.push_back(steps - 1);
      } else {
        FindProducer(view, &tensor, view.allocation_of_tensor[t]);
      }
    }
    return view;
  }

 private:
  const v1::Instruction& Instruction(int i) const { return program_.program().instructions(i); }

  // Whether the first step that touches `allocation` computes all of it from inputs that it does
  // not modify. A parameter that no instruction writes may be a running statistic, which its
  // operator updates.
  void FindProducer(const View& view, OffloadTensor* tensor, int allocation) {
    const int step = tensor->uses.front();
    const v1::Instruction& instruction = Instruction(step);
    if (!instruction.has_compute() || tensor->last_write != step) return;
    std::set<int> from;
    int outputs = 0, inputs_valid_until = std::numeric_limits<int>::max();
    for (const auto& [buffer, reads, writes] : accesses_[step]) {
      const int other = program_.allocation_of(buffer);
      if (writes) {
        ++outputs;
        const bool whole = program_.offset_in_allocation(buffer) == 0 &&
                           program_.spec(buffer).bytes() == program_.allocation_bytes(allocation);
        if (other != allocation || !whole) return;
        continue;
      }
      if (other == allocation) return;
      switch (program_.kind_of(other)) {
        case v1::SCRATCH:
          from.insert(view.tensor_of_allocation[other]);
          break;
        case v1::PARAMETER_SHARD:
          if (writers_[other].empty()) return;
          break;
        case v1::LITERAL:
        case v1::HOST_INPUT:
          break;
        default:
          return;
      }
      const auto next = std::upper_bound(writers_[other].begin(), writers_[other].end(), step);
      if (next != writers_[other].end())
        inputs_valid_until = std::min(inputs_valid_until, *next + 1);
    }
    if (outputs != 1) return;
    tensor->producer = step;
    tensor->from.assign(from.begin(), from.end());
    tensor->inputs_valid_until = inputs_valid_until;
  }

  const RankProgram& program_;
  std::vector<std::vector<BufferAccess>> accesses_;  // by instruction
  std::vector<std::vector<int>> writers_;            // by allocation: instructions
};

// The evictions in the order in which they end: step by step, first what is copied back, then what
// is recomputed, each after its inputs.
class ReturnOrder {
 public:
  ReturnOrder(const View& view, const OffloadPlan& plan)
      : view_(view), by_step_(view.problem.seconds.size()) {
    std::vector<std::vector<const Eviction*>> made(by_step_.size());
    for (const Eviction& a : plan.evictions) (a.recompute ? made : by_step_)[a.back].push_back(&a);
    for (size_t k = 0; k < made.size(); ++k) {
      std::set<int> done;
      for (const Eviction* a : made[k]) Add(*a, made[k], &done);
    }
  }

  const std::vector<const Eviction*>& At(int step) const { return by_step_[step]; }

 private:
  void Add(const Eviction& eviction, const std::vector<const Eviction*>& made,
           std::set<int>* done) {
    if (!done->insert(eviction.tensor).second) return;
    for (int t : view_.problem.tensors[eviction.tensor].from) {
      for (const Eviction* other : made) {
        if (other->tensor == t) Add(*other, made, done);
      }
    }
    by_step_[eviction.back].push_back(&eviction);
  }

  const View& view_;
  std::vector<std::vector<const Eviction*>> by_step_;
};

// Computes the arena that RankProgram::Finish will lay out for the rewritten program.
ArenaPlan Place(const View& view, const OffloadPlan& plan, const RankProgram& program) {
  // By tensor: when its initial memory, and that after each eviction, is freed.
  std::vector<std::vector<int>> ends(view.problem.tensors.size());
  for (const Eviction& a : plan.evictions) ends[a.tensor].push_back(a.away - 1);
  for (size_t t = 0; t < ends.size(); ++t) {
    ends[t].push_back(view.problem.tensors[t].uses.back());
    std::sort(ends[t].begin(), ends[t].end());
  }
  std::vector<Lifetime> lives;
  std::vector<size_t> next(ends.size(), 0);
  const auto add = [&](int t, int first) {
    lives.push_back(
        {program.allocation_bytes(view.allocation_of_tensor[t]), first, ends[t][next[t]++]});
  };
  for (int a = 0; a < program.num_allocations(); ++a) {
    if (program.kind_of(a) != v1::SCRATCH) continue;
    const int t = view.tensor_of_allocation[a];
    if (t >= 0) {
      add(t, view.problem.tensors[t].uses.front());
    } else {
      lives.push_back({program.allocation_bytes(a), 0, 0});
    }
  }
  const ReturnOrder return_order(view, plan);
  for (size_t k = 0; k < view.problem.seconds.size(); ++k) {
    for (const Eviction* a : return_order.At(static_cast<int>(k))) add(a->tensor, a->back);
  }
  return PlaceInArena(lives);
}

class Rewriter {
 public:
  Rewriter(const View& view, const OffloadPlan& plan, const OffloadSettings& settings,
           RankProgram* program)
      : view_(view),
        return_order_(view, plan),
        settings_(settings),
        program_(*program),
        evictions_(view.problem.seconds.size()),
        buffers_(view.problem.tensors.size()) {
    for (const Eviction& a : plan.evictions) {
      if (!a.recompute && a.copies_out) evictions_[a.after].push_back(&a);
    }
    for (int b = 0; b < program_.program().buffers_size(); ++b) {
      current_.push_back(b);
      const int t = view.tensor_of_allocation[program_.allocation_of(b)];
      if (t >= 0) buffers_[t].push_back(b);
    }
  }

  void Run() {
    const std::vector<v1::Instruction> original(program_.program().instructions().begin(),
                                                program_.program().instructions().end());
    const int steps = static_cast<int>(original.size());
    for (step_ = 0; step_ < steps; ++step_) {
      for (const Eviction* a : return_order_.At(step_)) {
        NewMemory(a->tensor);
        if (a->recompute) {
          Emit(original[view_.problem.tensors[a->tensor].producer]);
          continue;
        }
        v1::Instruction swap;
        swap.set_node(original[a->before].node());
        swap.mutable_swap_in()->set_buffer(view_.whole[a->tensor]);
        swap.mutable_swap_in()->set_host_slot(Slot(a->tensor));
        swap.mutable_swap_in()->set_wait(settings_.wait_for_swapin);
        Emit(swap);
      }
      Emit(original[step_]);
      for (const Eviction* a : evictions_[step_]) {
        v1::Instruction swap;
        swap.set_node(original[a->after].node());
        swap.mutable_swap_out()->set_buffer(view_.whole[a->tensor]);
        swap.mutable_swap_out()->set_host_slot(Slot(a->tensor));
        swap.mutable_swap_out()->set_wait(settings_.wait_for_swapout);
        Emit(swap);
        program_.HoldUntil(program_.allocation_of(current_[view_.whole[a->tensor]]), a->away - 1);
      }
    }
    program_.SetInstructions(std::move(out_), std::move(points_));
  }

 private:
  // Emits `instruction` of the original program with current buffers.
  void Emit(v1::Instruction instruction) {
    RenameBuffers(current_, &instruction);
    out_.push_back(std::move(instruction));
    points_.push_back(step_);
  }

  int Slot(int tensor) {
    return slots_.try_emplace(tensor, static_cast<int>(slots_.size())).first->second;
  }

  // Moves the tensor's buffers to a new allocation.
  void NewMemory(int tensor) {
    const int allocation =
        program_.Allocate(program_.allocation_bytes(view_.allocation_of_tensor[tensor]));
    for (int b : buffers_[tensor]) current_[b] = program_.CloneInto(b, allocation);
  }

  const View& view_;
  const ReturnOrder return_order_;
  const OffloadSettings& settings_;
  RankProgram& program_;
  std::vector<std::vector<const Eviction*>> evictions_;  // by step
  std::vector<std::vector<int>> buffers_;                // by tensor
  std::vector<int> current_;  // by original buffer: its current replacement
  std::map<int, int> slots_;  // by tensor
  int step_ = 0;
  std::vector<v1::Instruction> out_;
  std::vector<int> points_;
};

std::string NodeAt(const RankProgram& program, int step) {
  return program.program().instructions(step).node();
}

// Lists the resident tensors if nothing more can be evicted: "a.grad (4096), b (1024) and 3 smaller
// ones".
std::string DescribeResident(const View& view, const OffloadPlan& plan,
                             const RankProgram& program) {
  std::map<int, std::string> names;  // by tensor
  for (int b = 0; b < program.program().buffers_size(); ++b) {
    const int t = view.tensor_of_allocation[program.allocation_of(b)];
    if (t >= 0) names.try_emplace(t, program.program().buffers(b).name());
  }
  std::vector<std::string> out;
  for (int t : plan.resident) {
    if (out.size() == kNamed) break;
    out.push_back(absl::StrCat(names[t], " (", view.problem.tensors[t].bytes, ")"));
  }
  const size_t more = plan.resident.size() - out.size();
  return absl::StrCat(absl::StrJoin(out, ", "),
                      more == 0 ? "" : absl::StrCat(" and ", more, " smaller ones"));
}

}  // namespace

absl::Status CheckBatchTiles(int tiles, const std::string& field) {
  constexpr int kMost = 64;
  if (tiles >= 0 && tiles <= kMost && (tiles & (tiles - 1)) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", tiles,
                                                 "; accepted: a power of two from 1 (none) to ",
                                                 kMost, ", or 0 (chosen)"));
}

absl::StatusOr<OffloadSettings> OffloadSettingsOf(const v1::MemoryOptions& options) {
  const auto bad = [](const char* field, const std::string& found, const char* accepted) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory.", field, " is ", found, "; accepted: ", accepted));
  };
  const std::pair<const char*, int> distances[] = {
      {"swapout_threshold", options.swapout_threshold()},
      {"swapin_ahead", options.swapin_ahead()},
      {"swapin_groupby", options.swapin_groupby()}};
  for (const auto& [field, value] : distances) {
    if (value < 0) return bad(field, absl::StrCat(value), "0 (chosen by simulation) or more");
  }
  if (options.sync_mode() < 0 || options.sync_mode() > 3) {
    return bad("sync_mode", absl::StrCat(options.sync_mode()), "0 to 3");
  }
  if (options.host_bytes() < 0) {
    return bad("host_bytes", absl::StrCat(options.host_bytes()), "0 (no limit) or more");
  }
  if (!(options.host_bandwidth() >= 0) || options.host_bandwidth() > 1e15) {
    return bad("host_bandwidth", absl::StrCat(options.host_bandwidth()),
               "0 (the default), or bytes per second up to 1e15");
  }
  if (absl::Status tiles = CheckBatchTiles(options.max_batch_tiles(), "memory.max_batch_tiles");
      !tiles.ok()) {
    return tiles;
  }
  OffloadSettings settings;
  settings.swap = !options.disable_swap();
  settings.recompute = !options.disable_recompute();
  settings.host_bytes = options.host_bytes();
  if (options.host_bandwidth() > 0) settings.host_bandwidth = options.host_bandwidth();
  settings.swapout_threshold = options.swapout_threshold();
  settings.swapin_ahead = options.swapin_ahead();
  settings.swapin_groupby = options.swapin_groupby();
  settings.wait_for_swapout = (options.sync_mode() & 1) != 0;
  settings.wait_for_swapin = (options.sync_mode() & 2) != 0;
  return settings;
}

absl::StatusOr<v1::MemoryPlan> RunOffloadPass(const OffloadRequest& request, RankProgram* program) {
  program->MergePrologue();
  View view = ViewBuilder(*program).Make(request);
  const int64_t fixed = view.problem.fixed_bytes;
  v1::MemoryPlan report;
  OffloadPlan plan;
  ArenaPlan arena = Place(view, plan, *program);
  report.set_bytes_without(fixed + arena.bytes + (request.workspace_known ? request.workspace : 0));
  if (report.bytes_without() <= request.limit) return report;

  // Fragmentation makes the arena a little larger than the live bytes.
  for (int round = 0; round < kRounds; ++round) {
    plan = LargestStep(view.problem);
    if (plan.problem.empty()) plan = PlanOffload(view.problem, request.settings);
    if (!plan.problem.empty()) {
      const std::string node = NodeAt(*program, plan.failing_step);
      return absl::ResourceExhaustedError(
          absl::StrCat("device ", program->program().rank(), " needs ", report.bytes_without(),
                       " bytes but has ", request.limit,
                       ", and swapping and recomputation do not make it fit: at '", node, "' ",
                       plan.problem, ". Still resident: ", DescribeResident(view, plan, *program),
                       "; kernels' workspace ", request.workspace));
    }
    arena = Place(view, plan, *program);
    const int64_t over = fixed + arena.bytes - (request.limit - request.workspace);
    if (over <= 0) break;
    if (round + 1 == kRounds) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "device ", program->program().rank(), " needs ", report.bytes_without(),
          " bytes but has ", request.limit, "; with swapping and recomputation ", plan.peak_bytes,
          " live at once, but no way was found to place them in less than ", fixed + arena.bytes));
    }
    view.problem.limit = std::min(view.problem.limit - over, plan.peak_bytes - 1);
  }

  double alone = 0;
  for (double seconds : view.problem.seconds) alone += seconds;
  report.set_added_seconds(plan.seconds - alone);
  report.set_host_bytes(plan.host_bytes);
  int64_t copied = 0;
  for (const Eviction& a : plan.evictions) {
    const int64_t bytes = view.problem.tensors[a.tensor].bytes;
    if (!a.recompute) copied += a.copies_out ? 2 * bytes : bytes;
    v1::MemoryPlan::Eviction* eviction = report.add_evictions();
    const int named = view.whole[a.tensor];
    eviction->set_tensor(named >= 0 ? program->buffer(named)->name() : "");
    eviction->set_after(NodeAt(*program, a.after));
    eviction->set_before(NodeAt(*program, a.before));
    eviction->set_bytes(bytes);
    eviction->set_recompute(a.recompute);
  }
  report.set_copied_bytes(copied);
  Rewriter(view, plan, request.settings, program).Run();
  return report;
}

}  // namespace espalier
