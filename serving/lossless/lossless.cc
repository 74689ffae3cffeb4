#include "serving/lossless/lossless.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/lossless/kv_equality.h"
#include "serving/lossless/recording_model_runner.h"
#include "serving/lossless/uncached_logits.h"
#include "serving/sampling/distribution.h"
#include "serving/speculative/outcome_enumerator.h"

namespace espalier {
namespace {

constexpr double kExact = 1e-9;  // tolerance of the enumeration: sums of many products of doubles
constexpr double kQuantile = 4.753;  // of the normal distribution: exceeded with probability 1e-6
constexpr double kFewest = 8;        // expected count of a cell; rarer ones are pooled

using Path = std::vector<int>;

// A model's distributions after given paths, each computed once.
class ModelDistributions {
 public:
  ModelDistributions(ModelRunner& runner, Path prompt, SamplingParameters sampling)
      : runner_(runner), prompt_(std::move(prompt)), sampling_(sampling) {}

  absl::StatusOr<Distribution> After(const Path& path) {
    const auto known = known_.find(path);
    if (known != known_.end()) return known->second;
    Path tokens = prompt_;
    tokens.insert(tokens.end(), path.begin(), path.end());
    const absl::StatusOr<std::vector<float>> logits = UncachedLogits(runner_, tokens);
    if (!logits.ok()) return logits.status();
    absl::StatusOr<Distribution> p =
        SamplingDistribution(logits->data(), static_cast<int>(logits->size()), sampling_);
    if (p.ok()) known_[path] = *p;
    return p;
  }

  // Returns all outputs of `length` tokens with their probabilities.
  absl::StatusOr<std::map<Path, double>> Answers(int length) {
    std::map<Path, double> distribution = {{{}, 1.0}};
    for (int i = 0; i < length; ++i) {
      std::map<Path, double> longer;
      for (const auto& [path, probability] : distribution) {
        const absl::StatusOr<Distribution> p = After(path);
        if (!p.ok()) return p.status();
        for (int token = 0; token < static_cast<int>(p->size()); ++token) {
          if ((*p)[token] <= 0) continue;
          Path next = path;
          next.push_back(token);
          longer[next] = probability * (*p)[token];
        }
      }
      distribution = std::move(longer);
    }
    return distribution;
  }

 private:
  ModelRunner& runner_;
  Path prompt_;
  SamplingParameters sampling_;
  std::map<Path, Distribution> known_;
};

class Verifier {
 public:
  Verifier(ModelRunner& llm, std::vector<ModelRunner*> ssms, const Tokenizer& tokenizer,
           const LosslessOptions& options)
      : recorder_(llm),
        llm_(llm),
        ssms_(std::move(ssms)),
        tokenizer_(tokenizer),
        options_(options) {
    sampling_ = {.temperature = options.temperature, .top_k = options.distribution_top_k};
    logits_processor_ = std::make_shared<const LogitsProcessorOptions>(LogitsProcessorOptions{
        .repetition_penalty = 1.1, .presence_penalty = 0.2, .frequency_penalty = 0.2});
  }

  absl::StatusOr<LosslessReport> Run() {
    absl::Status status = CheckOptions();
    const std::vector<GenerationMode> both = {GenerationMode::kAllLogits, GenerationMode::kServed};
    if (status.ok()) status = Identity(IdentityCheck::kGreedy, both);
    if (status.ok()) status = Identity(IdentityCheck::kSeeds, both);
    if (status.ok()) status = Identity(IdentityCheck::kPenalties, {GenerationMode::kServed});
    if (status.ok() && !ssms_.empty()) status = EnumerateVerification();
    if (status.ok()) status = AnswerDistribution();
    if (!status.ok()) return status;
    absl::StatusOr<LosslessCheck> kv =
        CheckKv(recorder_, ssms_, tokenizer_, Speculative(SampledDrafting::kCoupled), options_);
    if (!kv.ok()) return kv.status();
    report_.checks.push_back(*std::move(kv));
    return std::move(report_);
  }

