// What the requests of a load ask.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/bench_dataset.h"
#include "client/cli/flags.h"
#include "espalier/v1/inference.pb.h"

namespace espalier {

// Fill may be called from several threads, nothing else.
class BenchPrompts {
 public:
  // Windows of a text, prompts of a dataset, or random tokens: as the flags say. Usage errors for
  // flags that exclude each other and for files that cannot be read. What is drawn depends on
  // --seed; without it, random tokens are others each time.
  static absl::StatusOr<BenchPrompts> Create(const ParsedFlags& flags);
  // Random tokens are wanted: of a vocabulary that is to be given before Fill.
  bool random() const { return random_tokens_ > 0; }
  void SetVocabulary(int vocabulary) { vocabulary_ = vocabulary; }

  // The prompt of request `i`, from 0; and how many tokens to answer, if its dataset says so and
  // --max-tokens does not.
  void Fill(int64_t i, v1::GenerateRequest* request) const;

 private:
  BenchPrompts() = default;
  std::string WindowOf(size_t i) const;

  std::string text_;
  size_t window_ = 0;                   // bytes, at most
  std::vector<DatasetPrompt> dataset_;  // empty: none
  bool own_lengths_ = false;            // of the dataset's answers
  int64_t random_tokens_ = 0;           // 0: no random tokens
  int vocabulary_ = 0;
  uint64_t seed_ = 0;  // of random tokens
};

}  // namespace espalier
