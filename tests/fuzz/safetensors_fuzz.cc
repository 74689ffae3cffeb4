// Fuzzes safetensors: any bytes are tensors or an error; everything that a header declares can be
// read.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "storage/safetensors.h"
#include "tests/fuzz/memory_file_system.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace espalier;
  MemoryFileSystem files(std::string(reinterpret_cast<const char*>(data), size));
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(files, "x");
  if (!file.ok()) return 0;
  for (const auto& [name, entry] : (*file)->tensors()) {
    std::vector<char> bytes(static_cast<size_t>(entry.bytes));
    if (!(*file)->Read(entry, 0, entry.bytes, bytes.data()).ok()) __builtin_trap();
    if ((*file)->Read(entry, 1, entry.bytes, bytes.data()).ok()) __builtin_trap();
  }
  return 0;
}
