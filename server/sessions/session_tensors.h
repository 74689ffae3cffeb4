// The whole tensors of a session, and the shards of them that its ranks hold.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/session.pb.h"
#include "espalier/v1/worker.pb.h"
#include "ops/tensor/view.h"

namespace espalier {

// A whole tensor on the host.
struct WholeTensor {
  v1::SessionTensorKind kind = v1::SESSION_TENSOR_KIND_UNSPECIFIED;  // graph input
  std::string name;
  TensorType type;
  std::string data;
};

// Puts the parts of tensors together, which come in order.
class TensorAssembler {
 public:
  // Returns InvalidArgument naming the tensor for a part that does not follow the one before it, or
  // has another type; and for more than kMaxCommandBytes.
  absl::Status Add(v1::TensorPart part);
  // Returns the tensors, and begins again. InvalidArgument names one that is not complete.
  absl::StatusOr<std::vector<WholeTensor>> Take();

 private:
  std::vector<WholeTensor> tensors_;
  int64_t bytes_ = 0;
};

// Limit on the tensors of one command, and of one reply.
inline constexpr int64_t kMaxCommandBytes = int64_t{1} << 31;

// Calls `emit` with messages of a limited size, which together hold the tensors.
absl::Status SplitIntoParts(std::vector<WholeTensor> tensors,
                            const std::function<absl::Status(v1::TensorPart)>& emit);

// The bytes of buffers of a rank, by whether they are of its evaluation program, and number.
using RankBuffers = std::map<std::pair<bool, int>, std::string>;

class SessionTensors {
 public:
  // `loaded`: by rank. Returns Internal if the shards of a tensor do not fit together.
  static absl::StatusOr<SessionTensors> Create(const std::vector<v1::LoadProgramReply>& loaded);

  // Sorted by kind and name. Outputs are listed once, though training and evaluation have them.
  std::vector<v1::SessionTensor> List() const;
  // Returns the names of a kind that match a pattern ("*": any characters).
  std::vector<std::string> Matching(v1::SessionTensorKind kind, const std::string& pattern) const;
  // Returns the type of a tensor; NotFound lists what there is.
  absl::StatusOr<TensorType> Find(v1::SessionTensorKind kind, const std::string& name) const;

  // Names of tensors to read, of which all exist, and what to ask each rank for.
  using Names = std::vector<std::pair<v1::SessionTensorKind, std::string>>;
  std::vector<v1::RankCommand::Read> ReadsOf(const Names& names, bool evaluation) const;
  // Puts the answers, by rank, together. Returns Internal if a part is missing.
  absl::StatusOr<std::vector<WholeTensor>> Gather(const Names& names, bool evaluation,
                                                  const std::vector<RankBuffers>& buffers) const;
  // What to write into each rank's buffers, replicas too, so that they hold `tensor`. REQUIRES: it
  // has the type that Find returns.
  std::vector<std::vector<v1::BufferPart>> WritesOf(const WholeTensor& tensor) const;

 private:
  struct Shard {
    size_t rank = 0;
    int buffer = 0;
    TensorSpec spec;
  };
  struct Entry {
    TensorType type;
    std::vector<Shard> shards;  // replicas, too
    std::vector<Shard> whole;   // each region once
  };
  using Key = std::pair<v1::SessionTensorKind, std::string>;

  const Entry& At(const Key& key, bool evaluation) const;

  std::map<Key, Entry> training_, evaluation_;
};

}  // namespace espalier
