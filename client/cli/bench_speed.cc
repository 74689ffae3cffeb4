// One request alone: prompt processing (pp) and token generation (tg), in the rows of llama-bench.
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/bench.h"
#include "client/cli/bench_stats.h"
#include "client/cli/proto_json.h"
#include "client/terminal/progress.h"
#include "client/terminal/table.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

struct Test {
  int64_t prompt = 0;    // tokens to process; 0: none
  int64_t generate = 0;  // tokens to generate after the first one; 0: none
  int64_t depth = 0;     // tokens of context before

  std::string name() const {
    const std::string base = prompt > 0 ? absl::StrCat("pp", prompt) : absl::StrCat("tg", generate);
    return depth > 0 ? absl::StrCat(base, " @ d", depth) : base;
  }
};

class Bench {
 public:
  Bench(Context* context, proto::ServedModel model, proto::GenerateRequest base)
      : context_(*context), model_(std::move(model)), base_(std::move(base)) {}

  // Tokens per second of one run. Each has a prompt of its own.
  absl::StatusOr<double> Once(const Test& test) {
    proto::GenerateRequest request = base_;
    ++seed_;
    if (test.prompt > 0 && test.depth > 0) {
      // The context comes from the prefix cache, which this request fills.
      SetRandomPrompt(seed_, test.depth, model_.vocabulary(), &request);
      request.set_max_tokens(1);
      if (auto filled = BenchGenerate(context_, request); !filled.ok()) return filled.status();
    }
    const int64_t tokens =
        test.prompt > 0 ? test.depth + test.prompt : std::max<int64_t>(1, test.depth);
    SetRandomPrompt(seed_, tokens, model_.vocabulary(), &request);
    request.set_max_tokens(static_cast<int32_t>(test.generate + 1));
    auto answer = BenchGenerate(context_, request);
    if (!answer.ok()) return answer.status();
    const proto::Usage& usage = answer->usage;
    const double first = usage.seconds_to_first_token() - usage.seconds_queued();
    if (test.prompt > 0) {
      const int64_t computed = usage.prompt_tokens() - usage.cached_tokens();
      if (computed > test.prompt + kBlock) {
        return absl::FailedPreconditionError(
            absl::StrCat(test.name(), ": the context was not found in the prefix cache; serve '",
                         model_.name(), "' without --no-prefix-cache, or leave --depth out"));
      }
      return Rate(static_cast<double>(computed), first);
    }
    return Rate(static_cast<double>(usage.completion_tokens() - 1),
                usage.seconds() - usage.seconds_to_first_token());
  }

 private:
  static constexpr int64_t kBlock = 16;  // to whose multiples prefixes are shared

  static absl::StatusOr<double> Rate(double tokens, double seconds) {
    if (tokens > 0 && seconds > 0) return tokens / seconds;
    return absl::InternalError(absl::StrCat("the coordinator reports ", tokens, " tokens in ",
                                            seconds, " s, which is no rate"));
  }

  Context& context_;
  const proto::ServedModel model_;
  const proto::GenerateRequest base_;
  uint64_t seed_ = (uint64_t{std::random_device()()} << 32) | std::random_device()();
};

absl::Status AddTests(const ParsedFlags& flags, std::vector<Test>* tests) {
  const int64_t depth = flags.Int("depth", 0);
  for (const char* kind : {"pp", "tg"}) {
    for (const std::string& text : flags.Values(kind)) {
      int64_t tokens = 0;
      if (!absl::SimpleAtoi(text, &tokens)) {
        return UsageError(absl::StrCat("--", kind, ": a number of tokens is wanted"));
      }
      Test test{.depth = depth};
      (*kind == 'p' ? test.prompt : test.generate) = tokens;
      tests->push_back(test);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunSpeed(Context& context) {
  std::vector<Test> tests;
  if (absl::Status s = AddTests(context.flags(), &tests); !s.ok()) return s;
  auto model = BenchModel(context);
  if (!model.ok()) return model.status();
  const int64_t repetitions = context.flags().Int("repetitions", 5);
  const std::string drafts = model->ssm_artifacts_size() == 0 && model->lookup_depth() == 0 ? "none"
                             : context.flags().Has("no-speculation")                        ? "off"
                                                                                            : "on";
  auto base = BenchRequest(context.flags());
  if (!base.ok()) return base.status();
  Bench bench(&context, *model, *std::move(base));
  ProgressPrinter printer(context.env().out, context.terminal(), context.env().seconds);
  Table table({{"model", Align::kLeft, true},
               {"params", Align::kRight},
               {"weights"},
               {"drafts"},
               {"test", Align::kRight},
               {"t/s", Align::kRight}});
  Json rows = Json::array();
  for (size_t t = 0; t < tests.size(); ++t) {
    const Test& test = tests[t];
    std::vector<double> samples;
    for (int64_t i = -1; i < repetitions; ++i) {  // the first one warms up
      auto rate = bench.Once(test);
      if (!rate.ok()) return rate.status();
      if (i >= 0) samples.push_back(*rate);
      if (context.json()) continue;
      Progress p;
      p.unit = test.name();
      p.done = static_cast<double>(i + 1);
      p.total = static_cast<double>(repetitions);
      printer.Update(p);
    }
    const Stats s = StatsOf(samples);
    table.Row({Printable(model->name()), FormatCount(static_cast<double>(model->parameters())),
               Printable(model->weights()), drafts, test.name(),
               absl::StrFormat("%.2f %s %.2f", s.mean, context.terminal().unicode ? "±" : "+-",
                               s.deviation)});
    Json row;
    row["model"] = model->name();
    row["parameters"] = model->parameters();
    row["weights"] = model->weights();
    row["drafts"] = drafts;
    row["test"] = test.name();
    row["n_prompt"] = test.prompt;
    row["n_gen"] = test.generate;
    row["n_depth"] = test.depth;
    row["avg_ts"] = s.mean;
    row["stddev_ts"] = s.deviation;
    row["samples_ts"] = samples;
    rows.push_back(std::move(row));
  }
  if (context.json()) {
    context.Document(rows);
    return absl::OkStatus();
  }
  printer.Finish();
  context.out() << table.Render(context.terminal()) << std::flush;
  return absl::OkStatus();
}

}  // namespace espalier
