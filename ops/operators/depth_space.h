// Shared by depth_to_space and space_to_depth.
#pragma once

#include <string>

#include "ops/schema/op_def.h"

namespace espalier {

// An operator on [N, C, H, W] with attribute 'blocksize'. With `to_space` channels become blocks of
// pixels, otherwise blocks become channels.
OpDef MakeDepthSpace(const std::string& name, const std::string& doc, bool to_space);

}  // namespace espalier
