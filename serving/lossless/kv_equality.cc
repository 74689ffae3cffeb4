#include "serving/lossless/kv_equality.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/lossless/uncached_logits.h"

namespace espalier {
namespace {

using Path = std::vector<int>;

// An SSM that knows the whole text: after any path it predicts the next token of the text first and
// another token second, so that trees have nodes to reject.
class OracleRunner : public ModelRunner {
 public:
  OracleRunner(RunnerLimits limits, Path text) : limits_(limits), text_(std::move(text)) {
    limits_.adapters = 0;
    limits_.hidden = 0;
    limits_.concurrent_steps = 1;
  }

  RunnerLimits limits() const override { return limits_; }
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override {
    const auto vocabulary = static_cast<size_t>(limits_.vocabulary);
    logits->vocabulary = limits_.vocabulary;
    logits->choices.clear();
    logits->values.assign(batch.logit_rows.size() * vocabulary, 0);
    for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
      const auto next = static_cast<size_t>(batch.positions[batch.logit_rows[i]]) + 1;
      if (next >= text_.size()) continue;
      const auto token = static_cast<size_t>(text_[next]);
      logits->values[i * vocabulary + token] = 2;
      logits->values[i * vocabulary + (token + 1) % vocabulary] += 1;
    }
    return absl::OkStatus();
  }

 private:
  RunnerLimits limits_;
  const Path text_;
};

class KvCheck {
 public:
  KvCheck(RecordingModelRunner& llm, const Tokenizer& tokenizer, const LosslessOptions& options)
      : llm_(llm), tokenizer_(tokenizer), options_(options) {}

  absl::StatusOr<LosslessCheck> Run(const std::vector<ModelRunner*>& ssms, EngineOptions engine) {
    engine.prefix_cache = true;
    const size_t prompts = options_.prompts.size();
    std::vector<Path> texts(prompts);
    for (size_t i = 0; i < prompts; ++i) {
      absl::Status status = Prompt(i, ssms, engine, &texts[i]);
      if (!status.ok()) return status;
    }
    const bool told = check_.passed && taken_over_ > 0 && from_trees_ == 0;
    if (told) {
      engine.speculation = {.sampled = engine.speculation.sampled};
      const bool roomy = engine.max_tokens_per_batch > 5;
      absl::StatusOr<Expansion> tree = Expansion::Parse(roomy ? "1,2,1" : "1");
      if (!tree.ok()) return tree.status();
      engine.expansion = *std::move(tree);
      for (size_t i = 0; i < prompts; ++i) {
        OracleRunner ssm(llm_.limits(), texts[i]);
        absl::Status status = Prompt(i, {&ssm}, engine, &texts[i]);
        if (!status.ok()) return status;
      }
    }
    if (!check_.passed) return check_;
    check_.detail = absl::StrCat(
        "all logits equal bit for bit, over ", taken_over_, " tokens of answers taken over, ",
        from_trees_, " of them of accepted nodes",
        told ? " (of trees that were told the answers: no other draft was accepted)" : "");
    check_.passed = from_trees_ > 0;
    if (taken_over_ == 0) {
      check_.detail = "no answer has two tokens, so none was run: nothing was checked";
    } else if (from_trees_ == 0) {
      check_.detail =
          "no accepted node of a tree was taken over, so nothing was checked of one: ask for "
          "longer answers";
    }
    return check_;
  }

 private:
  struct Answered {
    Path tokens;
    std::vector<bool> from_tree;  // by token
    Usage usage;
  };

  absl::StatusOr<Answered> Answer(Engine& engine, const Path& prompt, int count) const {
    const auto id = engine.Submit(prompt, {.max_tokens = count, .ignore_eos = true});
    if (!id.ok()) return id.status();
    Answered out;
    while (!engine.idle()) {
      if (absl::Status status = engine.Step(); !status.ok()) return status;
      for (const RequestEvent& event : engine.TakeEvents()) {
        if (!event.error.ok()) return event.error;
        out.tokens.insert(out.tokens.end(), event.tokens.begin(), event.tokens.end());
        // The last token of a step is sampled from the LLM; the next step runs it.
        out.from_tree.resize(out.tokens.size(), true);
        if (!event.tokens.empty()) out.from_tree.back() = false;
        out.usage = event.usage;
      }
    }
    return out;
  }

  // `text`: prompt and output.
  absl::Status Prompt(size_t i, const std::vector<ModelRunner*>& ssms, const EngineOptions& how,
                      Path* text) {
    const Path& prompt = options_.prompts[i];
    if (options_.progress) {
      absl::Status told = options_.progress(
          {"KV", static_cast<int64_t>(i), static_cast<int64_t>(options_.prompts.size())});
      if (!told.ok()) return told;
    }
    auto engine = Engine::Create(&llm_, ssms, &tokenizer_, how);
    if (!engine.ok()) return engine.status();
    llm_.watching = false;
    const absl::StatusOr<Answered> answer = Answer(**engine, prompt, options_.answer);
    if (!answer.ok()) return answer.status();
    *text = prompt;
    text->insert(text->end(), answer->tokens.begin(), answer->tokens.end());
    if (static_cast<int>(text->size()) >= (*engine)->context()) return absl::OkStatus();
    llm_.watching = true;
    const absl::StatusOr<Answered> behind = Answer(**engine, *text, 1);
    if (!behind.ok()) return behind.status();
    const std::vector<float> cached = llm_.last;
    const int taken = std::max(0, behind->usage.cached_tokens - static_cast<int>(prompt.size()));
    taken_over_ += taken;
    from_trees_ += std::count(answer->from_tree.begin(), answer->from_tree.begin() + taken, true);
    const absl::StatusOr<std::vector<float>> fresh = UncachedLogits(llm_, *text);
    if (!fresh.ok()) return fresh.status();
    ++check_.cases;
    if (cached.size() == fresh->size() &&
        std::memcmp(cached.data(), fresh->data(), fresh->size() * sizeof(float)) == 0) {
      return absl::OkStatus();
    }
    if (check_.passed) {
      check_.detail = absl::StrCat("the logits after prompt ", i,
                                   " and its answer are not those of a fresh computation");
    }
    check_.passed = false;
    return absl::OkStatus();
  }

  RecordingModelRunner& llm_;
  const Tokenizer& tokenizer_;
  const LosslessOptions& options_;
  LosslessCheck check_{.name = "KV", .passed = true};
  int64_t taken_over_ = 0, from_trees_ = 0;  // output tokens
};

}  // namespace

absl::StatusOr<LosslessCheck> CheckKv(RecordingModelRunner& llm,
                                      const std::vector<ModelRunner*>& ssms,
                                      const Tokenizer& tokenizer, EngineOptions engine,
                                      const LosslessOptions& options) {
  return KvCheck(llm, tokenizer, options).Run(ssms, std::move(engine));
}

}  // namespace espalier
