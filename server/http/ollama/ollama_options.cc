#include "server/http/ollama/ollama_options.h"

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/http/openai_sampling.h"
#include "server/http/openai_structured_output.h"

namespace espalier::ollama {
namespace {

using json = nlohmann::ordered_json;
using openai::IsOff;
using openai::JsonReader;

constexpr int kMaxStops = 64;
constexpr int kMaxTopLogprobs = 20;

// Penalties cover the whole prompt and answer, so that a window has no meaning unless they are off.
void ReadPenalties(JsonReader& options, v1::SamplingOptions* sampling) {
  if (options.Find("repeat_penalty") != nullptr) {
    if (options.Find("repetition_penalty") != nullptr) {
      options.Fail("repeat_penalty",
                   "fields 'options.repeat_penalty' and 'options.repetition_penalty' are the same; "
                   "give one");
    }
    double penalty = 1;
    options.Number("repeat_penalty", 0.01, 100, &penalty);
    sampling->set_repetition_penalty(penalty);
  }
  if (options.Find("repeat_last_n") == nullptr) return;
  int window = -1;
  options.Integer("repeat_last_n", -1, openai::kMaxTokensLimit, &window);
  if (window == 0) {  // no penalties
    sampling->set_repetition_penalty(1);
    sampling->set_presence_penalty(0);
    sampling->set_frequency_penalty(0);
  }
  const bool off = sampling->repetition_penalty() == 1 && sampling->presence_penalty() == 0 &&
                   sampling->frequency_penalty() == 0;
  if (window > 0 && !off) {
    options.Fail("repeat_last_n",
                 "field 'options.repeat_last_n' must be -1 or 0, or go with a repeat_penalty of 1: "
                 "penalties count all tokens of prompt and answer");
  }
}

void ReadStops(JsonReader& options, v1::GenerateRequest* generate) {
  const json* stop = options.Find("stop");
  if (stop != nullptr && stop->is_string()) {
    generate->add_stop(stop->get<std::string>());
  } else {
    options.Strings("stop", kMaxStops, [&](const std::string& text) { generate->add_stop(text); });
  }
}

void ReadKeepAlive(JsonReader& reader, LoadOptions* load) {
  const json* keep = reader.Find("keep_alive");
  if (keep == nullptr) return;
  absl::Duration duration;
  if (keep->is_number()) {
    load->unload = *keep == 0;
  } else if (keep->is_string() && absl::ParseDuration(keep->get<std::string>(), &duration)) {
    load->unload = duration == absl::ZeroDuration();
  } else {
    reader.Fail("keep_alive",
                "field 'keep_alive' must be a number of seconds or a duration such as \"5m\"");
  }
}

}  // namespace

void ReadOptions(JsonReader& reader, v1::GenerateRequest* generate, LoadOptions* load) {
  ReadKeepAlive(reader, load);
  const json* given = reader.Find("options");
  if (given == nullptr) return;
  if (!given->is_object()) {
    reader.Fail("options", "field 'options' must be an object");
    return;
  }
  JsonReader options(*given, "options.");
  openai::ReadSampling(options, generate);
  ReadPenalties(options, generate->mutable_sampling());
  ReadStops(options, generate);
  int most = 0;
  options.Integer("num_predict", -2, openai::kMaxTokensLimit, &most);
  generate->set_max_tokens(most < 0 ? 0 : most);
  if (options.Find("num_ctx") != nullptr) {
    int context = 0;
    options.Integer("num_ctx", 1, 1 << 30, &context);
    load->num_ctx = context;
  }
  options.Unsupported("mirostat", IsOff);
  options.Unsupported("tfs_z", [](const json& v) { return v == 1; });
  for (const char* name : {"penalize_newline", "f16_kv"}) {
    options.Unsupported(name, [](const json& v) { return v == true; });
  }
  for (const char* name : {"logits_all", "vocab_only", "embedding_only"}) {
    options.Unsupported(name, IsOff);
  }
  // Of mirostat, which is off; of shifting a full context, which ends the answer instead; and how
  // the model is loaded, which `espalier serve` decides.
  options.Ignore({"mirostat_tau", "mirostat_eta", "num_keep", "numa", "num_batch", "num_gpu",
                  "main_gpu", "low_vram", "use_mmap", "use_mlock", "num_thread"});
  options.RefuseUnknown();
  if (options.error()) reader.Fail(options.error()->param, options.error()->message);
}

void ReadFormat(JsonReader& reader, v1::GenerateRequest* generate) {
  const json* format = reader.Find("format");
  if (format == nullptr || *format == "") return;
  if (*format == "json") {
    generate->mutable_structured_output()->set_json_object(true);
  } else if (format->is_object()) {
    generate->mutable_structured_output()->set_json_schema(openai::SchemaText(*format));
  } else {
    reader.Fail("format", "field 'format' must be \"json\" or a JSON schema");
  }
}

void ReadLogprobs(JsonReader& reader, v1::GenerateRequest* generate) {
  bool wanted = false;
  int top = 0;
  reader.Bool("logprobs", &wanted);
  reader.Integer("top_logprobs", 0, kMaxTopLogprobs, &top);
  if (top > 0 && !wanted) {
    reader.Fail("top_logprobs", "field 'top_logprobs' goes with 'logprobs': true");
  }
  if (wanted) generate->set_logprobs(top);
}

}  // namespace espalier::ollama
