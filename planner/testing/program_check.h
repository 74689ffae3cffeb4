// Checks that the programs of all devices are consistent and deadlock-free.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "espalier/v1/program.pb.h"

namespace espalier {

// Internal, with rank and instruction, unless
//  - every buffer lies in the arena, aligned, and every instruction names buffers that exist;
//  - all devices reach their ends when sends, receives and collectives block until the partners are
//    there, partners agree on tag and bytes, and no tag is used twice;
//  - scratch is written before it is read, and what was written is not overwritten by another
//  buffer
//    in between nor, but for copies of boxes, written a second time;
//  - boxes of copies lie inside their buffers.
absl::Status CheckPrograms(const std::vector<v1::Program>& programs);

}  // namespace espalier
