// The parameters and the optimizer state of a job after some steps, as whole tensors: from a
// checkpoint, or, before the first step, from the job's initializers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/program.pb.h"
#include "ops/graph/initial_value.h"
#include "storage/checkpoint.h"
#include "storage/object_reader.h"

namespace espalier {

// Not thread-safe.
class StateTensors {
 public:
  using Tensor = CheckpointReader::Tensor;

  virtual ~StateTensors() = default;
  // Optimizer state is named "<parameter>.<slot>".
  virtual const std::map<std::string, Tensor>& tensors() const = 0;
  // REQUIRES: `name` is in tensors(). The bytes must not be used before Verify succeeds.
  virtual absl::StatusOr<std::vector<char>> Read(const std::string& name) = 0;
  virtual absl::Status Verify() = 0;
};

class CheckpointTensors : public StateTensors {
 public:
  // Opens the checkpoint in `folder`. NotFound if there is none. DataLoss that names the file: of a
  // damaged one, also by Read and Verify; or a checkpoint that is not of `steps_done` steps.
  static absl::StatusOr<std::unique_ptr<CheckpointTensors>> Open(ObjectReader& store,
                                                                 const std::string& folder,
                                                                 int64_t steps_done);

  const std::map<std::string, Tensor>& tensors() const override { return reader_->tensors(); }
  absl::StatusOr<std::vector<char>> Read(const std::string& name) override;
  absl::Status Verify() override { return reader_->Verify(); }

 private:
  explicit CheckpointTensors(std::unique_ptr<CheckpointReader> reader)
      : reader_(std::move(reader)) {}

  std::unique_ptr<CheckpointReader> reader_;
};

// Of a job that does not start from an artifact. Makes each tensor as the workers do, so to the
// bit.
class InitialTensors : public StateTensors {
 public:
  // `programs`: the training programs of all ranks; `stored`: PreparedJob.initial_values. Both must
  // outlive it.
  InitialTensors(const std::vector<v1::Program>& programs, const std::vector<InitialValue>& stored);

  const std::map<std::string, Tensor>& tensors() const override { return tensors_; }
  absl::StatusOr<std::vector<char>> Read(const std::string& name) override;
  absl::Status Verify() override { return absl::OkStatus(); }

 private:
  const std::vector<InitialValue>& stored_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, const v1::Buffer*> buffers_;  // one of each tensor
  uint64_t seed_ = 0;
};

}  // namespace espalier
