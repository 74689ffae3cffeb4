#include "planner/simulator/cost_tables.h"

#include <algorithm>

#include "planner/machine/rates.h"
#include "planner/memory/arena.h"
#include "planner/pcg/gradient_buckets.h"

namespace espalier {
namespace {

using Collective = v1::CollectiveInstruction;

// Size of the parameter whose measured update represents all, if the device has the memory: large
// enough to miss the caches, as data touched once per step does.
constexpr int64_t kUpdateElements = 1 << 22;

}  // namespace

CostTables::CostTables(const PcgStructure& structure, ConfigTable& table, const Machine& machine,
                       CostModel& cost, const v1::Optimizer& optimizer)
    : structure_(structure),
      table_(table),
      cost_(cost),
      optimizer_(optimizer),
      update_(ChooseUpdate(*structure.registry, optimizer).value()),
      link_(WithDefaults(machine.link)),
      topology_(machine.topology),
      communication_(machine.communication),
      cpu_contention_(machine.devices) {
  if (topology_ != nullptr) contention_.emplace(*topology_);
  for (const v1::Device& device : machine.devices) {
    devices_.push_back(WithDefaults(device));
    update_factors_.push_back(UpdateFactor(devices_.back()));
  }
  for (const Value& value : structure.graph().values()) {
    OptimizerMemory& kept = kept_.emplace_back();
    if (value.kind != ValueKind::kParameter) continue;
    for (const Update::State& state : update_.States(value.type.dims)) {
      if (state.name.empty()) continue;
      if (state.dims.has_value()) {
        kept.bytes += AlignUp(NumElements(*state.dims) * static_cast<int64_t>(sizeof(float)));
      } else {
        ++kept.alike;
      }
    }
  }
}

double CostTables::Passes(const Dims& parameter) const {
  double passes = 3;
  for (const Update::State& state : update_.States(parameter)) {
    if (!state.name.empty() && !state.dims.has_value()) passes += 2;
  }
  return passes;
}

double CostTables::UpdateFactor(const v1::Device& device) {
  if (!update_.def->update->sums.empty()) return 1;
  int64_t elements = kUpdateElements;
  while (elements > 1 && elements * 256 > device.memory_bytes()) elements /= 2;
  const NodeTypes one{
      update_.attributes, update_.InputTypes({elements}), {{DType::kF32, {elements}}}};
  const auto measured = cost_.Measured(*update_.def, one, device);
  const double bytes = Passes({elements}) * static_cast<double>(elements * 4);
  return measured.has_value() ? measured->forward / MemorySeconds(device, bytes) : 1;
}

Task CostTables::MessageTask(int from, int to, double bytes) const {
  Task task{from, to, {}, 0, bytes};
  if (communication_ != nullptr) {
    if (const auto measured = communication_->MessageSeconds(bytes)) {
      task.duration = ToPicoseconds(measured->receive);
      if (measured->send > 0) task.send_duration = ToPicoseconds(measured->send);
      return task;
    }
  }
  task.duration = ToPicoseconds(topology_ == nullptr ? TransferSeconds(link_, bytes)
                                                     : topology_->TransferSeconds(from, to, bytes));
  return task;
}

double CostTables::Transfer(int from, int to, double bytes) const {
  return Transfers({{from, to}}, bytes);
}

double CostTables::Transfers(const std::vector<std::pair<int, int>>& ends, double bytes) const {
  TaskList tasks;
  for (const auto& [from, to] : ends) tasks.push_back(MessageTask(from, to, bytes));
  ShareLinks(&tasks);
  Picoseconds longest = 0;
  for (const Task& task : tasks) {
    longest = std::max(longest, task.duration + (task.is_buffered() ? task.send_duration : 0));
  }
  return ToSeconds(longest);
}

double CostTables::Collective(v1::CollectiveInstruction::Kind kind, const std::vector<int>& ranks,
                              double bytes) {
  return ConcurrentCollectives({{kind, &ranks, bytes}})[0];
}

std::vector<double> CostTables::ConcurrentCollectives(
    const std::vector<ContentionModel::Group>& groups) {
  constexpr double kUnknown = -1;
  bool all_known = true;
  std::vector<double> seconds(groups.size(), 0);
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& [kind, ranks, bytes] = groups[g];
    const int n = static_cast<int>(ranks->size());
    if (n < 2) continue;
    std::optional<double> measured;
    if (communication_ != nullptr) measured = communication_->CollectiveSeconds(kind, n, bytes);
    if (measured.has_value()) {
      seconds[g] = *measured;
    } else if (topology_ == nullptr) {
      seconds[g] = CollectiveSeconds(link_, kind, n, bytes);
    } else {
      seconds[g] = kUnknown;
      all_known = false;
    }
  }
  if (all_known) return seconds;
  const std::vector<double> together = contention_->Collectives(groups);
  for (size_t g = 0; g < groups.size(); ++g) {
    if (seconds[g] == kUnknown) seconds[g] = together[g];
  }
  return seconds;
}

