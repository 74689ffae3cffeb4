// The examples of one call of Training.PushExamples, checked as workers will read them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/training.pb.h"
#include "ops/tensor/shape.h"
#include "server/jobs/example_stream.h"
#include "server/jobs/prepare_stream.h"

namespace espalier {

class PushedExamples {
 public:
  // Limit on a call's values.
  static constexpr int64_t kMaxBytes = int64_t{1} << 30;

  // Adds the next message of the call. InvalidArgument names the column.
  absl::Status Add(v1::PushExamplesRequest message);

  // Returns the batches of all messages. InvalidArgument if they do not fit `columns`, or do not
  // fill batches; of a value it names the step, the column and the example of the step's batch.
  // Call once.
  absl::StatusOr<PushedBatches> Take(const std::map<std::string, StreamColumn>& columns,
                                     int64_t batch_size);

 private:
  struct Given {
    TensorType example;               // without dimension 0
    std::vector<std::string> pieces;  // values, one after another
  };

  int64_t messages_ = 0;
  int64_t first_step_ = 0;
  int64_t examples_ = 0;
  int64_t bytes_ = 0;
  bool end_ = false;
  std::map<std::string, Given> columns_;
};

}  // namespace espalier
