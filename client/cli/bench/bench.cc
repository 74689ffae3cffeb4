#include "client/cli/bench/bench.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/sampling_flags.h"

namespace espalier {
namespace {

std::vector<FlagSpec> LoadFlags() {
  return {
      {"requests",
       FlagType::kInt,
       "N",
       "number of requests (32)",
       0,
       1,
       1 << 24,
       false,
       {"num-prompts"}},
      {"request-rate", FlagType::kNumber, "R",
       "requests per second, each sent at its scheduled time even if others are running, and "
       "timed from then even if it had to wait (all at once, timed from when they are sent)",
       0, 1e-3, 1e6},
      {"burstiness", FlagType::kNumber, "B",
       "shape of the gamma distribution of gaps: 1 is a Poisson process, less is burstier (1)", 0,
       1e-3, 1e6},
      {"max-concurrency",
       FlagType::kInt,
       "N",
       "concurrent requests; others wait (all, up to 4096)",
       0,
       1,
       4096,
       false,
       {"concurrency"}},
      {"prompt-length", FlagType::kInt, "BYTES",
       "maximum length of a prompt; whole characters "
       "(64)",
       0, 1, 1 << 24},
      {"prompts-from", FlagType::kText, "FILE", "take prompts from this text (UTF-8)"},
      {"dataset-path", FlagType::kText, "FILE",
       "prompts: JSON lines of {\"prompt\": ..., \"output_tokens\": N}, or ShareGPT's "
       "conversations, in an order by --seed"},
      {"prompt-tokens",
       FlagType::kInt,
       "N",
       "prompts of N random tokens instead of text",
       0,
       1,
       1 << 20,
       false,
       {"random-input-len"}},
      {"max-tokens",
       FlagType::kInt,
       "N",
       "tokens per answer; end-of-sequence tokens are ignored (the dataset's, or 64)",
       0,
       1,
       1 << 20,
       false,
       {"random-output-len"}},
      {"goodput", FlagType::kText, "WHAT:MS",
       "count requests within this many milliseconds: ttft, tpot or e2el", 0, 0, 0, true},
      {"percentile-metrics", FlagType::kText, "NAMES", "times to report (ttft,tpot,itl,e2el)"},
      {"metric-percentiles", FlagType::kText, "PERCENTS", "percentiles of each time (90,99)"},
      {"save-result", FlagType::kSwitch, "", "also write the --json output to a file"},
      {"result-dir", FlagType::kText, "DIR", "folder of --save-result (the working directory)"},
      {"result-filename", FlagType::kText, "FILE",
       "file name of --save-result (from rate, model "
       "and date)"},
      {"save-detailed", FlagType::kSwitch, "", "include times, text and error of every request"},
      {"http", FlagType::kSwitch, "", "use the OpenAI API instead of gRPC"},
  };
}

std::vector<FlagSpec> SpeedFlags() {
  return {
      {"pp", FlagType::kInt, "N", "time the processing of a prompt of N tokens", 0, 1, 1 << 20,
       true},
      {"tg", FlagType::kInt, "N", "time the generation of N tokens", 0, 1, 1 << 20, true},
      {"pg", FlagType::kText, "P,N", "time both together: a prompt of P tokens, then N tokens", 0,
       0, 0, true},
      {"depth", FlagType::kInt, "N", "preceding tokens of context (0)", 0, 0, 1 << 20, true},
      {"repetitions", FlagType::kInt, "N", "repetitions of each row (5)", 0, 1, 1000},
      {"output", FlagType::kText, "FORM", "table, csv, json, jsonl, md or sql (table)", 'o'},
  };
}

bool HasTest(const ParsedFlags& flags) {
  return flags.Has("pp") || flags.Has("tg") || flags.Has("pg");
}

absl::Status RunBench(Context& context) {
  if (absl::Status s = CheckArguments(context, 1, 1, "a model's name"); !s.ok()) return s;
  const ParsedFlags& flags = context.flags();
  const bool speed = HasTest(flags);
  for (const FlagSpec& other : speed ? LoadFlags() : SpeedFlags()) {
    if (!flags.Has(other.name)) continue;
    return UsageError(speed ? absl::StrCat("--", other.name,
                                           " applies to load tests; --pp, --tg and --pg run a "
                                           "single request")
                            : absl::StrCat("--", other.name, " goes with --pp, --tg or --pg"));
  }
  return speed ? RunSingleRequest(context) : RunLoad(context);
}

// SplitMix64.
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace

absl::StatusOr<v1::GenerateRequest> BenchRequest(const ParsedFlags& flags) {
  v1::GenerateRequest request;
  if (absl::Status status = FillSampling(flags, &request); !status.ok()) return status;
  request.set_model(flags.positional()[0]);
  // Structured output ends by itself.
  request.set_ignore_eos(!request.has_structured_output());
  v1::SamplingOptions* sampling = request.mutable_sampling();
  // Ignores the model's own sampling defaults: runs must be comparable.
  if (!flags.Has("temperature")) sampling->set_temperature(0);
  if (!flags.Has("repetition-penalty")) sampling->set_repetition_penalty(0);
  if (flags.Has("logprobs")) {
    request.set_logprobs(static_cast<int32_t>(flags.Int("logprobs", 0)));
  }
  if (flags.Has("no-speculation")) request.set_speculation(v1::SPECULATION_OFF);
  return request;
}

absl::StatusOr<Generation> BenchGenerate(Context& context, const v1::GenerateRequest& request) {
  const auto ignore = [](const std::string&) { return true; };
  if (context.flags().Has("http")) {
    auto gateway = context.gateway();
    if (!gateway.ok()) return gateway.status();
    return GenerateByHttp(**gateway, request, context.env().seconds, ignore);
  }
  auto client = context.client();
  if (!client.ok()) return client.status();
  return GenerateByGrpc(*client, request, context.env().seconds, ignore);
}

absl::StatusOr<v1::ServedModel> BenchModel(Context& context) {
  auto client = context.client();
  if (!client.ok()) return client.status();
  auto models = (*client)->ListServed();
  if (!models.ok()) return models.status();
  const std::string& wanted = context.flags().positional()[0];
  std::string known;
  for (const v1::ServedModel& model : *models) {
    if (model.name() == wanted) return model;
    absl::StrAppend(&known, known.empty() ? "" : ", ", model.name());
  }
  return absl::NotFoundError(absl::StrCat(
      "model '", wanted, "' is not served; ",
      known.empty() ? "none is (see 'espalier serve')" : absl::StrCat("served are: ", known)));
}

void SetRandomPrompt(uint64_t seed, int64_t count, int vocabulary, v1::GenerateRequest* request) {
  v1::TokenList* tokens = request->mutable_tokens();
  tokens->clear_ids();
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t number = Mix(Mix(seed) + static_cast<uint64_t>(i));
    tokens->add_ids(static_cast<int>(number % static_cast<uint64_t>(std::max(1, vocabulary))));
  }
}

Command BenchCommand() {
  Command c;
  c.name = "bench";
  c.summary = "benchmark a served model: under load, or a single request";
  c.usage = "bench MODEL [--requests=N] [--request-rate=R] [flags] | bench MODEL --pp=N --tg=N";
  c.description =
      "Without --pp, --tg and --pg: many requests, and the report of `vllm bench serve`, with "
      "the\nsame names in --json. With them: one request at a time, and the rows of "
      "`llama-bench`, timed by\nthe coordinator, without tokenization and network; size is that "
      "of the model's artifact,\nthreads are those of its workers.";
  c.flags = LoadFlags();
  for (FlagSpec& flag : SpeedFlags()) c.flags.push_back(std::move(flag));
  c.flags.insert(c.flags.end(),
                 {{"no-speculation", FlagType::kSwitch, "", "without token trees"},
                  {"temperature", FlagType::kNumber, "T", "0 is greedy (0)", 0, 0, 100},
                  {"logprobs", FlagType::kInt, "N",
                   "request log-probabilities, with N "
                   "alternatives (none)",
                   0, 0, 64}});
  for (FlagSpec& flag : SamplingFlags()) {
    if (flag.name == "temperature") continue;
    if (flag.name == "ignore-eos") flag.doc = "always on here, except for structured output";
    if (flag.name == "seed") flag.doc = "seed of arrivals (0), random prompts and sampling";
    c.flags.push_back(std::move(flag));
  }
  c.examples = {{"sixteen at a time", "espalier bench llm --requests=64 --max-concurrency=16"},
                {"ten a second, and how many are answered in time",
                 "espalier bench llm --requests=200 --request-rate=10 "
                 "--goodput=ttft:500 --goodput=tpot:50"},
                {"your own prompts, with the results in a file",
                 "espalier bench llm --dataset-path=prompts.jsonl --save-result"},
                {"as llama-bench",
                 "espalier bench llm --pp=512 --tg=128 --pg=512,128 --no-speculation -o md"}};
  c.run = RunBench;
  return c;
}

}  // namespace espalier
