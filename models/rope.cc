#include "models/rope.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace espalier {
namespace {

constexpr double kPi = 3.14159265358979323846;
// Each layer has a list of half as many numbers.
constexpr int64_t kMostHeadDim = 4096;
constexpr char kFull[] = "full_attention", kSliding[] = "sliding_attention";

// theta^(-2i/dim) for the rotated pairs of a head.
std::vector<double> Plain(double theta, int64_t dim) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < dim / 2; ++i) {
    frequencies.push_back(1.0 /
                          std::pow(theta, static_cast<double>(2 * i) / static_cast<double>(dim)));
  }
  return frequencies;
}

constexpr char kOriginal[] = "original_max_position_embeddings";

// transformers reads it outside of the scaling's object first, as Phi-3's files have it.
int64_t OriginalPositions(ConfigReader& config, ConfigReader& scaling, int64_t otherwise) {
  return config.Size(kOriginal, scaling.Size(kOriginal, std::max<int64_t>(1, otherwise)));
}

double RequiredFactor(ConfigReader& scaling) {
  if (!scaling.Has("factor")) scaling.Refuse("factor", "a number above 0");
  return scaling.Positive("factor", 1);
}

// Keeps wavelengths far below the original context, stretches those far above it by `factor`, and
// interpolates between.
void Llama3(ConfigReader& config, ConfigReader& scaling, Rope* rope) {
  const double factor = RequiredFactor(scaling);
  const double low = scaling.Positive("low_freq_factor", 1);
  const double high = scaling.Positive("high_freq_factor", 4);
  const double original =
      static_cast<double>(config.Has(kOriginal) ? config.Size(kOriginal) : scaling.Size(kOriginal));
  if (!(high > low)) scaling.Refuse("high_freq_factor", "more than low_freq_factor");
  for (double& frequency : rope->frequencies) {
    const double turns = original * frequency / (2 * kPi);  // within the original context
    if (turns > high) continue;
    const double kept = turns < low ? 0 : (turns - low) / (high - low);
    frequency = (1 - kept) * frequency / factor + kept * frequency;
  }
}

// Never shorter than without scaling.
void ExtendContext(int64_t original, double factor, Rope* rope) {
  constexpr double kMost = 1 << 30;
  const double positions = std::min(static_cast<double>(original) * factor, kMost);
  rope->max_positions = std::max(rope->max_positions, static_cast<int64_t>(positions));
}

void Yarn(ConfigReader& config, ConfigReader& scaling, int64_t max_positions, int64_t dim,
          Rope* rope) {
  const int64_t trained = OriginalPositions(config, scaling, max_positions);
  const double original = static_cast<double>(trained);
  const double factor = scaling.Positive("factor", static_cast<double>(max_positions) / original);
  ExtendContext(trained, factor, rope);
  const double fast = scaling.Positive("beta_fast", 32), slow = scaling.Positive("beta_slow", 1);
  const auto magnitude = [factor](double scale) {
    return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
  };
  const double one = scaling.Number("mscale", 0), all = scaling.Number("mscale_all_dim", 0);
  rope->magnitude = scaling.Positive(
      "attention_factor", one != 0 && all != 0 ? magnitude(one) / magnitude(all) : magnitude(1));
  if (!(rope->theta > 1)) {
    scaling.Fail(absl::InvalidArgumentError("config.json: yarn needs a rope_theta above 1"));
    return;
  }
  // The pair that makes `rotations` turns within the original context.
  const double width = static_cast<double>(dim);
  const auto pair_of = [&](double rotations) {
    return width * std::log(original / (rotations * 2 * kPi)) / (2 * std::log(rope->theta));
  };
  double first = pair_of(fast), last = pair_of(slow);
  if (scaling.Flag("truncate", true)) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, width - 1);
  if (first == last) last += 0.001;
  for (size_t i = 0; i < rope->frequencies.size(); ++i) {
    const double stretched =
        std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
    rope->frequencies[i] *= stretched / factor + (1 - stretched);
  }
}

void LongRope(ConfigReader& config, ConfigReader& scaling, const RopeDefaults& defaults,
              Rope* rope) {
  const std::vector<double> by_short = scaling.Numbers("short_factor");
  const std::vector<double> by_long = scaling.Numbers("long_factor");
  for (const auto& [field, factors] :
       {std::pair("short_factor", &by_short), std::pair("long_factor", &by_long)}) {
    const bool good = factors->size() == rope->frequencies.size() &&
                      std::all_of(factors->begin(), factors->end(), [](double f) { return f > 0; });
    if (good) continue;
    scaling.Refuse(field, std::to_string(rope->frequencies.size()) +
                              " numbers above 0, one for each pair of a head that turns");
    return;
  }
  double factor = scaling.Positive("factor", 1);
  rope->short_positions = std::max<int64_t>(1, defaults.max_positions);
  if (config.Has(kOriginal) || scaling.Has(kOriginal) || defaults.original_positions > 0) {
    rope->short_positions = OriginalPositions(config, scaling, defaults.original_positions);
    const double ratio =
        static_cast<double>(defaults.max_positions) / static_cast<double>(rope->short_positions);
    // transformers 4 takes the ratio, 5 the factor.
    if (scaling.Has("factor") && !scaling.Has("attention_factor") &&
        std::abs(factor / ratio - 1) > 1e-6) {
      scaling.Refuse("factor", "null or " + std::to_string(ratio) +
                                   ", max_position_embeddings by the original ones, or an "
                                   "additional \"attention_factor\"");
    }
    factor = ratio;
  }
  const double original = static_cast<double>(std::max<int64_t>(2, rope->short_positions));
  rope->magnitude = scaling.Positive(
      "attention_factor", factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(original)));
  rope->long_frequencies = rope->frequencies;
  for (size_t i = 0; i < rope->frequencies.size(); ++i) {
    rope->frequencies[i] /= by_short[i];
    rope->long_frequencies[i] /= by_long[i];
  }
}

