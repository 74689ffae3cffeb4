// Says which parameters of a model a job trains.
#pragma once

#include <string>

#include "client/terminal/terminal.h"
#include "espalier/v1/training.pb.h"

namespace espalier {

// "trains 12 tensors, 38.3 k elements; 2 tensors, 32 elements, are not trained"; empty if the
// message is unset, as an older coordinator leaves it.
std::string DescribeTrained(const v1::TrainedParameters& trained);

// Returns a table with a row for each parameter.
std::string RenderParameterUses(const google::protobuf::RepeatedPtrField<v1::ParameterUse>& uses,
                                const Terminal& terminal);

}  // namespace espalier
