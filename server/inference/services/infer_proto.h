// ModelInfer's messages.
#pragma once

#include "absl/status/statusor.h"
#include "open_inference/open_inference.pb.h"
#include "server/inference/prediction/infer_call.h"

namespace espalier {

// Takes the tensors out of a request. Returns InvalidArgument naming the input or parameter:
// contents in a field of another datatype or given twice, a parameter that is not known.
absl::StatusOr<InferCall> TakeCall(inference::ModelInferRequest* request);

// The tensors of an answer, in raw_output_contents.
void FillOutputs(std::vector<InferTensor> outputs, inference::ModelInferResponse* response);

}  // namespace espalier
