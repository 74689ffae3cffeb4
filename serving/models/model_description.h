// What must be known of a model's folder before it can be served: its family and sizes, its
// tokenizer. From the texts of its small files alone; weights are the worker's. Families are
// models'.
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
  GenerationConfig generation;             // what requests that say nothing should get
};

// Errors name the field: those of ReadModel, LoadTokenizer and ChatTemplate; InvalidArgument for an
// eos_token_id outside the vocabulary, a tokenizer with more tokens than the model, and where it is
// not clear which tokenizer the model has: tokenizer.json, or bytes if config.json has "tokenizer":
// "bytes".
absl::StatusOr<ModelDescription> DescribeModel(absl::string_view config_json,
                                               const TokenizerFiles& files = {});

// How large the steps of a served model may get.
struct ServingSize {
  int max_sequence_length = 0;  // 0: the model's (ModelFacts::default_positions)
  int max_requests = 16;
  int max_tokens_per_batch = 256;
  int kv_cache_tokens = 0;  // KV slots of each model at most; 0: as all requests could need at once
  // The largest draft of a request, if it is larger than the expansion's trees.
  int tree_nodes = 0;
  int tree_depth = 0;
  DType kv_cache_dtype = DType::kF32;  // of every model: see ServingShape
  bool short_ssms = false;        // SSMs may have fewer positions than the LLM is served for
};

// Sizes for the LLM: KV slots for `max_requests` sequences of full length, each with its trees, or
// as many as `kv_cache_tokens` says: when they run out, requests are preempted. One sequence always
// fits: where no length is asked for, it is cut to that. InvalidArgument with both numbers if
// max_sequence_length is more than the model has, or than the slots hold.
absl::StatusOr<ServingShape> LlmShape(const ModelFacts& llm, const ServingSize& size,
                                      const Expansion& expansion, int ssms);

// Sizes for one of the SSMs beside that LLM. If the SSM has fewer positions, the engine drafts only
// up to them: InvalidArgument with both numbers, unless short_ssms allows it.
absl::StatusOr<ServingShape> SsmShape(const ModelFacts& ssm, const ServingShape& llm,
                                      const ServingSize& size, const Expansion& expansion,
                                      int ssms);

}  // namespace espalier
