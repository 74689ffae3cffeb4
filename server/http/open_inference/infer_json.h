// Bodies of POST /v2/models/NAME/infer: JSON, with the tensors in it or, by the protocol's binary
// tensor data extension, behind it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/inference/prediction/infer_call.h"

namespace espalier {

// Names the length of the JSON in front of binary tensors, of requests and answers.
inline constexpr char kInferHeaderLength[] = "Inference-Header-Content-Length";

struct InferBody {
  InferCall call;
  std::string id;
  bool binary = false;               // the default for outputs
  std::vector<bool> binary_outputs;  // by output of `call`
};

// `json_bytes`: of the header kInferHeaderLength; absent: the body is JSON alone. Returns
// InvalidArgument naming the field: JSON that is none or has unknown fields or parameters, data
// that does not fit its datatype, binary tensors that do not fill the body.
absl::StatusOr<InferBody> ParseInferBody(absl::string_view body, std::optional<size_t> json_bytes);

struct InferAnswer {
  std::string body;
  std::optional<size_t> json_bytes;  // as for ParseInferBody
};

// `binary`: by output. Returns FailedPrecondition, with a remedy, for a value that JSON cannot
// hold: NaN, infinity, FP16 and BF16.
absl::StatusOr<InferAnswer> FormatInferAnswer(const std::string& model, const std::string& version,
                                              const std::string& id,
                                              const std::vector<InferTensor>& outputs,
                                              const std::vector<bool>& binary);

}  // namespace espalier
