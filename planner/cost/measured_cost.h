// Measured operator times in front of another cost model.
//
// Entries are keyed by what the time depends on: operator, attributes, local types, device model
// and threads. A miss asks the measurer, if there is one; without an answer it falls back to the
// model behind, scaled by how far that model was off for measured shapes of the same operator on
// the same device (geometric mean), so that a few measurements correct the whole table.
//
// Forks share what was known when they were made, and ask the measurer one after the other: what
// one of them has measured, the others are told. So what a fork says depends on nothing but what it
// was asked itself, as long as the measurer gives one answer for one shape.
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
  // Times of one operator shard on one device, or nothing if it could not be measured. May block.
  // Called by one thread at a time, of this model and its forks.
  using Measurer = std::function<std::optional<Times>(const OpDef& def, const NodeTypes& shard,
                                                      const v1::Device& device)>;

  // `fallback` must outlive this.
  explicit MeasuredCost(CostModel* fallback, Measurer measurer = nullptr);

  Times Measure(const OpDef& def, const NodeTypes& shard, const v1::Device& device) override;
  std::optional<Times> Measured(const OpDef& def, const NodeTypes& shard,
                                const v1::Device& device) override;
  // Null if the model behind has no forks.
  std::unique_ptr<CostModel> Fork() override;
  void Join(const CostModel& fork) override;

  void Record(const OpDef& def, const NodeTypes& shard, const v1::Device& device, Times times);
  // What one took in the steps of a job, negative: not told. What was measured alone, or guessed,
  // makes way for it; of what runs have told, the newer half counts as much as all the older ones.
  void Observe(const OpDef& def, const NodeTypes& shard, const v1::Device& device, Times times);
  bool Has(const OpDef& def, const NodeTypes& shard, const v1::Device& device) const;
  size_t size() const;

  // All that is known now, in front of another model; asks no measurer.
  MeasuredCost Snapshot(CostModel* fallback) const;

  // JSON text, sorted by key: seconds, and how many runs they come from. Load adds to what is
  // there; InvalidArgument names the entry that is wrong, and then nothing was added.
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
    // How many runs told of each; 0: measured alone.
    int64_t forward_runs = 0;
    int64_t backward_runs = 0;
  };

  struct Table {
    std::map<std::string, Entry> entries;
    std::map<std::string, Correction> corrections;  // by operator and device
  };

  // What a measurement says of all shapes of its operator on the device.
  struct Observation {
    std::string kind;  // key of the correction
    Times measured;
    Times expected;
  };

  // The measurer of a model and its forks, with what it has answered while there are forks.
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
  // All that is known.
  std::shared_ptr<const Table> MergedTable() const;

  std::shared_ptr<const Table> base_;  // shared with forks
  Table own_;                          // goes before base_
  std::shared_ptr<SharedMeasurer> shared_measurer_;       // null: no measurer
  CostModel* fallback_;
  std::unique_ptr<CostModel> own_fallback_;  // of a fork
  bool is_fork_ = false;
  std::map<std::string, Observation> observations_;  // of a fork, by key of the entry
};

// What times depend on of a device: "Intel Xeon x2".
std::string DeviceKey(const v1::Device& device);

// The key of an entry: "linear{...} f32[16, 64], f32[64, 64] on Intel Xeon x2".
std::string MeasurementKey(const OpDef& def, const NodeTypes& shard, const v1::Device& device);

}  // namespace espalier
