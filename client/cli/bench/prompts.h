// The prompts of a load test.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/bench/dataset.h"
#include "client/cli/flags.h"
#include "espalier/v1/inference.pb.h"

namespace espalier {

// Fill is thread-safe; other methods are not.
class BenchPrompts {
 public:
  // Creates the source that the flags choose: windows of a text, prompts of a dataset, or random
  // tokens. Usage errors for conflicting flags and unreadable files. Random draws depend on --seed;
  // without it, random tokens differ from run to run.
  static absl::StatusOr<BenchPrompts> Create(const ParsedFlags& flags);
  // True for random tokens, which need SetVocabulary before Fill.
  bool random() const { return random_tokens_ > 0; }
  void SetVocabulary(int vocabulary) { vocabulary_ = vocabulary; }

  // Sets the prompt of request `i` (from 0), and the number of output tokens if the dataset gives
  // it and --max-tokens does not.
  void Fill(int64_t i, v1::GenerateRequest* request) const;

 private:
  BenchPrompts() = default;
  std::string WindowOf(size_t i) const;

  std::string text_;
  size_t window_ = 0;                   // at most, in bytes
  std::vector<DatasetPrompt> dataset_;  // empty: none
  bool own_lengths_ = false;            // use the dataset's output lengths
  int64_t random_tokens_ = 0;           // 0: no random tokens
  int vocabulary_ = 0;
  uint64_t seed_ = 0;  // for random tokens
};

}  // namespace espalier
