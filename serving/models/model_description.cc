#include "serving/models/model_description.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "serving/tokenizer/byte_tokenizer.h"
#include "serving/tokenizer/byte_tokenizer_files.h"

namespace espalier {
namespace {

absl::StatusOr<int> Positions(const ModelFacts& model, int asked) {
  if (asked < 0 || asked > model.max_positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_sequence_length is ", asked, ", the model has ", model.max_positions,
                     " positions (max_position_embeddings, or more by rope_scaling)"));
  }
  return asked > 0 ? asked
                   : static_cast<int>(std::min<int64_t>(model.default_positions(), INT32_MAX));
}

absl::StatusOr<ServingShape> Shape(int64_t positions, int nodes, int depth,
                                   const ServingSize& size) {
  nodes = std::max(nodes, size.tree_nodes);
  depth = std::max(depth, size.tree_depth);
  int64_t slots = (positions + nodes) * size.max_requests;
  const int64_t contexts = slots;
  if (size.kv_cache_tokens > 0 && size.kv_cache_tokens < slots) {
    slots = size.kv_cache_tokens;
    const int64_t fits = slots - nodes;
    if (fits < 2 || (size.max_sequence_length > 0 && fits < positions)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "kv_cache_tokens is ", slots, "; one sequence of ",
          size.max_sequence_length > 0 ? positions : 2, " tokens takes that and ", nodes,
          " for its trees: ask for more, or for a smaller max_sequence_length"));
    }
    positions = std::min(positions, fits);
  }
  if (size.max_requests < 1 || size.max_tokens_per_batch < 1 || contexts > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat(size.max_requests, " requests of ", positions, " positions in batches of ",
                     size.max_tokens_per_batch, " tokens need ", contexts,
                     " KV slots; accepted: 1 to ", INT32_MAX));
  }
  ServingShape shape;
  shape.kv_cache_dtype = size.kv_cache_dtype;
  shape.max_positions = static_cast<int>(std::min<int64_t>(positions, INT32_MAX));
  shape.max_rows = size.max_tokens_per_batch;
  shape.max_output_rows = size.max_tokens_per_batch;
  shape.kv_slots = static_cast<int>(slots);
  shape.max_sequences = size.max_requests;
  shape.max_context_slots = static_cast<int>(contexts);
  shape.max_ancestor_slots = static_cast<int>(
      std::clamp<int64_t>(int64_t{size.max_tokens_per_batch} * depth, 1, INT32_MAX));
  return shape;
}

// Adds the tokenizer and what its files define.
absl::Status AddTokenizer(const TokenizerFiles& files, ModelDescription* model) {
  const int vocabulary =
      static_cast<int>(std::min<int64_t>(model->model.facts.vocab_size, INT32_MAX));
  const bool bytes = model->model.facts.tokenizer == "bytes";
  // Our own models have both, for other programs.
  const bool missing = files.tokenizer_json.empty() && !bytes;
  const bool contradicts =
      bytes && !files.tokenizer_json.empty() && files.tokenizer_json != ByteTokenizerJson();
  if (missing || contradicts) {
    return absl::InvalidArgumentError(
        bytes
            ? "config.json has \"tokenizer\": \"bytes\", but there is another tokenizer.json: "
              "remove one"
            : "there is no tokenizer.json, and config.json has no \"tokenizer\": \"bytes\", which "
              "would stand for the byte-level tokenizer");
  }
  if (bytes) {
    absl::StatusOr<std::unique_ptr<ByteTokenizer>> tokenizer =
        ByteTokenizer::Create(vocabulary, model->model.facts.eos);
    if (!tokenizer.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("config.json: ", tokenizer.status().message()));
    }
    model->tokenizer = *std::move(tokenizer);
    return absl::OkStatus();
  }
  absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer =
      LoadTokenizer(files, model->model.facts.eos, vocabulary, &model->omitted_added_tokens);
  if (!tokenizer.ok()) return tokenizer.status();
  if ((*tokenizer)->vocabulary() > vocabulary) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.json has ", (*tokenizer)->vocabulary(),
                     " tokens, config.json a vocab_size of ", vocabulary));
  }
  model->tokenizer = *std::move(tokenizer);
  if (!model->omitted_added_tokens.empty()) {
    const auto& [id, spelling] = *model->omitted_added_tokens.begin();
    spdlog::warn(
        "{} of tokenizer.json's added tokens are text only, the first of them \"{}\" of id {}: "
        "config.json has a vocab_size of {}",
        model->omitted_added_tokens.size(), absl::CHexEscape(spelling.substr(0, 60)), id,
        vocabulary);
  }
  const absl::StatusOr<TokenizerConfig> config = ReadTokenizerConfig(files);
  if (!config.ok()) return config.status();
  absl::StatusOr<std::shared_ptr<const ChatTemplate>> chat = ChatTemplate::Create(*config);
  if (!chat.ok()) return chat.status();
  model->chat = *std::move(chat);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelDescription> DescribeModel(absl::string_view config_json,
                                               const TokenizerFiles& files) {
  absl::StatusOr<LanguageModel> model = ReadModel(config_json);
  if (!model.ok()) return model.status();
  return DescribeModel(*std::move(model), files);
}

absl::StatusOr<ModelDescription> DescribeModel(LanguageModel read, const TokenizerFiles& files) {
  ModelDescription model;
  model.model = std::move(read);
  if (absl::Status status = AddTokenizer(files, &model); !status.ok()) return status;
  model.tokenizer_config = files.tokenizer_config_json;
  if (!files.generation_config_json.empty()) {
    absl::StatusOr<GenerationConfig> generation =
        ReadGenerationConfig(files.generation_config_json);
    if (!generation.ok()) return generation.status();
    model.generation = *std::move(generation);
  }
  return model;
}

absl::StatusOr<ServingShape> LlmShape(const ModelFacts& llm, const ServingSize& size,
                                      const Expansion& expansion, int ssms) {
  const absl::StatusOr<int> positions = Positions(llm, size.max_sequence_length);
  if (!positions.ok()) return positions.status();
  return Shape(*positions, expansion.nodes(expansion.depth()) * ssms, expansion.depth(), size);
}

absl::StatusOr<ServingShape> SsmShape(const ModelFacts& ssm, const ServingShape& llm,
                                      const ServingSize& size, const Expansion& expansion,
                                      int ssms) {
  if (!size.short_ssms && ssm.max_positions < llm.max_positions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "as an SSM it has ", ssm.max_positions, " positions, and the LLM is served for ",
        llm.max_positions, " tokens: of longer sequences than its own it would draft nothing; ",
        "serve with --max-sequence-length=", ssm.max_positions,
        ", or with --short-ssms if drafting may end there"));
  }
  const int trees = expansion.nodes(expansion.depth()) * ssms;
  ServingSize own = size;
  own.max_sequence_length = 0;  // drafted for as far as it goes
  return Shape(std::min<int64_t>(ssm.max_positions, llm.max_positions), trees, expansion.depth(),
               own);
}

}  // namespace espalier