 private:
  absl::Status CheckOptions() const {
    const struct {
      const char* name;
      int value, least, most;
    } fields[] = {{"prompts", static_cast<int>(options_.prompts.size()), 1, 1 << 20},
                  {"answer", options_.answer, 1, 1 << 20},
                  {"draws", options_.draws, 1000, 1 << 26},
                  {"distribution_tokens", options_.distribution_tokens, 1, 4},
                  {"distribution_top_k", options_.distribution_top_k, 2, 5}};
    for (const auto& field : fields) {
      if (field.value >= field.least && field.value <= field.most) continue;
      return absl::InvalidArgumentError(absl::StrCat(field.name, " is ", field.value, ", expected ",
                                                     field.least, " to ", field.most));
    }
    if (!(options_.temperature > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("temperature is ", options_.temperature, ", expected more than 0"));
    }
    return absl::OkStatus();
  }

  absl::Status ReportProgress(const char* check, int64_t done, int64_t total) const {
    return options_.progress ? options_.progress({check, done, total}) : absl::OkStatus();
  }

  EngineOptions Speculative(SampledDrafting sampled) const {
    EngineOptions engine = options_.engine;
    engine.speculation.sampled = sampled;
    engine.max_queue = std::max(engine.max_queue, 256);
    // Trees are to be checked, whether or not they pay.
    engine.speculation.trial_share = 1;
    return engine;
  }

  absl::StatusOr<std::unique_ptr<Engine>> NewEngine(bool speculate, SampledDrafting sampled) {
    EngineOptions engine = Speculative(sampled);
    if (!speculate) {
      engine.expansion = Expansion();
      engine.speculation = {.sampled = sampled};
    }
    return Engine::Create(&recorder_, speculate ? ssms_ : std::vector<ModelRunner*>(), &tokenizer_,
                          std::move(engine));
  }

  // Checks of outputs that must be equal, with any drafter.
  enum class IdentityCheck { kGreedy, kSeeds, kPenalties };
  static const char* NameOf(IdentityCheck check) {
    return check == IdentityCheck::kGreedy  ? "greedy"
           : check == IdentityCheck::kSeeds ? "seeds"
                                            : "penalties";
  }

  // How outputs are generated. Incremental decoding returns all logits, and so does speculation
  // once; the second time, the runner samples as in service.
  enum class GenerationMode { kIncremental, kAllLogits, kServed };

  // Generates full-length outputs for the prompts. `done` tokens of `total` came before.
  absl::StatusOr<std::vector<Path>> Answers(Engine& engine, IdentityCheck check, GenerationMode way,
                                            int64_t done, int64_t total) {
    recorder_.watching = way != GenerationMode::kServed;
    std::vector<Path> answers(options_.prompts.size());
    std::map<RequestId, size_t> index;
    size_t submitted = 0;
    do {
      while (submitted < answers.size() && engine.statistics().waiting < 64) {
        RequestOptions request{.max_tokens = options_.answer, .ignore_eos = true};
        if (check == IdentityCheck::kSeeds) {
          request.sampling = {.temperature = options_.temperature, .seed = submitted};
        }
        if (check == IdentityCheck::kPenalties) request.logits_processor = logits_processor_;
        const auto id = engine.Submit(options_.prompts[submitted], request);
        if (!id.ok()) return Named(id.status(), absl::StrCat("prompt ", submitted));
        index[*id] = submitted++;
      }
      if (absl::Status status = engine.Step(); !status.ok()) return status;
      for (const RequestEvent& event : engine.TakeEvents()) {
        if (!event.error.ok()) return event.error;
        Path& answer = answers[index[event.id]];
        answer.insert(answer.end(), event.tokens.begin(), event.tokens.end());
        done += static_cast<int64_t>(event.tokens.size());
      }
      if (absl::Status told = ReportProgress(NameOf(check), done, total); !told.ok()) return told;
    } while (!engine.idle() || submitted < answers.size());
    return answers;
  }

