#include "client/cli/history/record_file.h"

#include <array>

namespace espalier {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

constexpr std::array<uint32_t, 256> CrcTable() {
  std::array<uint32_t, 256> table = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = CrcTable();

// A CRC of data that holds its own CRC says little, so the format stores another number.
uint32_t Masked(absl::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

void AppendLittleEndian(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) *out += static_cast<char>(value >> 8 * i & 0xff);
}

}  // namespace

uint32_t Crc32c(absl::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  }
  return ~crc;
}

std::string FrameRecord(absl::string_view bytes) {
  std::string out;
  AppendLittleEndian(bytes.size(), 8, &out);
  AppendLittleEndian(Masked(out), 4, &out);
  out.append(bytes.data(), bytes.size());
  AppendLittleEndian(Masked(bytes), 4, &out);
  return out;
}

}  // namespace espalier
