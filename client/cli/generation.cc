#include "client/cli/generation.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/http.h"
#include "client/cli/proto_json.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

// Records the arrival times of an answer's pieces.
class Stopwatch {
 public:
  Stopwatch(const std::function<double()>& seconds, Generation* generation)
      : seconds_(seconds), start_(seconds()), last_(start_), generation_(generation) {}

  void Piece() {
    const double now = seconds_();
    if (generation_->pieces++ == 0) {
      generation_->seconds_to_first = now - start_;
    } else {
      generation_->gaps.push_back(now - last_);
    }
    last_ = now;
  }
  void End() { generation_->seconds = seconds_() - start_; }

 private:
  const std::function<double()>& seconds_;
  double start_, last_;
  Generation* generation_;
};

int32_t Count(const Json& object, const char* field) {
  auto it = object.find(field);
  return it != object.end() && it->is_number_integer() ? it->get<int32_t>() : 0;
}

// Parses one "data:" chunk of /v1/completions. Returns false if no more is wanted.
bool ReadChunk(const Json& chunk, Stopwatch* watch, Generation* out, const PieceListener& piece) {
  bool wanted = true;
  if (chunk.contains("choices") && chunk["choices"].is_array() && !chunk["choices"].empty()) {
    const Json& choice = chunk["choices"][0];
    const std::string text = choice.contains("text") && choice["text"].is_string()
                                 ? choice["text"].get<std::string>()
                                 : "";
    if (choice.contains("finish_reason") && choice["finish_reason"].is_string()) {
      out->finish_reason = choice["finish_reason"].get<std::string>();
    }
    if (!text.empty()) {
      watch->Piece();
      out->text += text;
      wanted = piece(text);
    }
  }
  if (chunk.contains("usage") && chunk["usage"].is_object()) {
    const Json& usage = chunk["usage"];
    out->usage.set_prompt_tokens(Count(usage, "prompt_tokens"));
    out->usage.set_completion_tokens(Count(usage, "completion_tokens"));
    if (usage.contains("prompt_tokens_details") && usage["prompt_tokens_details"].is_object()) {
      out->usage.set_cached_tokens(Count(usage["prompt_tokens_details"], "cached_tokens"));
    }
    if (usage.contains("speculation") && usage["speculation"].is_object()) {
      const Json& trees = usage["speculation"];
      out->usage.set_drafted_tokens(Count(trees, "drafted_tokens"));
      out->usage.set_accepted_tokens(Count(trees, "accepted_tokens"));
      out->usage.set_verification_steps(Count(trees, "verification_steps"));
    }
  }
  return wanted;
}

void AddForm(const v1::StructuredOutput& output, Json* body) {
  Json form;
  if (output.has_regex()) form["regex"] = output.regex();
  if (output.has_json_schema()) form["json"] = output.json_schema();
  if (output.has_json_object()) form["json_object"] = true;
  if (output.has_grammar()) form["grammar"] = output.grammar();
  for (const std::string& text : output.choice().texts()) form["choice"].push_back(text);
  if (!form.is_null()) (*body)["structured_outputs"] = std::move(form);
}

}  // namespace

double Generation::tokens_per_second() const {
  return seconds > 0 ? usage.completion_tokens() / seconds : 0;
}

double Generation::seconds_per_token() const {
  const int after_first = usage.completion_tokens() - 1;
  return after_first > 0 ? (seconds - seconds_to_first) / after_first : 0;
}

double Generation::tokens_per_verification() const {
  if (usage.drafted_tokens() == 0 || usage.verification_steps() == 0) return 0;
  return 1.0 + accepted_per_verification();
}

double Generation::accepted_per_verification() const {
  if (usage.verification_steps() == 0) return 0;
  return static_cast<double>(usage.accepted_tokens()) / usage.verification_steps();
}

absl::StatusOr<Generation> GenerateByGrpc(Client* client, const v1::GenerateRequest& request,
                                          const std::function<double()>& seconds,
                                          const PieceListener& piece) {
  Generation out;
  Stopwatch watch(seconds, &out);
  absl::Status status = client->Generate(
      request,
      [&](const v1::GenerateReply& reply) {
        if (!reply.text().empty() || reply.tokens_size() > 0) watch.Piece();
        out.text += reply.text();
        if (!reply.finish_reason().empty()) out.finish_reason = reply.finish_reason();
        if (reply.has_usage()) out.usage = reply.usage();
        return reply.text().empty() || piece(reply.text());
      },
      absl::InfiniteDuration(), [&](const std::string& warning) { out.warning = warning; });
  watch.End();
  if (!status.ok()) return status;
  return out;
}