std::vector<double> CostTables::CollectivesInOrder(
    const std::vector<ContentionModel::Group>& groups) {
  if (topology_ == nullptr) return ConcurrentCollectives(groups);
  RoundScheduler rounds(topology_->num_devices());
  std::vector<std::vector<int>> members;  // by round
  for (size_t g = 0; g < groups.size(); ++g) {
    const size_t round = rounds.Add(*groups[g].ranks);
    if (round >= members.size()) members.resize(round + 1);
    members[round].push_back(static_cast<int>(g));
  }
  std::vector<double> seconds(groups.size());
  std::vector<ContentionModel::Group> together;
  for (const std::vector<int>& round : members) {
    together.clear();
    for (int g : round) together.push_back(groups[g]);
    const std::vector<double> of_round = ConcurrentCollectives(together);
    for (size_t i = 0; i < round.size(); ++i) seconds[round[i]] = of_round[i];
  }
  return seconds;
}

void CostTables::ShareLinks(TaskList* tasks) const {
  if (topology_ == nullptr) return;
  std::vector<ContentionModel::Message> messages;
  std::vector<Task*> of_message;
  for (Task& task : *tasks) {
    const bool measured =
        communication_ != nullptr && communication_->MessageSeconds(task.bytes_moved).has_value();
    if (task.peer < 0 || measured) continue;
    messages.push_back({task.device, task.peer, task.bytes_moved});
    of_message.push_back(&task);
  }
  const std::vector<double> seconds = contention_->Messages(messages);
  for (size_t m = 0; m < seconds.size(); ++m) of_message[m]->duration = ToPicoseconds(seconds[m]);
}

Task CostTables::MemoryTask(int device, double bytes) const {
  return {device, -1, {}, ToPicoseconds(MemorySeconds(devices_[device], bytes))};
}

const NodeTasks* CostTables::Node(NodeId node, const ConfigEntry* entry) {
  std::unique_ptr<NodeTasks>& tasks = nodes_[entry];
  if (tasks != nullptr) return tasks.get();
  tasks = std::make_unique<NodeTasks>();
  const PcgStructure::NodeInfo& info = structure_.nodes[node];
  if (info.def->view) return tasks.get();
  std::vector<CostModel::Times>& times = times_[{node, entry->config.degrees}];
  times.resize(devices_.size(), {-1, -1});
  for (int device : entry->config.devices) {
    if (times[device].forward < 0) {
      times[device] = cost_.Measure(
          *info.def, LocalTypes(info.types, info.rule, entry->config.degrees), devices_[device]);
    }
    tasks->forward.push_back({device, -1, {}, ToPicoseconds(times[device].forward)});
    tasks->backward.push_back({device, -1, {}, ToPicoseconds(times[device].backward)});
  }
  return tasks.get();
}

