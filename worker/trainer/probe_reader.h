// Reads the values that a replay asks for while an executor runs a step, and reduces them to what
// this rank sends.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/probe.pb.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "ops/probe/expression.h"
#include "ops/probe/reduce.h"
#include "worker/executor/executor.h"

namespace espalier {

// Not thread-safe. The executor must outlive it.
class ProbeReader {
 public:
  using Probes = google::protobuf::RepeatedPtrField<v1::RankProbe>;

  // Returns InvalidArgument that names the probe: a buffer or an instruction that the program does
  // not have, or a reduction that cannot be parsed.
  static absl::StatusOr<std::unique_ptr<ProbeReader>> Create(Executor* executor,
                                                             const Probes& probes);

  // Before and after a step whose values are to be read. Without them a step reads nothing.
  absl::Status BeginStep();
  absl::StatusOr<std::vector<v1::RankProbeResult>> EndStep();

 private:
  struct Probe {
    v1::RankProbe message;
    Reduction reduction;
    std::unique_ptr<PartReducer> parts;    // of the current step
    std::vector<std::vector<char>> minus;  // by point
    float loss_scale = 1;
  };
  struct Source {
    int probe = 0;
    int point = 0;
  };

  explicit ProbeReader(Executor* executor) : executor_(executor) {}
  static bool IsKept(const Executor& executor, const v1::ProbePoint& point);
  absl::Status ReadPoint(const Source& source, const TensorView& values);
  absl::Status ReadBetweenSteps(const std::vector<Source>& sources);
  absl::StatusOr<std::vector<char>> ReadKept(int buffer);

  Executor* const executor_;
  std::vector<Probe> probes_;
  std::vector<BufferRead> reads_;          // during a step
  std::vector<Source> sources_;            // of reads_
  std::vector<Source> at_begin_, at_end_;  // read before and after the step
};

}  // namespace espalier
