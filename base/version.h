// The version of Espalier's programs.
#pragma once

namespace espalier {

inline constexpr char kEspalierVersion[] = "0.1.0";

}  // namespace espalier
