// generation_config.json: the model's defaults for fields that a request leaves out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// Fields that are not in the file are absent. Ids are non-negative.
struct GenerationConfig {
  std::vector<int> eos;  // each of these ends an answer
  std::optional<int> bos, pad;
  std::optional<bool> do_sample;             // false: greedy, whatever the sampling fields say
  std::optional<double> temperature;         // at least 0
  std::optional<double> top_p;               // in (0, 1]
  std::optional<int> top_k;                  // 0: no limit
  std::optional<double> min_p;               // in [0, 1]
  std::optional<double> typical_p;           // in (0, 1]
  std::optional<double> repetition_penalty;  // positive
  std::optional<int> max_new_tokens;
  int min_new_tokens = 0;
  std::vector<std::string> stop_strings;
  // From bad_words_ids and suppress_tokens: the last token of an entry never follows the others in
  // an answer. Tokens may be outside the vocabulary.
  std::vector<std::vector<int>> bad_words;
  // Fields that would change answers but are not supported, such as "num_beams", to be reported
  // when the model is served. vLLM ignores them, too.
  std::vector<std::string> unused;
  // InvalidArgument naming the field if the fields other than ids cannot be read. Then they are all
  // absent, and the model can still be served without these defaults.
  absl::Status defaults;
};

// Returns InvalidArgument naming the field if the file is no object or its ids are malformed.
// Ignores fields that do not affect answers, of which library versions write many.
absl::StatusOr<GenerationConfig> ReadGenerationConfig(absl::string_view json);

}  // namespace espalier