  absl::Status Identity(IdentityCheck same, const std::vector<GenerationMode>& ways) {
    const SampledDrafting drafts = SampledDrafting::kCoupled;
    const int64_t tokens = static_cast<int64_t>(options_.prompts.size()) * options_.answer;
    const int64_t total = tokens * (1 + static_cast<int64_t>(ways.size()));
    auto plain = NewEngine(false, drafts);
    if (!plain.ok()) return plain.status();
    recorder_.margin = INFINITY;
    const absl::StatusOr<std::vector<Path>> expected =
        Answers(**plain, same, GenerationMode::kIncremental, 0, total);
    if (!expected.ok()) return expected.status();
    if (same == IdentityCheck::kGreedy) report_.smallest_margin = recorder_.margin;
    LosslessCheck check{.name = NameOf(same), .passed = true};
    double accepted = 0;
    int64_t drafted = 0, done = tokens;
    for (const GenerationMode way : ways) {
      auto speculative = NewEngine(true, drafts);
      if (!speculative.ok()) return speculative.status();
      const absl::StatusOr<std::vector<Path>> found =
          Answers(**speculative, same, way, done, total);
      if (!found.ok()) return found.status();
      done += tokens;
      const EngineStatistics statistics = (*speculative)->statistics();
      if (absl::Status status = SsmStatus(statistics); !status.ok()) return status;
      drafted += statistics.drafted_tokens;
      accepted = static_cast<double>(statistics.accepted_tokens) /
                 static_cast<double>(std::max<int64_t>(1, statistics.verifications));
      if (absl::Status s = Compare(*expected, *found, way, &check); !s.ok()) return s;
    }
    if (same == IdentityCheck::kGreedy) report_.accepted_per_step = accepted;
    if (check.passed) {
      check.detail =
          absl::StrCat("all answers equal, ", accepted, " drafted tokens accepted per step");
      if (drafted == 0) {
        check.passed = false;
        check.detail =
            "nothing was drafted, so nothing was tested: ask for longer answers, or for trees of a "
            "given expansion";
      }
    }
    report_.checks.push_back(check);
    return absl::OkStatus();
  }

