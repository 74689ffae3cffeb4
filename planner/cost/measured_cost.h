// A table of measured operator times in front of another cost model.
//
// The key is everything that the time depends on: operator, attributes, local types, device model
// and threads. A miss asks the measurer, if there is one. Without an answer it returns the fallback
// model's time, scaled by that model's error on measured shapes of the same operator and device
// (geometric mean), so that a few measurements correct the whole table.
//
// Forks share what was known when they were made and call the measurer one at a time; a shape that
// one fork has measured is not measured again. A fork's answers therefore depend only on its own
// queries, as long as the measurer gives one answer per shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "planner/planner.h"

namespace espalier {

class MeasuredCost : public CostModel {
 public:
  // Returns the times of one operator shard on one device, or nothing if it cannot be measured. May
  // block. Called by one thread at a time, across this model and its forks.
  using Measurer = std::function<std::optional<Times>(const OpDef& def, const NodeTypes& shard,
                                                      const v1::Device& device)>;

  // `fallback` must outlive this.
  explicit MeasuredCost(CostModel* fallback, Measurer measurer = nullptr);

  Times Measure(const OpDef& def, const NodeTypes& shard, const v1::Device& device) override;
  std::optional<Times> Measured(const OpDef& def, const NodeTypes& shard,
                                const v1::Device& device) override;
  // Null if the fallback model has no forks.
  std::unique_ptr<CostModel> Fork() override;
  void Join(const CostModel& fork) override;

  void Record(const OpDef& def, const NodeTypes& shard, const v1::Device& device, Times times);
  // Records times observed in a job's steps; a negative time was not observed. Observed times
  // replace isolated measurements and estimates. They are averaged so that the newest counts as
  // much as all earlier ones together.
  void Observe(const OpDef& def, const NodeTypes& shard, const v1::Device& device, Times times);
  bool Has(const OpDef& def, const NodeTypes& shard, const v1::Device& device) const;
  size_t size() const;

  // Returns a copy of the whole table in front of another model, without a measurer.
  MeasuredCost Snapshot(CostModel* fallback) const;

  // JSON, sorted by key: seconds and the number of runs behind them. Load adds to the table; it
  // returns InvalidArgument, with the bad entry, and then adds nothing.
  std::string Save() const;
  absl::Status Load(const std::string& json);

 private:
  // Sums of log(measured / expected).
  struct Correction {
    double forward = 0;
    int64_t forward_count = 0;
    double backward = 0;
    int64_t backward_count = 0;
  };

  struct Entry {
    Times times;
    // Number of jobs that observed each time; 0: measured in isolation.
    int64_t forward_runs = 0;
    int64_t backward_runs = 0;
  };

  struct Table {
    std::map<std::string, Entry> entries;
    std::map<std::string, Correction> corrections;  // by operator and device
  };

  // What one measurement implies for all shapes of its operator on the device.
  struct Observation {
    std::string kind;  // key of the correction
    Times measured;
    Times expected;
  };

  // The measurer that a model shares with its forks, and its answers while forks exist.
  struct SharedMeasurer {
    absl::Mutex mutex;
    Measurer measurer;
    std::map<std::string, Times> answers;
  };

  const Entry* Find(const std::string& key) const;
  const Correction* FindCorrection(const std::string& kind) const;
  Entry& OwnEntry(const std::string& key);
  void UpdateCorrection(const Observation& observation);
  std::optional<Times> AskMeasurer(const std::string& key, const OpDef& def, const NodeTypes& shard,
                                   const v1::Device& device);
  // Merges base_ and own_.
  std::shared_ptr<const Table> MergedTable() const;

  std::shared_ptr<const Table> base_;                // shared with forks
  Table own_;                                        // takes precedence over base_
  std::shared_ptr<SharedMeasurer> shared_measurer_;  // null: no measurer
  CostModel* fallback_;
  std::unique_ptr<CostModel> own_fallback_;  // of a fork
  bool is_fork_ = false;
  std::map<std::string, Observation> observations_;  // of a fork, by key of the entry
};

// The part of a device that times depend on: "Intel Xeon x2".
std::string DeviceKey(const v1::Device& device);

// The key of an entry: "linear{...} f32[16, 64], f32[64, 64] on Intel Xeon x2".
std::string MeasurementKey(const OpDef& def, const NodeTypes& shard, const v1::Device& device);

}  // namespace espalier
