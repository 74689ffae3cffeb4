// What the JSON schemas of a request say that its answer need not follow.
#pragma once

#include <string>
#include <vector>

#include "espalier/v1/inference.pb.h"

namespace espalier {

// One text for each keyword that is ignored in a schema to which the answer is bound: the
// structured output, and the parameters of tools one of which must be called. Strict tools refuse
// such keywords. At most 20 texts.
std::vector<std::string> SchemaWarnings(const v1::GenerateRequest& request);

// The texts as one value of a header or of gRPC metadata, in ASCII, at most 1,000 bytes. Empty if
// there are none.
std::string WarningHeader(const std::vector<std::string>& warnings);

// Its name, in lower case as gRPC needs it.
inline constexpr char kWarningHeader[] = "espalier-warning";

}  // namespace espalier