// The parameters of the requested type of layers.
ConfigReader ReadParameters(ConfigReader& config, const std::string& layers) {
  const std::string field = config.OneOf({"rope_scaling", "rope_parameters"});
  ConfigReader all = config.Object(field);
  const bool by_layers = !layers.empty() && (all.Has(kFull) || all.Has(kSliding));
  if (by_layers) all.RequireOthersOff({kFull, kSliding});
  ConfigReader own = by_layers || layers == kSliding ? all.Object(layers) : all;
  // Those that a type does not use are for another one.
  const std::vector<std::string> known = {"rope_type",        "type",
                                          "rope_theta",       "partial_rotary_factor",
                                          "factor",           "original_max_position_embeddings",
                                          "low_freq_factor",  "high_freq_factor",
                                          "beta_fast",        "beta_slow",
                                          "mscale",           "mscale_all_dim",
                                          "attention_factor", "truncate",
                                          "short_factor",     "long_factor",
                                          "finetuned"};
  own.RequireOthersOff(known);
  own.Ignore(known);
  return own;
}

}  // namespace

std::vector<double> FrequenciesFor(const Rope& rope, int64_t longest) {
  if (!rope.by_length() || longest <= rope.short_positions) return rope.frequencies;
  if (!rope.long_frequencies.empty()) return rope.long_frequencies;
  // NTK-aware scaling (Peng et al. 2023): the slowest pair is stretched by the full factor.
  const int64_t dim = 2 * static_cast<int64_t>(rope.frequencies.size());
  const double beyond = static_cast<double>(longest) / static_cast<double>(rope.short_positions);
  const double stretch = rope.dynamic_factor * beyond - (rope.dynamic_factor - 1);
  const double width = static_cast<double>(dim);
  return Plain(rope.theta * std::pow(stretch, width / (width - 2)), dim);
}

Rope ReadRope(ConfigReader& config, int64_t head_dim, const RopeDefaults& defaults) {
  ConfigReader scaling = ReadParameters(config, defaults.layers);
  double theta = config.Positive(defaults.theta_field, defaults.theta);
  theta = scaling.Positive("rope_theta", theta);
  const double partial = scaling.Positive("partial_rotary_factor", defaults.partial);
  if (head_dim > kMostHeadDim) {
    config.Fail(absl::InvalidArgumentError(
        "config.json: rotary embeddings turn heads of " + std::to_string(head_dim) +
        " elements (\"head_dim\"); accepted: at most " + std::to_string(kMostHeadDim)));
    return {};
  }
  // A fraction above 1 is refused, however large.
  const int64_t dim = static_cast<int64_t>(static_cast<double>(head_dim) * std::min(partial, 2.0));
  if (dim < 2 || dim % 2 != 0 || dim > head_dim) {
    config.Fail(absl::InvalidArgumentError(
        "config.json: rotary embeddings turn " + std::to_string(dim) + " of the " +
        std::to_string(head_dim) + " elements of a head; accepted: an even number of them"));
    return {};
  }
  config.Ignore({kOriginal});  // other types do not use it
  Rope rope = {.head_dim = head_dim, .theta = theta, .frequencies = Plain(theta, dim)};
  rope.max_positions = defaults.max_positions;
  const std::string kind = scaling.OneOf({"rope_type", "type"});
  const std::string type = scaling.Text(kind, "default");
  if (type == "linear") {
    const double factor = RequiredFactor(scaling);
    for (double& frequency : rope.frequencies) frequency /= factor;
    ExtendContext(defaults.max_positions, factor, &rope);
  } else if (type == "dynamic") {
    rope.dynamic_factor = RequiredFactor(scaling);
    rope.short_positions = std::max<int64_t>(1, defaults.max_positions);
    ExtendContext(defaults.max_positions, rope.dynamic_factor, &rope);
  } else if (type == "llama3") {
    Llama3(config, scaling, &rope);
  } else if (type == "yarn") {
    Yarn(config, scaling, defaults.max_positions, dim, &rope);
  } else if (type == "longrope" || type == "su") {
    LongRope(config, scaling, defaults, &rope);
  } else if (type != "default") {
    scaling.Refuse(kind, "\"default\", \"linear\", \"dynamic\", \"llama3\", \"yarn\", \"longrope\"",
                   /*unsupported=*/true);
  }
  return rope;
}

}  // namespace espalier
