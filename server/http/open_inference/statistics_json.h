// The JSON of Triton's statistics extension.
#pragma once

#include <nlohmann/json.hpp>

#include "open_inference/open_inference.pb.h"

namespace espalier {

// Numbers are numbers, as in Triton's answers; protobuf's own JSON would write texts.
nlohmann::ordered_json StatisticsJson(const inference::ModelStatisticsResponse& response);

}  // namespace espalier
