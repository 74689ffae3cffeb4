#include "models/adapter_config.h"

#include <cmath>

#include "models/config_reader.h"

namespace espalier {
namespace {

// Switches that do not change what a trained adapter computes on top of the model. The weights name
// their layers; fan_in_fan_out matters only when B A is merged into the matrix.
const std::vector<std::string>& NeutralFields() {
  static const std::vector<std::string>& fields =
      *new std::vector<std::string>{"peft_type",
                                    "task_type",
                                    "r",
                                    "lora_alpha",
                                    "use_rslora",
                                    "target_modules",
                                    "bias",
                                    "init_lora_weights",
                                    "auto_mapping",
                                    "base_model_name_or_path",
                                    "revision",
                                    "inference_mode",
                                    "lora_dropout",
                                    "exclude_modules",
                                    "fan_in_fan_out",
                                    "layers_to_transform",
                                    "layers_pattern",
                                    "megatron_core",
                                    "eva_config",
                                    "corda_config",
                                    "loftq_config",
                                    "runtime_config",
                                    "peft_version",
                                    "qalora_group_size"};
  return fields;
}

}  // namespace

absl::StatusOr<AdapterConfig> ReadAdapterConfig(absl::string_view json) {
  absl::StatusOr<ConfigReader> parsed = ConfigReader::Parse(json, "adapter_config.json");
  if (!parsed.ok()) return parsed.status();
  ConfigReader& config = *parsed;
  if (!config.Has("peft_type")) config.Refuse("peft_type", "\"LORA\"");
  config.RequireText("peft_type", {"LORA"});
  config.RequireText("task_type", {"CAUSAL_LM", "FEATURE_EXTRACTION"});
  config.RequireText("bias", {"none"});
  // The other initializations start from matrices of the model, which they change.
  if (config.IsText("init_lora_weights")) {
    config.RequireText("init_lora_weights", {"gaussian", "eva", "orthogonal"});
  } else {
    config.Flag("init_lora_weights", true);
  }
  config.RequireOthersOff(NeutralFields());

  AdapterConfig adapter;
  if (!config.Has("r")) config.Refuse("r", "the adapter's rank");
  adapter.rank = config.Int("r", 1, 1, kMaxAdapterRank);
  const double alpha = config.Number("lora_alpha", 8);
  const double rank = static_cast<double>(adapter.rank);
  adapter.scale = alpha / (config.Flag("use_rslora", false) ? std::sqrt(rank) : rank);
  // A string is a regular expression, or "all-linear".
  if (!config.IsText("target_modules")) adapter.targets = config.Texts("target_modules");
  if (!config.status().ok()) return config.status();
  return adapter;
}

}  // namespace espalier
