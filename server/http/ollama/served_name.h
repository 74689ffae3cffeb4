// Names of models as Ollama's clients write them.
#pragma once

#include <string>

#include "server/http/route_context.h"

namespace espalier::ollama {

// Returns the name under which the model is served: `name`, or, since clients append ":latest" to
// names without a tag and drop it, `name` without it or with it.
std::string ServedName(const RouteContext& context, const std::string& name);

// Returns the name that clients are shown, always with a tag.
std::string TaggedName(const std::string& name);

}  // namespace espalier::ollama
