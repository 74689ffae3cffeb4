// The parameters that a program's steps leave as they are: frozen ones, and literals of an imported
// model.
#pragma once

#include <vector>

#include "espalier/v1/program.pb.h"

namespace espalier {

// By buffer: whether it is a parameter whose memory no instruction of the program writes, so that
// steps change none of its values.
std::vector<bool> UnchangedParameters(const v1::Program& program);

}  // namespace espalier
