// generation_config.json: what a model's authors would have a request ask for where it does not
// say.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// What the file does not say is absent. Ids are non-negative.
struct GenerationConfig {
  std::vector<int> eos;  // any of these ends an answer
  std::optional<int> bos, pad;
  std::optional<bool> do_sample;             // false: greedy, whatever the fields of sampling say
  std::optional<double> temperature;         // 0 or more
  std::optional<double> top_p;               // in (0, 1]
  std::optional<int> top_k;                  // 0: all
  std::optional<double> min_p;               // in [0, 1]
  std::optional<double> typical_p;           // in (0, 1]
  std::optional<double> repetition_penalty;  // more than 0
  std::optional<int> max_new_tokens;
  int min_new_tokens = 0;
  std::vector<std::string> stop_strings;
  // Of bad_words_ids and suppress_tokens: in an answer the last token of one never follows the
  // others. Tokens may lie beyond the vocabulary.
  std::vector<std::vector<int>> bad_words;
  // Fields that would change answers, and that nobody reads, as "num_beams": whoever serves the
  // model says so. vLLM passes them over, too.
  std::vector<std::string> unused;
  // InvalidArgument naming the field where what follows the ids cannot be read; all of that is
  // absent then. Who serves the model without these defaults does without it.
  absl::Status defaults;
};

// InvalidArgument naming the field, of a file that is no object or whose ids are none. Fields that
// do not concern what is answered are passed over; the file has some of every version of its
// library.
absl::StatusOr<GenerationConfig> ReadGenerationConfig(absl::string_view json);

}  // namespace espalier