std::string CompletionBody(const v1::GenerateRequest& request) {
  Json body;
  // Over HTTP, an adapter is addressed by its name as the model.
  body["model"] = request.adapter().empty() ? request.model() : request.adapter();
  if (request.has_tokens()) {
    body["prompt"] = std::vector<int>(request.tokens().ids().begin(), request.tokens().ids().end());
  } else {
    body["prompt"] = request.text();
  }
  if (request.max_tokens() > 0) body["max_tokens"] = request.max_tokens();
  if (request.stop_size() > 0)
    body["stop"] = std::vector<std::string>(request.stop().begin(), request.stop().end());
  const v1::SamplingOptions& sampling = request.sampling();
  if (sampling.has_temperature()) body["temperature"] = sampling.temperature();
  // 0 means "off" in gRPC only; send HTTP's own neutral values.
  if (sampling.has_top_p()) body["top_p"] = sampling.top_p() > 0 ? sampling.top_p() : 1;
  if (sampling.has_top_k()) body["top_k"] = sampling.top_k() > 0 ? sampling.top_k() : -1;
  if (sampling.has_min_p()) body["min_p"] = sampling.min_p();
  if (sampling.has_typical_p()) {
    body["typical_p"] = sampling.typical_p() > 0 ? sampling.typical_p() : 1;
  }
  if (sampling.has_repetition_penalty()) {
    body["repetition_penalty"] =
        sampling.repetition_penalty() > 0 ? sampling.repetition_penalty() : 1;
  }
  if (request.has_logprobs()) body["logprobs"] = request.logprobs();
  if (sampling.has_seed()) body["seed"] = static_cast<int64_t>(sampling.seed());
  const std::pair<const char*, double> numbers[] = {
      {"presence_penalty", sampling.presence_penalty()},
      {"frequency_penalty", sampling.frequency_penalty()},
      {"timeout", request.timeout_seconds()}};
  for (const auto& [name, value] : numbers) {
    if (value != 0) body[name] = value;
  }
  for (const auto& [token, bias] : sampling.logit_bias()) {
    body["logit_bias"][absl::StrCat(token)] = bias;
  }
  for (const std::string& word : sampling.bad_words()) body["bad_words"].push_back(word);
  for (const int token : request.stop_token_ids()) body["stop_token_ids"].push_back(token);
  if (sampling.has_min_tokens()) body["min_tokens"] = sampling.min_tokens();
  if (request.priority() != 0) body["priority"] = request.priority();
  if (!request.cache_salt().empty()) body["cache_salt"] = request.cache_salt();
  AddForm(request.structured_output(), &body);
  if (request.ignore_eos()) body["ignore_eos"] = true;
  if (request.speculation() != v1::SPECULATION_DEFAULT) {
    body["speculation"] = request.speculation() == v1::SPECULATION_ON;
  }
  body["stream"] = true;
  body["stream_options"]["include_usage"] = true;
  return Dump(body);
}

absl::StatusOr<Generation> GenerateByHttp(const Gateway& gateway,
                                          const v1::GenerateRequest& request,
                                          const std::function<double()>& seconds,
                                          const PieceListener& piece) {
  Generation out;
  Stopwatch watch(seconds, &out);
  absl::Status failed;
  absl::Status status = PostForEvents(
      gateway, "/v1/completions", CompletionBody(request), [&](const std::string& data) {
        const Json chunk = Json::parse(data, nullptr, false);
        if (!chunk.is_object()) {
          failed = absl::DataLossError("the gateway sent an event that is no JSON object");
        } else if (chunk.contains("error")) {
          failed = absl::InternalError(
              absl::StrCat("the gateway ended the stream: ", Dump(chunk["error"])));
        } else {
          return ReadChunk(chunk, &watch, &out, piece);
        }
        return true;
      });
  watch.End();
  if (!failed.ok()) return failed;
  if (!status.ok()) return status;
  return out;
}

}  // namespace espalier
