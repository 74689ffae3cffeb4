#include "ops/onnx/initializer_names.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace espalier::onnx_import {
namespace {

using Words = std::set<std::string>;

bool AllDigits(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

// Without TensorFlow's output number: "kernel" of "dense/kernel:0".
absl::string_view WithoutOutput(absl::string_view name) {
  const size_t colon = name.rfind(':');
  const bool numbered =
      colon != absl::string_view::npos && colon > 0 && AllDigits(name.substr(colon + 1));
  return numbered ? name.substr(0, colon) : name;
}

// "weight" of "layers.0.fc.weight", "kernel" of TensorFlow's "dense/kernel/read", "scales" of
// "scales.0", which is in a list of parameters.
absl::string_view LastPart(absl::string_view name) {
  while (true) {
    const size_t at = name.find_last_of("./");
    if (at == absl::string_view::npos) return name;
    const absl::string_view last = name.substr(at + 1);
    const bool is_index = name[at] == '.' && AllDigits(last);
    if (!is_index && last != "read" && !absl::StartsWith(last, "read__")) return last;
    name = name.substr(0, at);
  }
}

// Runs of letters in lower case: {"weight", "ih", "l"} of "weight_ih_l0".
std::vector<std::string> WordsIn(absl::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (absl::ascii_isalpha(c)) {
      words.back() += absl::ascii_tolower(c);
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

bool AnyOf(const std::vector<std::string>& words, const Words& known) {
  return std::any_of(words.begin(), words.end(),
                     [&](const std::string& word) { return known.count(word) > 0; });
}

// Names that exporters make: PyTorch's two, tf2onnx, onnxsim and our own ("/3/Mul/0").
bool IsMadeByExporter(absl::string_view name) {
  const absl::string_view last = LastPart(name);
  absl::string_view rest = name;
  if (absl::ConsumePrefix(&rest, "val_") && !rest.empty() && absl::ascii_isdigit(rest[0])) {
    return true;
  }
  rest = last;
  const bool constant =
      (absl::ConsumePrefix(&rest, "constant") || absl::ConsumePrefix(&rest, "Constant") ||
       absl::ConsumePrefix(&rest, "const") || absl::ConsumePrefix(&rest, "Const")) &&
      (rest.empty() || !absl::ascii_isalpha(rest[0]));
  const bool in_path = name.find('/') != absl::string_view::npos;
  return constant || absl::StartsWith(name, "onnx::") || AllDigits(last) ||
         absl::StrContains(name, "lifted_tensor") || absl::StrContains(name, "tensor_constant") ||
         absl::StartsWith(name, "_to_copy") || absl::StartsWith(name, "scalar_tensor") ||
         absl::EndsWith(name, "_output_0") || (in_path && (last == "x" || last == "y"));
}

}  // namespace

NameKind KindOfName(const std::string& name) {
  static const auto* const kBufferNames = new Words{"attn_mask",
                                                    "embed_scale",
                                                    "fb",
                                                    "final_logits_bias",
                                                    "freqs",
                                                    "freqs_cis",
                                                    "inv_freq",
                                                    "masked_bias",
                                                    "mean",
                                                    "mel_filters",
                                                    "moving_mean",
                                                    "moving_var",
                                                    "moving_variance",
                                                    "original_inv_freq",
                                                    "relative_coords_table",
                                                    "running_mean",
                                                    "running_var",
                                                    "std",
                                                    "stddev",
                                                    "var",
                                                    "variance",
                                                    "window"};
  static const auto* const kBufferWords = new Words{
      "anchor", "anchors", "cache", "cached", "cos", "freq", "freqs",  "grid", "ids",
      "index",  "indices", "mask",  "mean",   "sin", "std",  "stddev", "var",  "variance"};
  static const auto* const kParameterWords =
      new Words{"b",         "beta",       "bias",      "biases",       "coef",       "coefficient",
                "emb",       "embed",      "embedding", "coefficients", "embeddings", "gamma",
                "intercept", "intercepts", "kernel",    "kernels",      "layerscale", "log",
                "logit",     "logstd",     "lora",      "ls",           "original",   "param",
                "parameter", "pe",         "pos",       "position",     "positional", "positions",
                "queries",   "query",      "slope",     "temperature",  "token",      "tokens",
                "variable",  "w",          "weight",    "weights"};
  static const auto* const kLearnedScalars =
      new Words{"alpha", "delta", "g",   "gain",  "lamb",  "lambda", "logscale", "logvar",
                "mix",   "rho",   "tau", "scale", "shift", "temp",   "theta",    "offset"};
  const absl::string_view whole = WithoutOutput(name);
  const std::string last = absl::AsciiStrToLower(LastPart(whole));
  const std::vector<std::string> words = WordsIn(last);
  if (kBufferNames->count(last) > 0 || absl::StrContains(name, "reprocess")) {
    return NameKind::kBuffer;
  }
  if (IsMadeByExporter(whole)) return NameKind::kExporter;
  const bool is_read = absl::StrContains(name, "ReadVariableOp");  // TensorFlow
  if (is_read || absl::StrContains(last, "layer_scale") || AnyOf(words, *kParameterWords)) {
    return NameKind::kParameter;
  }
  if (AnyOf(words, *kBufferWords)) return NameKind::kBufferLike;
  // PyTorch joins the names of modules with dots.
  if (AnyOf(words, *kLearnedScalars) || whole.find('.') != absl::string_view::npos) {
    return NameKind::kMember;
  }
  return NameKind::kUnknown;
}

std::string NameWithoutDigits(std::string name) {
  name.erase(std::remove_if(name.begin(), name.end(), absl::ascii_isdigit), name.end());
  return name;
}

bool NamesPositions(const std::string& name) {
  const std::vector<std::string> words = WordsIn(name);
  return std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word == "pe" || absl::StartsWith(word, "pos") || absl::StartsWith(word, "sinusoid");
  });
}

}  // namespace espalier::onnx_import