  static absl::Status SsmStatus(const EngineStatistics& statistics) {
    for (const absl::Status& status : statistics.speculation.ssm_status) {
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // The first different output becomes the check's detail.
  absl::Status Compare(const std::vector<Path>& expected, const std::vector<Path>& found,
                       GenerationMode way, LosslessCheck* check) {
    check->cases += static_cast<int64_t>(found.size());
    for (size_t i = 0; i < found.size() && check->passed; ++i) {
      if (found[i] == expected[i]) continue;
      const auto at =
          std::mismatch(found[i].begin(), found[i].end(), expected[i].begin(), expected[i].end());
      const auto place = at.first - found[i].begin();
      absl::StatusOr<double> margin = MarginAfter(options_.prompts[i], expected[i], place);
      if (!margin.ok()) return margin.status();
      check->passed = false;
      check->detail = absl::StrCat(
          "the answer to prompt ", i, " differs at token ", place,
          ", where the LLM's two best logits are ", *margin, " apart; tokens were chosen ",
          way == GenerationMode::kServed ? "as in service, where the logits are"
                                         : "from shown logits");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<double> MarginAfter(const Path& prompt, const Path& answer, int64_t tokens) {
    Path path = prompt;
    path.insert(path.end(), answer.begin(), answer.begin() + tokens);
    absl::StatusOr<std::vector<float>> logits = UncachedLogits(llm_, path);
    if (!logits.ok()) return logits.status();
    std::partial_sort(logits->begin(), logits->begin() + 2, logits->end(), std::greater<float>());
    return (*logits)[0] - (*logits)[1];
  }

  // Trees <2,1> of each SSM and of all together, with and without replacement.
  absl::Status EnumerateVerification() {
    const int length = std::min(2, options_.distribution_tokens);
    ModelDistributions target(llm_, options_.prompts[0], sampling_);
    const absl::StatusOr<std::map<Path, double>> expected = target.Answers(length);
    if (!expected.ok()) return expected.status();
    std::vector<ModelDistributions> drafts;
    for (ModelRunner* ssm : ssms_) drafts.emplace_back(*ssm, options_.prompts[0], sampling_);
    LosslessCheck check{.name = "enumeration", .passed = true};
    // Shorter outputs are continued by the LLM, as later steps do.
    double most = 0;
    for (const bool without_replacement : {false, true}) {
      // More than two trees together have too many outcomes.
      for (size_t first = 0; first < drafts.size(); ++first) {
        const size_t last = first == 0 ? std::min<size_t>(2, drafts.size()) : first + 1;
        std::vector<ModelDistributions*> sources;
        for (size_t s = first; s < last; ++s) sources.push_back(&drafts[s]);
        if (absl::Status told = ReportProgress("enumeration", check.cases, 0); !told.ok())
          return told;
        const auto deviation =
            Deviation(target, sources, *expected, length, without_replacement, &check.cases);
        if (!deviation.ok()) return deviation.status();
        most = std::max(most, *deviation);
      }
    }
    check.passed = most < kExact;
    check.detail = absl::StrCat("no probability of an answer of ", length,
                                " tokens is off by more than ", most);
    report_.checks.push_back(check);
    return absl::OkStatus();
  }

  static Path PathTo(const TokenTree& tree, int node) {
    Path path;
    for (; node != 0; node = tree.parent(node)) path.insert(path.begin(), tree.token(node));
    return path;
  }

  absl::StatusOr<double> Deviation(ModelDistributions& target,
                                   const std::vector<ModelDistributions*>& sources,
                                   const std::map<Path, double>& expected, int length,
                                   bool without_replacement, int64_t* cases) {
    std::map<Path, long double> found;
    OutcomeEnumerator enumeration;
    do {
      TokenTree tree(options_.prompts[0].back());
      for (size_t s = 0; s < sources.size(); ++s) {
        TokenTree draft(tree.token(0));
        std::vector<int> frontier = {0};
        for (const int children : {2, 1}) {
          std::vector<int> next;
          for (const int node : frontier) {
            absl::StatusOr<Distribution> q = sources[s]->After(PathTo(draft, node));
            if (!q.ok()) return q.status();
            const auto whole = std::make_shared<const Distribution>(*q);
            std::vector<int> taken;
            for (int i = 0; i < children; ++i) {
              const int token = enumeration.Choose(*q);
              const int before = draft.size();
              const int node_of = draft.Propose(node, token, static_cast<int>(s), whole, taken);
              if (node_of == before) next.push_back(node_of);
              if (!without_replacement) continue;
              taken.push_back(token);
              (*q)[token] = 0;
              const double left = std::accumulate(q->begin(), q->end(), 0.0);
              if (!(left > 1e-9)) break;
              for (double& value : *q) value /= left;
            }
          }
          frontier = next;
        }
        if (absl::Status status = tree.Merge(draft); !status.ok()) return status;
      }
      EnumeratedRng noise(enumeration);
      const absl::StatusOr<Verification> out = VerifySampled(
          tree, [&](int node) { return target.After(PathTo(tree, node)); }, noise);
      if (!out.ok()) return out.status();
      Path answer = out->tokens;
      answer.resize(std::min<size_t>(answer.size(), length));
      found[answer] += enumeration.weight();
      ++*cases;
    } while (enumeration.Next());
    // Shorter answers are continued by the LLM, as later steps do.
    double most = 0;
    for (const auto& [answer, probability] : expected) {
      long double sum = 0, rest = 1;
      for (int n = length; n >= 1; --n) {
        const auto it = found.find(Path(answer.begin(), answer.begin() + n));
        if (it != found.end()) sum += it->second * rest;
        const absl::StatusOr<Distribution> p =
            target.After(Path(answer.begin(), answer.begin() + n - 1));
        if (!p.ok()) return p.status();
        rest *= (*p)[answer[n - 1]];
      }
      most = std::max(most, static_cast<double>(std::fabs(sum - probability)));
    }
    return most;
  }

  absl::Status AnswerDistribution() {
    ModelDistributions target(llm_, options_.prompts[0], sampling_);
    const absl::StatusOr<std::map<Path, double>> expected =
        target.Answers(options_.distribution_tokens);
    if (!expected.ok()) return expected.status();
    auto engine = NewEngine(true, options_.engine.speculation.sampled);
    if (!engine.ok()) return engine.status();
    recorder_.watching = false;
    std::map<Path, int64_t> counts;
    std::map<RequestId, Path> answers;
    uint64_t seed = 0;
    int64_t finished = 0;
    const uint64_t draws = static_cast<uint64_t>(options_.draws);
    while (seed < draws || !(*engine)->idle()) {
      while (seed < draws && (*engine)->statistics().waiting < 64) {
        RequestOptions request{.max_tokens = options_.distribution_tokens, .ignore_eos = true};
        request.sampling = sampling_;
        request.sampling.seed = seed++;
        request.reproducible = false;  // only the distribution is checked here
        const auto id = (*engine)->Submit(options_.prompts[0], request);
        if (!id.ok()) return id.status();
      }
      if (absl::Status status = (*engine)->Step(); !status.ok()) return status;
      for (const RequestEvent& event : (*engine)->TakeEvents()) {
        if (!event.error.ok()) return event.error;
        Path& answer = answers[event.id];
        answer.insert(answer.end(), event.tokens.begin(), event.tokens.end());
        if (!event.finished) continue;
        ++counts[answer];
        answers.erase(event.id);
        ++finished;
      }
      if (absl::Status told = ReportProgress("distribution", finished, options_.draws); !told.ok())
        return told;
    }
    const EngineStatistics statistics = (*engine)->statistics();
    if (absl::Status status = SsmStatus(statistics); !status.ok()) return status;
    LosslessCheck check = ChiSquare(*expected, counts);
    // Outputs of one token leave no space for a tree, and short ones may have no n-gram matches.
    absl::StrAppend(&check.detail, "; ", statistics.drafted_tokens, " tokens were drafted, ",
                    statistics.accepted_tokens, " of them accepted");
    report_.checks.push_back(std::move(check));
    return absl::OkStatus();
  }

  LosslessCheck ChiSquare(const std::map<Path, double>& expected,
                          const std::map<Path, int64_t>& counts) const {
    LosslessCheck check{.name = "distribution", .passed = true, .cases = options_.draws};
    for (const auto& [answer, count] : counts) {
      if (expected.contains(answer)) continue;
      check.passed = false;
      check.detail = absl::StrCat(count, " answers that the LLM never gives");
      return check;
    }
    double sum = 0, pooled_expected = 0, pooled_count = 0;
    int cells = 0;
    const auto add = [&](double count, double mean) {
      sum += (count - mean) * (count - mean) / mean;
      ++cells;
    };
    for (const auto& [answer, probability] : expected) {
      const auto it = counts.find(answer);
      const double count = it == counts.end() ? 0 : static_cast<double>(it->second);
      const double mean = probability * options_.draws;
      if (mean >= kFewest) {
        add(count, mean);
      } else {
        pooled_expected += mean;
        pooled_count += count;
      }
    }
    if (pooled_expected > 0) add(pooled_count, std::max(pooled_expected, 1.0));
    const int freedom = std::max(1, cells - 1);
    // Wilson-Hilferty approximation of the chi-square quantile.
    const double a = 2.0 / (9 * freedom);
    const double threshold = freedom * std::pow(1 - a + kQuantile * std::sqrt(a), 3);
    check.passed = sum < threshold;
    check.detail = absl::StrCat("chi-square ", sum, " with ", freedom,
                                " degrees of freedom; above ", threshold, " once in a million");
    return check;
  }

  static absl::Status Named(const absl::Status& status, const std::string& what) {
    return absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
  }

  RecordingModelRunner recorder_;
  ModelRunner& llm_;
  std::vector<ModelRunner*> ssms_;
  const Tokenizer& tokenizer_;
  const LosslessOptions& options_;
  SamplingParameters sampling_;
  std::shared_ptr<const LogitsProcessorOptions> logits_processor_;  // of the check "penalties"
  LosslessReport report_;
};

}  // namespace

bool LosslessReport::passed() const {
  return !checks.empty() && std::all_of(checks.begin(), checks.end(),
                                        [](const LosslessCheck& check) { return check.passed; });
}

absl::StatusOr<LosslessReport> VerifyLossless(ModelRunner& llm, std::vector<ModelRunner*> ssms,
                                              const Tokenizer& tokenizer,
                                              const LosslessOptions& options) {
  return Verifier(llm, std::move(ssms), tokenizer, options).Run();
}

}  // namespace espalier
