// Part of Simulator: the order of what follows the backward pass.
#pragma once

#include "planner/simulator/simulator.h"

namespace espalier {

template <typename RunTask, typename RunGroup>
void Simulator::PlayTail(RunTask run, RunGroup all_reduce) {
  const auto reduce = [&](const std::vector<int>& ranks, double bytes) {
    if (ranks.size() < 2) return;
    const double seconds =
        costs_.Collective(proto::CollectiveInstruction::ALL_REDUCE, ranks, bytes);
    all_reduce(ranks, ToPicoseconds(seconds), bytes);
  };
  buckets_.Clear();
  for (const ReshardTasks* sync : sync_tasks_) {
    if (sync == nullptr || !sync->all_reduce_only) continue;
    for (const auto& [group, bytes] : sync->reductions) buckets_.Add(group, bytes);
  }
  for (const GradientBuckets::Bucket& bucket : buckets_.buckets()) {
    reduce(costs_.Group(bucket.group), static_cast<double>(bucket.bytes));
  }
  for (size_t g = 0; g < sync_tasks_.size(); ++g) {
    if (sync_tasks_[g] == nullptr || sync_tasks_[g]->all_reduce_only) continue;
    for (const Task& task : sync_tasks_[g]->tasks) run(task, TailPart::kSync, static_cast<int>(g));
  }
  if (costs_.optimizer().clip_norm() > 0 || costs_.optimizer().has_loss_scale()) {
    takes_part_.assign(devices_, false);
    for (size_t g = 0; g < update_tasks_.size(); ++g) {
      for (const Task& task : update_tasks_[g]->squares) {
        run(task, TailPart::kUpdate, static_cast<int>(g));
      }
      for (const Task& task : update_tasks_[g]->update) takes_part_[task.device] = true;
    }
    norm_ranks_.clear();
    for (int d = 0; d < devices_; ++d) {
      if (takes_part_[d]) norm_ranks_.push_back(d);
    }
    reduce(norm_ranks_, sizeof(float));
  }
  for (const auto part : {&UpdateTasks::update, &UpdateTasks::gather}) {
    for (size_t g = 0; g < update_tasks_.size(); ++g) {
      for (const Task& task : update_tasks_[g]->*part) {
        run(task, TailPart::kUpdate, static_cast<int>(g));
      }
    }
  }
}

}  // namespace espalier
