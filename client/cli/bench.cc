#include "client/cli/bench.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/sampling_flags.h"

namespace espalier {
namespace {

std::vector<FlagSpec> LoadFlags() {
  return {
      {"requests", FlagType::kInt, "N", "in all (32)", 0, 1, 1 << 24, false, {"num-prompts"}},
      {"request-rate", FlagType::kNumber, "R",
       "requests per second, each sent when it is due, whether others have ended or not, and timed "
       "from then on even if it had to wait (all are due at once, and timed from when they are "
       "sent)",
       0, 1e-3, 1e6},
      {"burstiness", FlagType::kNumber, "B",
       "of their gaps, a gamma distribution's shape: 1 is a Poisson process, less comes in bursts "
       "(1)",
       0, 1e-3, 1e6},
      {"max-concurrency",
       FlagType::kInt,
       "N",
       "at a time; others wait (all, up to 4096)",
       0,
       1,
       4096,
       false,
       {"concurrency"}},
      {"prompt-length", FlagType::kInt, "BYTES", "of each prompt, at most: whole characters (64)",
       0, 1, 1 << 24},
      {"prompts-from", FlagType::kText, "FILE", "windows of this text (UTF-8)"},
      {"dataset-path", FlagType::kText, "FILE",
       "own prompts: JSON lines of {\"prompt\": ..., \"output_tokens\": N}, or ShareGPT's "
       "conversations, in an order by --seed"},
      {"prompt-tokens",
       FlagType::kInt,
       "N",
       "random tokens instead of text",
       0,
       1,
       1 << 20,
       false,
       {"random-input-len"}},
      {"max-tokens",
       FlagType::kInt,
       "N",
       "of each answer; an end of sequence does not end it (the data set's, or 64)",
       0,
       1,
       1 << 20,
       false,
       {"random-output-len"}},
      {"goodput", FlagType::kText, "WHAT:MS",
       "count requests within this many milliseconds: ttft, tpot or e2el", 0, 0, 0, true},
      {"percentile-metrics", FlagType::kText, "NAMES", "the times to tell (ttft,tpot,itl,e2el)"},
      {"metric-percentiles", FlagType::kText, "PERCENTS", "of each (90,99)"},
      {"save-result", FlagType::kSwitch, "", "write what --json prints into a file, too"},
      {"result-dir", FlagType::kText, "DIR", "where (the working directory)"},
      {"result-filename", FlagType::kText, "FILE", "its name (of rate, model and date)"},
      {"save-detailed", FlagType::kSwitch, "", "with times, text and error of every request"},
      {"http", FlagType::kSwitch, "", "through the OpenAI API instead of gRPC"},
  };
}

std::vector<FlagSpec> SpeedFlags() {
  return {
      {"pp", FlagType::kInt, "N", "time the processing of a prompt of N tokens", 0, 1, 1 << 20,
       true},
      {"tg", FlagType::kInt, "N", "time the generation of N tokens", 0, 1, 1 << 20, true},
      {"pg", FlagType::kText, "P,N", "time both in one: a prompt of P tokens, then N tokens", 0, 0,
       0, true},
      {"depth", FlagType::kInt, "N", "tokens of context before them (0)", 0, 0, 1 << 20, true},
      {"repetitions", FlagType::kInt, "N", "of each row (5)", 0, 1, 1000},
      {"output", FlagType::kText, "FORM", "table, csv, json, jsonl, md or sql (table)", 'o'},
  };
}

bool HasTest(const ParsedFlags& flags) {
  return flags.Has("pp") || flags.Has("tg") || flags.Has("pg");
}

absl::Status Run(Context& context) {
  if (absl::Status s = CheckArguments(context, 1, 1, "a model's name"); !s.ok()) return s;
  const ParsedFlags& flags = context.flags();
  const bool speed = HasTest(flags);
  for (const FlagSpec& other : speed ? LoadFlags() : SpeedFlags()) {
    if (!flags.Has(other.name)) continue;
    return UsageError(speed ? absl::StrCat("--", other.name,
                                           " is for load; --pp, --tg and --pg run one request "
                                           "alone")
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

void SetRandomPrompt(uint64_t seed, int64_t count, int vocabulary,
                     v1::GenerateRequest* request) {
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
  c.summary = "measure a served model: under load, or the speed of one request";
  c.usage = "bench MODEL [--requests=N] [--request-rate=R] [flags] | bench MODEL --pp=N --tg=N";
  c.description =
      "Without --pp, --tg and --pg: many requests, and what `vllm bench serve` prints of them, in "
      "--json\n"
      "under its names. With them: one request at a time, and the rows of `llama-bench`, timed by "
      "the\n"
      "coordinator, without tokenizing and the network; their size is that of the model's "
      "artifact, their\n"
      "threads are those of its workers.";
  c.flags = LoadFlags();
  for (FlagSpec& flag : SpeedFlags()) c.flags.push_back(std::move(flag));
  c.flags.insert(c.flags.end(),
                 {{"no-speculation", FlagType::kSwitch, "", "without token trees"},
                  {"temperature", FlagType::kNumber, "T", "0 is greedy (0)", 0, 0, 100},
                  {"logprobs", FlagType::kInt, "N", "log-probabilities, of N tokens besides (none)",
                   0, 0, 64}});
  for (FlagSpec& flag : SamplingFlags()) {
    if (flag.name == "temperature") continue;
    if (flag.name == "ignore-eos") flag.doc = "always so here, but where the answer has a form";
    if (flag.name == "seed") flag.doc = "of arrivals (0), prompts that are drawn, and sampling";
    c.flags.push_back(std::move(flag));
  }
  c.examples = {{"sixteen at a time", "espalier bench llm --requests=64 --max-concurrency=16"},
                {"ten a second, and how many are answered in time",
                 "espalier bench llm --requests=200 --request-rate=10 "
                 "--goodput=ttft:500 --goodput=tpot:50"},
                {"own prompts, and a file of what came of them",
                 "espalier bench llm --dataset-path=prompts.jsonl --save-result"},
                {"as llama-bench",
                 "espalier bench llm --pp=512 --tg=128 --pg=512,128 --no-speculation -o md"}};
  c.run = Run;
  return c;
}

}  // namespace espalier
