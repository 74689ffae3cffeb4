#include "planner/simulator/cpu_contention.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

namespace espalier {
namespace {

// The speed at which `load` threads run on a host.
double Share(double cores, double load) { return load > cores ? cores / load : 1; }

}  // namespace

CpuContention::CpuContention(const std::vector<v1::Device>& devices)
    : host_(devices.size(), -1), threads_(devices.size(), 1) {
  std::map<std::string, int> hosts;
  std::vector<double> threads;
  std::vector<int> members;
  for (size_t d = 0; d < devices.size(); ++d) {
    const v1::Device& device = devices[d];
    if (device.host().empty() || device.host_cores() <= 0 || device.kind() == v1::Device::CUDA) {
      continue;
    }
    const auto [it, is_new] = hosts.emplace(device.host(), static_cast<int>(cores_.size()));
    if (is_new) {
      cores_.push_back(device.host_cores());
      threads.push_back(0);
      members.push_back(0);
    }
    host_[d] = it->second;
    threads_[d] = std::max(1, device.threads());
    // A device with more threads than the host has cores was measured in that state.
    threads[it->second] += std::min(threads_[d], cores_[it->second]);
    ++members[it->second];
  }
  // If operators alone fit, messages beside them slow them too little to give up delta simulation.
  for (size_t h = 0; h < cores_.size(); ++h) {
    needed_ = needed_ || (members[h] > 1 && threads[h] > cores_[h]);
  }
}

// One simulation. A buffered message is two work items, its sender's and its receiver's; any other
// task is one.
class CpuContentionRun {
 public:
  CpuContentionRun(const CpuContention& cores, const std::vector<const Task*>& tasks)
      : cores_(cores),
        tasks_(tasks),
        work_(2 * tasks.size()),
        queues_(cores.host_.size()),
        heads_(cores.host_.size(), 0),
        load_(cores.cores_.size(), 0) {}

  Picoseconds Run(std::vector<TaskSpan>* spans) {
    for (size_t t = 0; t < tasks_.size(); ++t) Enqueue(static_cast<int>(t));
    for (size_t d = 0; d < queues_.size(); ++d) Arrive(static_cast<int>(d));
    while (!running_.empty()) Advance();
    if (spans != nullptr) {
      spans->resize(tasks_.size());
      for (size_t t = 0; t < tasks_.size(); ++t) {
        const bool buffered = tasks_[t]->is_buffered();
        const Work &sender = work_[2 * t], &whole = work_[2 * t + buffered];
        (*spans)[t] = {whole.begin, whole.end, sender.begin, sender.end};
      }
    }
    return Now();
  }

 private:
  struct Work {
    int missing = 0;  // devices that have not arrived, plus an unsent message
    Picoseconds begin = 0, end = 0;
  };
  struct Running {
    int work = 0;
    double left = 0;  // picoseconds at full speed
    double speed = 1;
  };

  Picoseconds Now() const { return static_cast<Picoseconds>(std::llround(now_)); }
  const Task& TaskOf(int work) const { return *tasks_[work / 2]; }
  bool IsReceipt(int work) const { return work % 2 == 1; }

  void Enqueue(int t) {
    const Task& task = *tasks_[t];
    const auto add = [this](int device, int work) {
      queues_[device].push_back(work);
      ++work_[work].missing;
    };
    if (!task.group.empty()) {
      for (int device : task.group) add(device, 2 * t);
      return;
    }
    add(task.device, 2 * t);
    if (task.is_buffered()) {
      add(task.peer, 2 * t + 1);
      ++work_[2 * t + 1].missing;
    } else if (task.peer >= 0) {
      add(task.peer, 2 * t);
    }
  }

  template <typename Run>
  void ForEachDevice(int work, Run run) const {
    const Task& task = TaskOf(work);
    if (IsReceipt(work)) return run(task.peer);
    if (!task.group.empty()) {
      for (int device : task.group) run(device);
      return;
    }
    run(task.device);
    if (task.peer >= 0 && !task.is_buffered()) run(task.peer);
  }

  // Calls run(host, threads) for the load of `work` on its hosts.
  template <typename Run>
  void ForEachLoad(int work, Run run) const {
    const Task& task = TaskOf(work);
    const bool computes = task.group.empty() && task.peer < 0;
    const auto load = [&](int device, double threads) {
      if (cores_.host_[device] >= 0) run(cores_.host_[device], threads);
    };
    ForEachDevice(work, [&](int device) { load(device, computes ? cores_.threads_[device] : 1); });
    if (IsReceipt(work)) load(task.device, 1);
  }

  void Provide(int work) {
    if (--work_[work].missing > 0) return;
    const Task& task = TaskOf(work);
    work_[work].begin = Now();
    const bool hands_over = task.is_buffered() && !IsReceipt(work);
    running_.push_back(
        {work, static_cast<double>(hands_over ? task.send_duration : task.duration), 1});
    ForEachLoad(work, [this](int host, double threads) { load_[host] += threads; });
    changed_ = true;
  }

  // Advances `device` to the next item of its queue.
  void Arrive(int device) {
    if (heads_[device] < queues_[device].size()) Provide(queues_[device][heads_[device]]);
  }

  double SpeedOf(int work) {
    // By host: the item's own load.
    own_.clear();
    ForEachLoad(work, [this](int host, double threads) {
      for (auto& [other, sum] : own_) {
        if (other == host) {
          sum += threads;
          return;
        }
      }
      own_.emplace_back(host, threads);
    });
    double speed = 1;
    for (const auto& [host, threads] : own_) {
      const double cores = cores_.cores_[host];
      speed = std::min(speed, Share(cores, load_[host]) / Share(cores, threads));
    }
    return speed;
  }

  // Advances to the next completion.
  void Advance() {
    if (changed_) {
      for (Running& r : running_) r.speed = SpeedOf(r.work);
      changed_ = false;
    }
    double step = std::numeric_limits<double>::infinity();
    for (const Running& r : running_) step = std::min(step, r.left / r.speed);
    now_ += step;
    done_.clear();
    for (size_t i = 0; i < running_.size();) {
      Running& r = running_[i];
      r.left -= step * r.speed;
      if (r.left < 0.5) {
        done_.push_back(r.work);
        r = running_.back();
        running_.pop_back();
      } else {
        ++i;
      }
    }
    for (int work : done_) {
      work_[work].end = Now();
      ForEachLoad(work, [this](int host, double threads) { load_[host] -= threads; });
      changed_ = true;
    }
    for (int work : done_) {
      if (TaskOf(work).is_buffered() && !IsReceipt(work)) Provide(work + 1);
      ForEachDevice(work, [this](int device) {
        ++heads_[device];
        Arrive(device);
      });
    }
  }

  const CpuContention& cores_;
  const std::vector<const Task*>& tasks_;
  std::vector<Work> work_;                // two per task
  std::vector<std::vector<int>> queues_;  // by device
  std::vector<size_t> heads_;             // by device, into its queue
  std::vector<double> load_;              // by host: runnable threads
  std::vector<Running> running_;
  std::vector<int> done_;                    // scratch of Advance
  std::vector<std::pair<int, double>> own_;  // scratch of SpeedOf
  double now_ = 0;                           // picoseconds
  bool changed_ = false;                     // speeds must be recomputed
};

Picoseconds CpuContention::Run(const std::vector<const Task*>& tasks,
                               std::vector<TaskSpan>* spans) const {
  return CpuContentionRun(*this, tasks).Run(spans);
}

}  // namespace espalier