absl::StatusOr<const ReshardTasks*> CostTables::Reshard(int from, int to, int element_bytes) {
  std::unique_ptr<ReshardTasks>& tasks = reshards_[{from, to, element_bytes}];
  if (tasks != nullptr) return tasks.get();
  absl::StatusOr<const ReshardPlan*> plan = table_.Reshard(from, to);
  if (!plan.ok()) return plan.status();
  tasks = std::make_unique<ReshardTasks>(
      MakeReshard(**plan, table_.layouts().Get(from), table_.layouts().Get(to), element_bytes));
  return tasks.get();
}

ReshardTasks CostTables::MakeReshard(const ReshardPlan& plan, const Layout& from, const Layout& to,
                                     int element_bytes) {
  ReshardTasks out;
  out.all_reduce_only = plan.all_reduce_only();
  out.new_bytes.assign(devices_.size(), 0);
  out.staging_bytes.assign(devices_.size(), 0);
  for (size_t t = 0; t < to.shards.size(); ++t) {
    const Shard& shard = to.shards[t];
    if (plan.alias[t] >= 0) {
      out.aliases = true;
    } else {
      out.new_bytes[shard.device] += AlignUp(shard.region.num_elements() * element_bytes);
    }
  }
  std::vector<ContentionModel::Group> groups;  // of disjoint devices
  for (const ReshardCollective& c : plan.collectives) {
    groups.push_back({c.kind, &c.ranks, static_cast<double>(c.elements) * element_bytes});
  }
  const std::vector<double> seconds = ConcurrentCollectives(groups);
  for (size_t i = 0; i < plan.collectives.size(); ++i) {
    const ReshardCollective& c = plan.collectives[i];
    const double bytes = groups[i].bytes;
    const int n = static_cast<int>(c.ranks.size());
    const double result_bytes = c.kind == Collective::ALL_GATHER ? bytes * n : bytes;
    if (c.pack) {
      for (int rank : c.ranks) {
        out.tasks.push_back(MemoryTask(rank, 2 * bytes));
        out.staging_bytes[rank] += AlignUp(static_cast<int64_t>(bytes));
      }
    }
    Task task{c.ranks[0], -1, c.ranks};
    task.duration = ToPicoseconds(seconds[i]);
    ReshardPlan alone;
    alone.collectives = {c};
    task.bytes_moved = static_cast<double>(ElementsMoved(alone, from, to)) * element_bytes;
    out.tasks.push_back(std::move(task));
    if (c.unpack) {
      for (int rank : c.ranks) {
        out.tasks.push_back(MemoryTask(rank, 2 * result_bytes));
        out.staging_bytes[rank] += AlignUp(static_cast<int64_t>(result_bytes));
      }
    }
    if (out.all_reduce_only) {
      auto [it, inserted] =
          groups_.try_emplace({c.ranks, element_bytes}, static_cast<int>(group_ranks_.size()));
      if (inserted) group_ranks_.push_back(c.ranks);
      out.reductions.emplace_back(it->second, AlignUp(c.elements * element_bytes));
    }
  }
  // Staging buffers of transfers live one after another.
  auto stage = [&](int device, int64_t bytes) {
    out.staging_bytes[device] = std::max(out.staging_bytes[device], AlignUp(bytes));
  };
  for (const ReshardPiece& piece : plan.pieces) {
    const Shard& source = from.shards[piece.source];
    const Shard& target = to.shards[piece.target];
    const int64_t bytes = piece.box.num_elements() * element_bytes;
    const double copied = (piece.accumulate ? 3.0 : 2.0) * static_cast<double>(bytes);
    if (source.device == target.device) {
      out.tasks.push_back(MemoryTask(target.device, copied));
      continue;
    }
    if (!(piece.box == source.region)) {
      out.tasks.push_back(MemoryTask(source.device, 2.0 * static_cast<double>(bytes)));
      stage(source.device, bytes);
    }
    out.tasks.push_back(MessageTask(source.device, target.device, static_cast<double>(bytes)));
    if (!(piece.box == target.region) || piece.accumulate) {
      out.tasks.push_back(MemoryTask(target.device, copied));
      stage(target.device, bytes);
    }
  }
  ShareLinks(&out.tasks);
  return out;
}

