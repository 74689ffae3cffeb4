#include "client/cli/bench.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/sampling_flags.h"

namespace espalier {
namespace {

absl::Status Run(Context& context) {
  if (absl::Status s = CheckArguments(context, 1, 1, "a model's name"); !s.ok()) return s;
  const ParsedFlags& flags = context.flags();
  if (!flags.Has("pp") && !flags.Has("tg")) {
    for (const char* name : {"depth", "repetitions"}) {
      if (flags.Has(name)) return UsageError(absl::StrCat("--", name, " goes with --pp or --tg"));
    }
    return RunLoad(context);
  }
  for (const char* name : {"requests", "concurrency", "request-rate", "prompt-length",
                           "prompt-tokens", "prompts-from", "max-tokens", "goodput", "http"}) {
    if (!flags.Has(name)) continue;
    return UsageError(
        absl::StrCat("--", name, " is for load; --pp and --tg run one request alone"));
  }
  return RunSpeed(context);
}

// SplitMix64.
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace

absl::StatusOr<proto::GenerateRequest> BenchRequest(const ParsedFlags& flags) {
  proto::GenerateRequest request;
  if (absl::Status status = FillSampling(flags, &request); !status.ok()) return status;
  request.set_model(flags.positional()[0]);
  // A form has an end.
  request.set_ignore_eos(!request.has_structured_output());
  proto::SamplingOptions* sampling = request.mutable_sampling();
  // Not what the model's authors would sample with: runs are to be compared.
  if (!flags.Has("temperature")) sampling->set_temperature(0);
  if (!flags.Has("repetition-penalty")) sampling->set_repetition_penalty(0);
  if (flags.Has("logprobs")) {
    request.set_logprobs(static_cast<int32_t>(flags.Int("logprobs", 0)));
  }
  if (flags.Has("no-speculation")) request.set_speculation(proto::SPECULATION_OFF);
  return request;
}

absl::StatusOr<Generation> BenchGenerate(Context& context, const proto::GenerateRequest& request) {
  const auto ignore = [](const std::string&) {};
  if (context.flags().Has("http")) {
    auto gateway = context.gateway();
    if (!gateway.ok()) return gateway.status();
    return GenerateByHttp(**gateway, request, context.env().seconds, ignore);
  }
  auto client = context.client();
  if (!client.ok()) return client.status();
  return GenerateByGrpc(*client, request, context.env().seconds, ignore);
}

absl::StatusOr<proto::ServedModel> BenchModel(Context& context) {
  auto client = context.client();
  if (!client.ok()) return client.status();
  auto models = (*client)->ListServed();
  if (!models.ok()) return models.status();
  const std::string& wanted = context.flags().positional()[0];
  std::string known;
  for (const proto::ServedModel& model : *models) {
    if (model.name() == wanted) return model;
    absl::StrAppend(&known, known.empty() ? "" : ", ", model.name());
  }
  return absl::NotFoundError(absl::StrCat(
      "model '", wanted, "' is not served; ",
      known.empty() ? "none is (see 'espalier serve')" : absl::StrCat("served are: ", known)));
}

void SetRandomPrompt(uint64_t seed, int64_t count, int vocabulary,
                     proto::GenerateRequest* request) {
  proto::TokenList* tokens = request->mutable_tokens();
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
  c.usage = "bench MODEL [--requests=N] [--concurrency=N] [flags] | bench MODEL --pp=N --tg=N";
  c.description =
      "Without --pp and --tg: concurrent requests, and what `vllm bench serve` prints of them. "
      "With\n"
      "them: one request at a time, and the rows of `llama-bench`, timed by the coordinator, "
      "without\n"
      "tokenizing and the network.";
  c.flags = {
      {"requests", FlagType::kInt, "N", "in all (32)", 0, 1, 1 << 24, false, {"num-prompts"}},
      {"concurrency", FlagType::kInt, "N", "at a time (4)", 0, 1, 4096, false, {"max-concurrency"}},
      {"request-rate", FlagType::kNumber, "R",
       "requests per second, at random times of a Poisson process (as fast as concurrency allows)",
       0, 1e-3, 1e6},
      {"prompt-length", FlagType::kInt, "BYTES", "of each prompt, at most: whole characters (64)",
       0, 1, 1 << 24},
      {"prompts-from", FlagType::kText, "FILE", "windows of this text (UTF-8)"},
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
       "of each answer; an end of sequence does not end it (64)",
       0,
       1,
       1 << 20,
       false,
       {"random-output-len"}},
      {"goodput", FlagType::kText, "WHAT:MS",
       "count requests within this many milliseconds: ttft, tpot or e2el", 0, 0, 0, true},
      {"http", FlagType::kSwitch, "", "through the OpenAI API instead of gRPC"},
      {"pp", FlagType::kInt, "N", "time the processing of a prompt of N tokens", 0, 1, 1 << 20,
       true},
      {"tg", FlagType::kInt, "N", "time the generation of N tokens", 0, 1, 1 << 20, true},
      {"depth", FlagType::kInt, "N", "tokens of context before them (0)", 0, 0, 1 << 20},
      {"repetitions", FlagType::kInt, "N", "of each row (5)", 0, 1, 1000},
      {"no-speculation", FlagType::kSwitch, "", "without token trees"},
      {"temperature", FlagType::kNumber, "T", "0 is greedy (0)", 0, 0, 100},
      {"logprobs", FlagType::kInt, "N", "log-probabilities, of N tokens besides (none)", 0, 0, 64},
  };
  for (FlagSpec& flag : SamplingFlags()) {
    if (flag.name == "temperature") continue;
    if (flag.name == "ignore-eos") flag.doc = "always so here, but where the answer has a form";
    c.flags.push_back(std::move(flag));
  }
  c.examples = {{"sixteen at a time", "espalier bench llm --requests=64 --concurrency=16"},
                {"ten a second, and how many are answered in time",
                 "espalier bench llm --requests=200 --concurrency=64 --request-rate=10 "
                 "--goodput=ttft:500 --goodput=tpot:50"},
                {"as llama-bench", "espalier bench llm --pp=512 --tg=128 --no-speculation"}};
  c.run = Run;
  return c;
}

}  // namespace espalier
