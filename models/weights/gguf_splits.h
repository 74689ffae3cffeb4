// Models that llama.cpp's gguf-split has divided into files "NAME-00001-of-00003.gguf".
#pragma once

#include <cstdint>
#include <string>

namespace espalier {

// Metadata keys of a split: its number from 0, the number of splits, and the number of tensors in
// all.
inline constexpr char kGgufSplitNumber[] = "split.no";
inline constexpr char kGgufSplitCount[] = "split.count";
inline constexpr char kGgufTotalTensors[] = "split.tensors.count";

struct GgufSplitName {
  std::string prefix;  // "NAME" with its folder; the whole path if unnumbered
  int64_t number = 0;  // from 0
  int64_t count = 1;
};

// Parses a file name or path.
GgufSplitName ParseGgufSplitName(const std::string& path);
// Returns the path of another split. REQUIRES: name.count > 1.
std::string GgufSplitPath(const GgufSplitName& name, int64_t number);

}  // namespace espalier