const TaskList* CostTables::Sum(int layout, int element_bytes, int count) {
  std::unique_ptr<TaskList>& tasks = sums_[{layout, element_bytes, count}];
  if (tasks != nullptr) return tasks.get();
  tasks = std::make_unique<TaskList>();
  const OpDef* add = count > 1 ? structure_.registry->Find("add_n") : nullptr;
  const DType dtype = element_bytes == 2 ? DType::kBF16 : DType::kF32;
  for (const Shard& shard : table_.layouts().Get(layout).shards) {
    const int64_t elements = shard.region.num_elements();
    Task task =
        MemoryTask(shard.device, static_cast<double>(elements * element_bytes * (count + 1)));
    if (add != nullptr) {
      // Elementwise: the shape does not matter.
      const NodeTypes types{
          {}, std::vector<TensorType>(count, {dtype, {elements}}), {{dtype, {elements}}}};
      const auto measured = cost_.Measured(*add, types, devices_[shard.device]);
      if (measured.has_value()) task.duration = ToPicoseconds(measured->forward);
    }
    tasks->push_back(task);
  }
  return tasks.get();
}

absl::StatusOr<const UpdateTasks*> CostTables::Update(int layout, int storage, int element_bytes,
                                                      int owner) {
  std::unique_ptr<UpdateTasks>& kept = updates_[{layout, storage, element_bytes, owner}];
  if (kept != nullptr) return kept.get();
  auto tasks = std::make_unique<UpdateTasks>();
  tasks->staging_bytes.assign(devices_.size(), 0);
  const ReshardTasks* gather = nullptr;  // all-gather of shards updated in a copy
  if (layout != storage) {
    absl::StatusOr<const ReshardTasks*> taken = Reshard(storage, layout, element_bytes);
    if (!taken.ok()) return taken.status();
    absl::StatusOr<const ReshardTasks*> given = Reshard(layout, storage, element_bytes);
    if (!given.ok()) return given.status();
    if (UpdatesInPlace(table_.layouts().Get(storage), table_.layouts().Get(layout),
                       element_bytes)) {
      tasks->gather = (*given)->tasks;
    } else {
      gather = *given;
      tasks->update = (*taken)->tasks;
      for (size_t d = 0; d < devices_.size(); ++d) {
        tasks->staging_bytes[d] = (*taken)->new_bytes[d] + gather->staging_bytes[d];
      }
    }
  }
  const Layout& whole = table_.layouts().Get(layout);
  const double passes = Passes(whole.dims);
  // The gradient is read again for each sum, and by penalties, which also write it.
  double more = 2.0 * static_cast<double>(update_.def->update->sums.size());
  if (optimizer_.regularizers_size() > 0) more += 3;
  for (const Shard& shard : whole.shards) {
    const double bytes = static_cast<double>(shard.region.num_elements()) * element_bytes;
    tasks->update.push_back(
        MemoryTask(shard.device, (passes * update_factors_[shard.device] + more) * bytes));
    if (shard.replica == owner) tasks->squares.push_back(MemoryTask(shard.device, bytes));
  }
  if (gather != nullptr) {
    tasks->update.insert(tasks->update.end(), gather->tasks.begin(), gather->tasks.end());
  }
  kept = std::move(tasks);
  return kept.get();
}

const std::vector<int64_t>& CostTables::BytesByDevice(int layout, int element_bytes) {
  std::unique_ptr<std::vector<int64_t>>& bytes = bytes_[{layout, element_bytes}];
  if (bytes == nullptr) {
    bytes = std::make_unique<std::vector<int64_t>>(devices_.size(), 0);
    for (const Shard& shard : table_.layouts().Get(layout).shards) {
      (*bytes)[shard.device] += AlignUp(shard.region.num_elements() * element_bytes);
    }
  }
  return *bytes;
}

}  // namespace espalier
