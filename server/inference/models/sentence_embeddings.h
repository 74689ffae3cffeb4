// Recognizes models that were trained to embed texts.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace espalier {

// The files of sentence-transformers in a model folder; empty if a file is absent.
struct SentenceTransformersFiles {
  std::string modules_json;
  std::string pooling_config_json;  // 1_Pooling/config.json
};

// Returns whether the cosine similarity of embeddings as the engine gives them (the hidden state of
// the last token, normalized) is what the model was trained for. Returns FailedPrecondition with
// the reason if not: other language models have hidden states, too, but those compare nothing.
absl::Status CheckSentenceEmbeddings(const SentenceTransformersFiles& files);

}  // namespace espalier
