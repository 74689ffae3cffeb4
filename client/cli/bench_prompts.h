// What the requests of a load ask.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/flags.h"
#include "proto/inference.pb.h"

namespace espalier {

// Immutable once made; Fill may be called from several threads.
class BenchPrompts {
 public:
  // Windows of a text, or random tokens of a vocabulary of that size: as the flags say. Usage
  // errors for flags that exclude each other and for files that cannot be read or are no UTF-8.
  static absl::StatusOr<BenchPrompts> Create(const ParsedFlags& flags, int vocabulary,
                                             uint64_t seed);
  // Whether a vocabulary is wanted.
  static bool Random(const ParsedFlags& flags) { return flags.Has("prompt-tokens"); }

  // The prompt of request `i`, from 0.
  void Fill(int64_t i, proto::GenerateRequest* request) const;

 private:
  BenchPrompts() = default;
  std::string WindowOf(size_t i) const;

  std::string text_;
  size_t window_ = 0;          // bytes, at most
  int64_t random_tokens_ = 0;  // 0: no random tokens
  int vocabulary_ = 0;
  uint64_t seed_ = 0;  // of random tokens
};

}  // namespace espalier
