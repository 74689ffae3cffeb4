// Part of Simulator: the order of gradient synchronization, clipping and updates, which follow the
// backward pass.
#pragma once

#include "planner/simulator/simulator.h"

namespace espalier {

template <typename RunTask, typename RunGroup>
void Simulator::ForEachSyncTask(RunTask run, RunGroup all_reduce) {
  buckets_.Clear();
  for (const ReshardTasks* sync : sync_tasks_) {
    if (sync == nullptr || !sync->all_reduce_only) continue;
    for (const auto& [group, bytes] : sync->reductions) buckets_.Add(group, bytes);
  }
  reductions_.clear();
  for (const GradientBuckets::Bucket& bucket : buckets_.buckets()) {
    reductions_.push_back({v1::CollectiveInstruction::ALL_REDUCE, &costs_.Group(bucket.group),
                           static_cast<double>(bucket.bytes)});
  }
  const std::vector<double> seconds = costs_.CollectivesInOrder(reductions_);
  for (size_t i = 0; i < reductions_.size(); ++i) {
    if (reductions_[i].ranks->size() < 2) continue;
    all_reduce(*reductions_[i].ranks, ToPicoseconds(seconds[i]), reductions_[i].bytes);
  }
  for (size_t g = 0; g < sync_tasks_.size(); ++g) {
    if (sync_tasks_[g] == nullptr || sync_tasks_[g]->all_reduce_only) continue;
    for (const Task& task : sync_tasks_[g]->tasks) run(task, SyncPhase::kSync, static_cast<int>(g));
  }
  if (costs_.optimizer().clip_norm() > 0 || costs_.optimizer().has_loss_scale()) {
    takes_part_.assign(devices_, false);
    for (size_t g = 0; g < update_tasks_.size(); ++g) {
      for (const Task& task : update_tasks_[g]->squares) {
        run(task, SyncPhase::kUpdate, static_cast<int>(g));
      }
      for (const Task& task : update_tasks_[g]->update) takes_part_[task.device] = true;
    }
    norm_ranks_.clear();
    for (int d = 0; d < devices_; ++d) {
      if (takes_part_[d]) norm_ranks_.push_back(d);
    }
    if (norm_ranks_.size() > 1) {
      all_reduce(norm_ranks_,
                 ToPicoseconds(costs_.Collective(v1::CollectiveInstruction::ALL_REDUCE, norm_ranks_,
                                                 sizeof(float))),
                 sizeof(float));
    }
  }
  for (const auto part : {&UpdateTasks::update, &UpdateTasks::gather}) {
    for (size_t g = 0; g < update_tasks_.size(); ++g) {
      for (const Task& task : update_tasks_[g]->*part) {
        run(task, SyncPhase::kUpdate, static_cast<int>(g));
      }
    }
  }
}

}  // namespace espalier
