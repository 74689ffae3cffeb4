// TFRecord, the framing of TensorBoard's event files.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace espalier {

// CRC-32C (Castagnoli).
uint32_t Crc32c(absl::string_view bytes);

// A record: its length and bytes, each with a masked CRC-32C.
std::string FrameRecord(absl::string_view bytes);

}  // namespace espalier
