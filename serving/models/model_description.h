// What serving needs to know of a model folder: family, sizes, tokenizer, chat template. Read from
// the texts of its small files; the worker loads the weights. Model families are in models/.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/model.h"
#include "serving/chat_template/chat_template.h"
#include "serving/speculative/expansion.h"
#include "serving/tokenizer/generation_config.h"
#include "serving/tokenizer/tokenizer.h"
#include "serving/tokenizer/tokenizer_files.h"

namespace espalier {

struct ModelDescription {
  LanguageModel model;
  std::shared_ptr<const Tokenizer> tokenizer;
  // Spellings of tokenizer.json's added tokens that the model's matrices have no rows for, by id.
  std::map<int, std::string> omitted_added_tokens;
  std::shared_ptr<const ChatTemplate> chat;  // null: the plain form, of models of our own training
  GenerationConfig generation;               // defaults for requests
  std::string tokenizer_config;              // text of tokenizer_config.json; may be empty
};

// Returns the errors of ReadModel, LoadTokenizer and ChatFormat, which name the field. Returns
// InvalidArgument for an eos_token_id outside the vocabulary, for a tokenizer with more tokens than
// the model, if there is neither tokenizer.json nor "tokenizer": "bytes" in
// config.json, and if there are both and they differ.
absl::StatusOr<ModelDescription> DescribeModel(absl::string_view config_json,
                                               const TokenizerFiles& files = {});
// The same of a model that ReadModel returned.
absl::StatusOr<ModelDescription> DescribeModel(LanguageModel model, const TokenizerFiles& files);

// Requested limits of a served model.
struct ServingSize {
  int max_sequence_length = 0;  // 0: the model's (ModelFacts::usual_positions)
  int max_requests = 16;
  int max_tokens_per_batch = 256;
  // KV slots per model at most; 0: as many as all requests could need at once
  int kv_cache_tokens = 0;
  // The largest draft of a request, if larger than the expansion's trees.
  int tree_nodes = 0;
  int tree_depth = 0;
  DType kv_cache_dtype = DType::kF32;  // of every model: see ServingShape
  bool short_ssms = false;  // SSMs may support fewer positions than the LLM is served with
};

// Returns the sizes for the LLM: KV slots for `max_requests` sequences of full length with their
// trees, or `kv_cache_tokens` slots; then requests are preempted when slots run out. One sequence
// always fits: if no length is requested, it is reduced accordingly. Returns InvalidArgument, with
// both numbers, if max_sequence_length exceeds the model's positions or the slots.
absl::StatusOr<ServingShape> LlmShape(const ModelFacts& llm, const ServingSize& size,
                                      const Expansion& expansion, int ssms);

// Returns the sizes for an SSM of that LLM. An SSM with fewer positions drafts only up to them;
// without short_ssms, that is InvalidArgument, with both numbers.
absl::StatusOr<ServingShape> SsmShape(const ModelFacts& ssm, const ServingShape& llm,
                                      const ServingSize& size, const Expansion& expansion,
                                      int ssms);

}  // namespace espalier
