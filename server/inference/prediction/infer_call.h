// A request of the Open Inference Protocol to a served graph, in the form that gRPC and HTTP share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/inference/prediction/batch_runner.h"

namespace espalier {

// The protocol's name of an element type: "FP32".
std::string DatatypeOf(DType dtype);
// Returns InvalidArgument, listing the names, for one that no graph has.
absl::StatusOr<DType> DTypeOfDatatype(const std::string& datatype);

struct InferTensor {
  std::string name, datatype;
  std::vector<int64_t> shape;
  std::string data;  // row-major, little-endian
};

struct InferCall {
  std::vector<InferTensor> inputs;
  std::vector<std::string> outputs;  // names; empty: all
  std::optional<absl::Duration> timeout;
};

// A call whose inputs fit the graph.
struct CheckedCall {
  int64_t examples = 0;
  std::vector<std::string> inputs;  // by input of the signature
  std::vector<size_t> outputs;      // numbers of the wanted outputs, in the order of the call
};

// Returns InvalidArgument naming the input or output: one that the graph does not have, is missing
// or given twice, or has another datatype, shape or number of bytes; inputs with different numbers
// of examples; an integer that the graph has no place for.
absl::StatusOr<CheckedCall> CheckCall(const GraphSignature& signature, InferCall call);

// A request parameter that every binding has: "timeout", in microseconds. Others are refused by
// name.
absl::Status UnknownParameter(const std::string& name);

// The wanted outputs of `examples` examples. `values`: by output of the signature.
std::vector<InferTensor> OutputsOf(const GraphSignature& signature,
                                   const std::vector<size_t>& wanted, int64_t examples,
                                   std::vector<std::string> values);

}  // namespace espalier
