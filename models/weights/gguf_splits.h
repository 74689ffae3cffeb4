// Models that llama.cpp's gguf-split has cut into several files: "NAME-00001-of-00003.gguf".
#pragma once

#include <cstdint>
#include <string>

namespace espalier {

// The keys by which each file says which one it is (from 0), of how many, and how many tensors all
// of them have.
inline constexpr char kGgufSplitNumber[] = "split.no";
inline constexpr char kGgufSplitCount[] = "split.count";
inline constexpr char kGgufTotalTensors[] = "split.tensors.count";

struct GgufSplitName {
  std::string prefix;  // "NAME", with the folder; all of a name that has no numbers
  int64_t number = 0;  // from 0
  int64_t count = 1;
};

// Of a file's name or path.
GgufSplitName ParseGgufSplitName(const std::string& path);
// Another one of those files. REQUIRES: name.count > 1.
std::string GgufSplitPath(const GgufSplitName& name, int64_t number);

}  // namespace espalier
