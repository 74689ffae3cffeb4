// Part of FusionRules: attention in the forms that exporters write.
#pragma once

#include <string>

namespace espalier {

std::string AttentionRules();

}  // namespace espalier
