#include "models/neutral_fields.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace espalier {
namespace {

constexpr absl::string_view kNames[] = {
    // What the file is and who wrote it.
    "_commit_hash", "_from_model_config", "_name_or_path", "_num_labels", "architectures",
    "auto_map", "finetuning_task", "is_llama_config", "model_name", "model_type", "tokenizer_class",
    "tokenizer_name", "transformers.js_config", "transformers_version",
    // Types of stored weights: each tensor states its own.
    "dtype", "torch_dtype", "use_bfloat16",
    // How the same values are computed or returned.
    "attention_softmax_in_fp32", "attn_impl", "cache_implementation", "chunk_size_feed_forward",
    "pretraining_tp", "reorder_and_upcast_attn", "return_dict", "return_dict_in_generate",
    "scale_attention_softmax_in_fp32", "tf_legacy_loss", "torchscript", "use_cache",
    "use_flash_attention", "use_flash_attn", "verbose",
    // Limits of tokenizers and of older code; max_position_embeddings counts.
    "max_sequence_length", "model_max_length", "n_ctx", "seq_length",
    // Training.
    "classifier_dropout_prob", "gradient_checkpointing", "layerdrop", "neftune_noise_alpha",
    "router_aux_loss_coef", "router_jitter_noise",
    // Heads of other tasks.
    "id2label", "label2id", "num_labels", "prefix", "problem_type", "task_specific_params",
    // Defaults of generation, which generation_config.json has.
    "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "length_penalty",
    "max_length", "max_new_tokens", "min_length", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_return_sequences", "remove_invalid_values", "repetition_penalty",
    "suppress_tokens", "temperature", "top_k", "top_p", "typical_p",
    // Images, which are not served.
    "mm_tokens_per_image", "multimodal_projector_bias", "projector_hidden_act",
    "spatial_merge_size"};
constexpr absl::string_view kPrefixes[] = {"_attn_implementation",
                                           "_flash_attn",
                                           "image_",
                                           "init_",
                                           "initializer_",
                                           "output_",
                                           "summary_",
                                           "unsloth_",
                                           "vision_"};
constexpr absl::string_view kSuffixes[] = {"_pdrop", "dropout", "_token_id", "_token_ids",
                                           "_token_index"};

}  // namespace

bool IsNeutralField(absl::string_view field) {
  const auto any = [](const auto& list, const auto& matches) {
    return std::any_of(std::begin(list), std::end(list), matches);
  };
  return any(kNames, [&](absl::string_view name) { return field == name; }) ||
         any(kPrefixes, [&](absl::string_view part) { return absl::StartsWith(field, part); }) ||
         any(kSuffixes, [&](absl::string_view part) { return absl::EndsWith(field, part); });
}

}  // namespace espalier
