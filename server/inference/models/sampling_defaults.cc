#include "server/inference/models/sampling_defaults.h"

#include "absl/strings/str_cat.h"
#include "serving/request/request.h"

namespace espalier {

namespace {

constexpr char kWithout[] = "; serve with generation_config=none to do without it";

}  // namespace

absl::StatusOr<v1::SamplingOptions> SamplingDefaults(const GenerationConfig& config) {
  if (!config.defaults.ok()) {
    return absl::Status(config.defaults.code(), absl::StrCat(config.defaults.message(), kWithout));
  }
  v1::SamplingOptions out;
  if (config.do_sample.has_value() && !*config.do_sample) {
    out.set_temperature(0);
  } else if (config.temperature.has_value()) {
    out.set_temperature(*config.temperature);
  } else if (config.do_sample.has_value()) {
    out.set_temperature(1);
  }
  if (config.top_p) out.set_top_p(*config.top_p);
  if (config.top_k) out.set_top_k(*config.top_k);
  if (config.min_p) out.set_min_p(*config.min_p);
  if (config.typical_p) out.set_typical_p(*config.typical_p);
  if (config.repetition_penalty) out.set_repetition_penalty(*config.repetition_penalty);

  RequestOptions options;
  options.sampling.temperature = out.temperature();
  if (out.has_top_p()) options.sampling.top_p = out.top_p();
  options.sampling.top_k = out.top_k();
  options.sampling.min_p = out.min_p();
  if (out.has_typical_p()) options.sampling.typical_p = out.typical_p();
  auto rules = std::make_shared<LogitsProcessorOptions>();
  if (out.has_repetition_penalty()) rules->repetition_penalty = out.repetition_penalty();
  options.logits_processor = std::move(rules);
  options.stop = config.stop_strings;
  if (absl::Status status = ValidateOptions(options, 1); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("generation_config.json: ", status.message(), kWithout));
  }
  return out;
}

void FillSampling(const v1::SamplingOptions& defaults, v1::SamplingOptions* sampling) {
  v1::SamplingOptions merged = defaults;
  merged.MergeFrom(*sampling);
  *sampling = std::move(merged);
}

}  // namespace espalier
