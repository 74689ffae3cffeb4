#include "base/byte_shuffle.h"

#include <algorithm>
#include <cstddef>

namespace espalier {
namespace {

constexpr size_t kElement = 4;

// Compilers vectorize both loops, if they know that what is written is not read.
void Split(const char* __restrict in, size_t elements, char* __restrict out) {
  char* __restrict first = out;
  char* __restrict second = first + elements;
  char* __restrict third = second + elements;
  char* __restrict fourth = third + elements;
  for (size_t i = 0; i < elements; ++i) {
    first[i] = in[kElement * i];
    second[i] = in[kElement * i + 1];
    third[i] = in[kElement * i + 2];
    fourth[i] = in[kElement * i + 3];
  }
}

void Join(const char* __restrict in, size_t elements, char* __restrict out) {
  const char* const first = in;
  const char* const second = first + elements;
  const char* const third = second + elements;
  const char* const fourth = third + elements;
  for (size_t i = 0; i < elements; ++i) {
    out[kElement * i] = first[i];
    out[kElement * i + 1] = second[i];
    out[kElement * i + 2] = third[i];
    out[kElement * i + 3] = fourth[i];
  }
}

}  // namespace

void ByteShuffler::Append(absl::string_view block, std::string* out) const {
  const size_t before = out->size(), elements = block.size() / kElement;
  out->resize(before + block.size());
  char* const to = out->data() + before;
  (forward_ ? Split : Join)(block.data(), elements, to);
  const size_t done = elements * kElement;
  std::copy(block.begin() + static_cast<std::ptrdiff_t>(done), block.end(), to + done);
}

void ByteShuffler::Add(absl::string_view bytes, std::string* out) {
  while (begun_.size() + bytes.size() >= block_bytes_) {
    if (begun_.empty()) {
      Append(bytes.substr(0, block_bytes_), out);
      bytes.remove_prefix(block_bytes_);
      continue;
    }
    const size_t missing = block_bytes_ - begun_.size();
    begun_.append(bytes.data(), missing);
    bytes.remove_prefix(missing);
    Append(begun_, out);
    begun_.clear();
  }
  begun_.append(bytes.data(), bytes.size());
}

void ByteShuffler::Finish(std::string* out) {
  Append(begun_, out);
  begun_.clear();
}

}  // namespace espalier
