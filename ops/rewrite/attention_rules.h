// Part of FusionRules: attention as exporters write it.
#pragma once

#include <string>

namespace espalier {

std::string AttentionRules();

}  // namespace espalier
