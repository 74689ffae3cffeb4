// Several answers to one request on a real engine: order, usage and finish reasons.
#include "server/inference/requests/generation.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/inference/field_error.h"
#include "server/inference/requests/generation_fixture.h"
#include "server/inference/requests/generation_options.h"
#include "server/inference/requests/prompt_generation.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

// The engine would reject it only after a copy per answer has waited.
TEST(Generation, APromptThatIsTooLongIsRefusedBeforeItIsSubmitted) {
  const auto model = Model();
  ModelServer models({});
  Answers answers;
  v1::GenerateRequest request = Request("", 1);
  request.set_n(kMaxAnswers);
  for (const int room : {0, 1}) {
    request.set_text(std::string(static_cast<size_t>(model->engine->context() - room), 'a'));
    const auto generation = StartGeneration(request, model, &models, nullptr, answers.Listener());
    ASSERT_EQ(generation.ok(), room == 1) << generation.status();
    if (generation.ok()) {
      (*generation)->Cancel();
      answers.done.WaitForNotification();
    } else {
      EXPECT_EQ(FieldOf(generation.status()), "prompt");
      EXPECT_THAT(generation.status().message(), HasSubstr("of which at least one"));
      EXPECT_EQ(model->engine->open(), 0);
    }
  }
}

TEST(Generation, PromptsAreCutToTheirLastTokens) {
  const auto model = Model();
  const int context = model->engine->context();
  v1::GenerateRequest request = Request(std::string(static_cast<size_t>(context), 'a') + "b", 5);
  const auto length = [&](int most) {
    request.set_truncate_prompt_tokens(most);
    const auto prompt = PromptOf(request, *model);
    EXPECT_TRUE(prompt.ok()) << prompt.status();
    EXPECT_EQ(prompt->tokens.back(), 1);
    return static_cast<int>(prompt->tokens.size());
  };
  EXPECT_EQ(length(0), context + 1);
  EXPECT_EQ(length(7), 7);
  EXPECT_EQ(length(-1), context - 5);
  request.set_max_tokens(0);
  EXPECT_EQ(length(-1), context - 1);
  // No answer can be that long; half of the context is reserved for it.
  request.set_max_tokens(10 * context);
  EXPECT_EQ(length(-1), context - context / 2);
  request.set_text("aaaab");
  EXPECT_EQ(length(-1), 5) << "there is room for it and for such an answer";
  request.set_truncate_prompt_tokens(-2);
  EXPECT_EQ(FieldOf(PromptOf(request, *model).status()), "truncate_prompt_tokens");
}

TEST(Generation, GenerationConfigSuppliesSamplingDefaults) {
  const auto plain = Model(), model = Model(256, {.max_new_tokens = 5});
  model->description.mutable_sampling_defaults()->set_temperature(1);
  const v1::GenerateRequest said = Request("abc", 12);
  v1::GenerateRequest silent = said, greedy = said;
  silent.mutable_sampling()->clear_temperature();
  greedy.mutable_sampling()->set_temperature(0);
  EXPECT_EQ(TextOf(silent, model), TextOf(said, plain));
  EXPECT_EQ(TextOf(greedy, model), TextOf(silent, plain));
  EXPECT_NE(TextOf(greedy, model), TextOf(silent, model));
  // The default maximum length.
  silent.set_max_tokens(0);
  EXPECT_EQ(TextOf(silent, model).size(), 5u);
  EXPECT_EQ(TextOf(silent, plain).size(), 16u);
  model->description.set_generation_config("none");
  EXPECT_EQ(TextOf(silent, model).size(), 16u);
}

TEST(Generation, FailedSsmIsReportedWithSpeculationOn) {
  for (const bool fails : {false, true}) {
    const auto model = Model(256, {}, SampledDrafting::kWithoutReplacement, fails ? 3 : 0);
    model->description.add_ssm_artifacts("small");
    model->description.add_ssm_placements();
    v1::GenerateRequest request = Request("abc", 12);
    request.set_speculation(v1::SPECULATION_ON);
    EXPECT_EQ(TextOf(request, model).size(), 12u);
    EXPECT_EQ(Describe(*model).ssm_placements(0).state().find("disabled: "),
              fails ? 0u : std::string::npos);
    ModelServer models({});
    Answers answers;
    auto again = StartGeneration(request, model, &models, nullptr, answers.Listener());
    EXPECT_EQ(again.ok(), !fails) << again.status();
    if (again.ok()) {
      answers.done.WaitForNotification();
      continue;
    }
    EXPECT_EQ(again.status().code(), absl::StatusCode::kFailedPrecondition);
    request.set_speculation(v1::SPECULATION_DEFAULT);
    EXPECT_EQ(TextOf(request, model).size(), 12u);
  }
}

TEST(Generation, PromptBeyondSsmPositionsIsRejectedWithSpeculationOn) {
  const auto model = Model(256, {}, SampledDrafting::kWithoutReplacement, 0, /*ssm_positions=*/8);
  model->description.add_ssm_artifacts("short");
  model->description.add_ssm_placements();
  EXPECT_EQ(Describe(*model).ssm_placements(0).draft_tokens(), 8);
  v1::GenerateRequest request = Request("abcdefg", 12);
  request.set_speculation(v1::SPECULATION_ON);
  Answers reached;
  Finish(request, model, &reached);
  EXPECT_GT(reached.usage.drafted_tokens(), 0);
  request.set_text("abcdefgh");
  ModelServer models({});
  Answers answers;
  const auto refused = StartGeneration(request, model, &models, nullptr, answers.Listener());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("the prompt has 8 tokens"));
  const auto batch = StartBatch(request, {Request("abc", 0), Request("abcdefgh", 0)}, model,
                                &models, nullptr, [](int, const auto&, bool) {});
  EXPECT_EQ(batch.status(), refused.status());
  // Without the demand, there is an answer.
  request.set_speculation(v1::SPECULATION_DEFAULT);
  Answers beyond;
  Finish(request, model, &beyond);
  EXPECT_EQ(beyond.usage.drafted_tokens(), 0);
  EXPECT_EQ(beyond.texts[0].size(), 12u);
  // N-gram drafts work at any position.
  request.set_speculation(v1::SPECULATION_ON);
  model->description.set_ngram_depth(4);
  Answers looked_up;
  Finish(request, model, &looked_up);
  EXPECT_TRUE(looked_up.error.ok());
}

// With coupled sampling for seeds, a seeded request uses the seed's noise only, whatever is
// drafted; an unseeded one samples freely.
TEST(Generation, OnlyAnExplicitSeedIsReproducible) {
  const v1::GenerateRequest seeded = Request("abc", 12);
  v1::GenerateRequest silent = seeded;
  silent.mutable_sampling()->clear_seed();
  silent.mutable_sampling()->clear_has_seed();
  const auto answer = [](const v1::GenerateRequest& request, SampledDrafting sampled) {
    const auto model = Model(256, {}, sampled);
    return TextOf(request, model);
  };
  EXPECT_EQ(answer(seeded, SampledDrafting::kCoupledIfSeeded),
            answer(seeded, SampledDrafting::kCoupled));
  EXPECT_NE(answer(seeded, SampledDrafting::kCoupledIfSeeded),
            answer(seeded, SampledDrafting::kWithoutReplacement));
  EXPECT_EQ(answer(silent, SampledDrafting::kCoupledIfSeeded),
            answer(silent, SampledDrafting::kWithoutReplacement));
  EXPECT_NE(answer(silent, SampledDrafting::kCoupledIfSeeded),
            answer(silent, SampledDrafting::kCoupled));
}

TEST(Generation, NAnswersDifferAndTheFirstEqualsASingleAnswer) {
  const auto model = Model();
  Answers one, four;
  v1::GenerateRequest request = Request("abc", 12);
  Finish(request, model, &one);
  request.set_n(4);
  Finish(request, model, &four);
  EXPECT_EQ(four.texts[0], one.texts[0]);
  std::set<std::string> different;
  for (const auto& [index, text] : four.texts) different.insert(text);
  EXPECT_EQ(different.size(), 4u);
  EXPECT_EQ(four.usage.completion_tokens(), 48);
  EXPECT_EQ(four.usage.prompt_tokens(), 3);
  EXPECT_EQ(four.reasons.size(), 4u);
}

// Regression: choices shared seeds with the next requests' choices.
TEST(Generation, RequestsWithoutASeedShareNoAnswers) {
  const auto model = Model();
  ModelServer models({});
  v1::GenerateRequest request = Request("abc", 12);
  request.mutable_sampling()->clear_seed();
  request.mutable_sampling()->clear_has_seed();
  request.set_n(8);
  std::set<std::string> different;
  for (int i = 0; i < 3; ++i) {
    Answers answers;
    const auto generation = StartGeneration(request, model, &models, nullptr, answers.Listener());
    ASSERT_TRUE(generation.ok()) << generation.status();
    answers.done.WaitForNotification();
    for (const auto& [index, text] : answers.texts) different.insert(text);
  }
  EXPECT_EQ(different.size(), 24u);
}

TEST(Generation, BestOfReturnsTheMostProbableOnes) {
  const auto model = Model();
  Answers all, best;
  v1::GenerateRequest request = Request("abc", 10);
  request.set_logprobs(0);
  request.set_n(8);
  Finish(request, model, &all);
  request.set_n(2);
  request.set_best_of(8);
  Finish(request, model, &best);
  std::vector<double> sums;
  for (const auto& [index, sum] : all.logprobs) sums.push_back(sum);
  std::sort(sums.rbegin(), sums.rend());
  ASSERT_EQ(best.texts.size(), 2u);
  EXPECT_NEAR(best.logprobs[0], sums[0], 1e-5);
  EXPECT_NEAR(best.logprobs[1], sums[1], 1e-5);
  EXPECT_EQ(best.usage.completion_tokens(), 80);
}

TEST(Generation, StructuredAnswerEndsWithItsGrammar) {
  const auto model = Model();
  Answers answers;
  v1::GenerateRequest request = Request("abc", 100);
  request.mutable_structured_output()->set_regex("(ab|cd){2}e[a-d]?");
  request.set_n(20);
  Finish(request, model, &answers);
  for (const auto& [index, text] : answers.texts) {
    EXPECT_THAT(text, MatchesRegex("((ab)|(cd))((ab)|(cd))e[a-d]?"));
  }
  // LetterTokenizer has no EOS here, so the grammar's end is a stop.
  for (const auto& [index, reason] : answers.reasons) EXPECT_EQ(reason, "stop");
}

// An answer that can continue does; one that cannot ends, since nothing else may follow.
TEST(Generation, CompleteConstraintEndsBeforeMinTokens) {
  const auto model = Model();
  v1::GenerateRequest request = Request("abc", 100);
  request.mutable_sampling()->set_min_tokens(50);
  request.mutable_structured_output()->set_regex("a{3}");
  EXPECT_EQ(TextOf(request, model), "aaa");
  request.mutable_structured_output()->set_regex("[ab]*c?");
  request.set_n(20);
  Answers answers;
  Finish(request, model, &answers);
  for (const auto& [index, text] : answers.texts) {
    EXPECT_TRUE(text.size() >= 50 || text.back() == 'c') << text;
  }
}

TEST(Generation, GenerationConfigSuppliesStopsAndBadWords) {
  const v1::GenerateRequest silent = Request("abc", 40);
  const auto model = Model();
  const std::string plain = TextOf(silent, model);
  ASSERT_EQ(plain.size(), 40u);
  const std::string stop = plain.substr(20, 3);
  const auto stops = Model(256, {.stop_strings = {stop}});
  Answers ended;
  Finish(silent, stops, &ended);
  EXPECT_EQ(ended.texts[0], plain.substr(0, plain.find(stop)));
  EXPECT_EQ(ended.reasons[0], "stop");
  EXPECT_EQ(ended.stop_strings[0], "") << "an end like any other";
  v1::GenerateRequest other = silent;
  other.add_stop(stop);
  Answers asked;
  Finish(other, stops, &asked);
  EXPECT_EQ(asked.stop_strings[0], stop);
  other.set_stop(0, "#");
  Answers long_enough;
  Finish(other, stops, &long_enough);
  EXPECT_EQ(long_enough.texts[0], plain) << "the request has its own";
  EXPECT_TRUE(long_enough.stop_strings.empty()) << "none was found";
  other = silent;
  other.set_ignore_eos(true);
  EXPECT_EQ(TextOf(other, stops), plain) << "of this length, as benchmarks want";
  stops->description.set_generation_config("none");
  EXPECT_EQ(TextOf(silent, stops), plain);

  // min_new_tokens applies unless the request overrides it.
  const auto late = Model(256, {.min_new_tokens = 30, .stop_strings = {stop}});
  const size_t end = plain.find(stop, 29);
  EXPECT_EQ(TextOf(silent, late).substr(0, 29), plain.substr(0, 29));
  EXPECT_EQ(TextOf(silent, late).size(), std::min(end, plain.size()));
  v1::GenerateRequest now = silent;
  now.mutable_sampling()->set_min_tokens(0);
  EXPECT_EQ(TextOf(now, late), plain.substr(0, plain.find(stop)));
  now = silent;
  now.add_stop(stop);
  EXPECT_EQ(TextOf(now, late), plain.substr(0, plain.find(stop))) << "its own end";
  now = silent;
  now.set_max_tokens(5);
  EXPECT_EQ(TextOf(now, late), plain.substr(0, 5));

  // Token 99 is outside the vocabulary.
  const int first = plain[0] - 'a', second = plain[1] - 'a';
  const auto banned = Model(256, {.bad_words = {{first, second}, {5}, {99}}});
  const std::string changed = TextOf(silent, banned);
  EXPECT_EQ(changed[0], plain[0]);
  EXPECT_THAT(changed, Not(HasSubstr(plain.substr(0, 2))));
  EXPECT_THAT(changed, Not(HasSubstr("f")));
}

TEST(Generation, EchoBringsThePromptAndItsLogprobs) {
  const auto model = Model();
  std::vector<v1::TokenLogprobs> prompt;
  v1::GenerateRequest request = Request("abc", 1);
  request.set_echo(true);
  request.set_prompt_only(true);
  request.set_logprobs(1);
  absl::Notification done;
  std::string text;
  ModelServer models({});
  auto generation = StartGeneration(request, model, &models, nullptr,
                                    [&](const absl::StatusOr<v1::GenerateReply>& reply, bool last) {
                                      ASSERT_TRUE(reply.ok()) << reply.status();
                                      text += reply->text();
                                      prompt.insert(prompt.end(), reply->prompt_logprobs().begin(),
                                                    reply->prompt_logprobs().end());
                                      EXPECT_EQ(reply->tokens_size(), 0);
                                      if (last) done.Notify();
                                    });
  ASSERT_TRUE(generation.ok());
  done.WaitForNotification();
  EXPECT_EQ(text, "abc");
  ASSERT_EQ(prompt.size(), 3u);
  EXPECT_EQ(prompt[0].rank(), 0);
  EXPECT_EQ(prompt[2].text(), "c");
  EXPECT_LT(prompt[2].logprob(), 0);
}

TEST(Generation, FullQueueIsOneErrorWithRetryAfter) {
  const auto model = Model(/*max_queue=*/2);
  ModelServer models({});
  v1::GenerateRequest request = Request("abc", 200);
  request.set_n(2);
  std::vector<Answers> all(64);
  for (Answers& answers : all) {
    ASSERT_TRUE(StartGeneration(request, model, &models, nullptr, answers.Listener()).ok());
  }
  for (Answers& answers : all) answers.done.WaitForNotification();
  const auto refused = std::find_if(all.begin(), all.end(),
                                    [](const Answers& answers) { return !answers.error.ok(); });
  ASSERT_NE(refused, all.end());
  const Answers& answers = *refused;
  EXPECT_EQ(answers.error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(answers.error.GetPayload(kRetryAfterPayload).has_value());
  for (int i = 0; model->engine->open() > 0 && i < 2000; ++i) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(model->engine->open(), 0);
  EXPECT_EQ(answers.calls_after_last, 0);
}

// Regression: the stream broke after many tokens.
TEST(Generation, HigherPriorityDoesNotBreakAStartedGroup) {
  constexpr int kQueue = 6;
  const auto model = Model(kQueue);
  ModelServer models({});
  v1::GenerateRequest request = Request("abc", 200);
  request.set_n(kQueue);
  request.set_priority(1);
  Answers answers;
  absl::Notification started;
  bool first = true;
  const auto collect = answers.Listener();
  const auto generation =
      StartGeneration(request, model, &models, nullptr,
                      [&](const absl::StatusOr<v1::GenerateReply>& reply, bool last) {
                        if (std::exchange(first, false)) {
                          started.WaitForNotification();
                          for (int i = 0; i < kQueue; ++i) {
                            EXPECT_TRUE(model->engine
                                            ->Submit(std::vector<int>{1}, {.max_tokens = 3},
                                                     [](const RequestEvent&) {})
                                            .ok());
                          }
                        }
                        collect(reply, last);
                      });
  ASSERT_TRUE(generation.ok()) << generation.status();
  started.Notify();
  answers.done.WaitForNotification();
  EXPECT_TRUE(answers.error.ok()) << answers.error;
  for (int i = 0; i < kQueue; ++i) EXPECT_EQ(answers.texts[i].size(), 200u) << i;
}

// Regression: the others ran to their ends unheard.
TEST(Generation, RejectionStopsFurtherSubmissions) {
  constexpr int kQueue = 64;
  absl::Notification began, go_on;
  EngineParts parts;
  parts.tokenizer = std::make_shared<LetterTokenizer>(kVocabulary);
  parts.llm = std::make_unique<FakeModelRunner>(FakeModelRunner::LargeLimits(kVocabulary),
                                                [&](absl::Span<const int> path) {
                                                  if (!began.HasBeenNotified()) began.Notify();
                                                  go_on.WaitForNotification();
                                                  return HashModel(1, kVocabulary)(path);
                                                });
  const auto model = std::make_shared<LoadedModel>();
  model->engine = *AsyncEngine::Create(std::move(parts), {.max_queue = kQueue});
  AsyncEngine& engine = *model->engine;
  const auto submit = [&] {
    return *engine.Submit(std::vector<int>{1}, {.max_tokens = 1}, [](const RequestEvent&) {});
  };
  submit();
  began.WaitForNotification();
  std::vector<AsyncEngine::Ticket> others;
  for (int i = 0; i < kQueue; ++i) others.push_back(submit());
  v1::GenerateRequest request = Request("abc", 5);
  request.set_n(kQueue);
  RequestOptions options;
  // Slows submission, so that the first rejection precedes the last submission.
  options.shown_tokens.resize(500000);
  Answers answers;
  const auto collect = answers.Listener();
  const auto run = NewPromptGeneration(
      {.request = std::make_shared<const v1::GenerateRequest>(request),
       .options = std::make_shared<const RequestOptions>(std::move(options)),
       .model = model,
       .engine = &engine},
      [&](const absl::StatusOr<v1::GenerateReply>& reply, bool last) {
        // Now there is room.
        for (const AsyncEngine::Ticket other : others) engine.Cancel(other);
        collect(reply, last);
      },
      "", std::nullopt);
  ASSERT_TRUE(run->Submit({1, 2}, 7, absl::Now()).ok());
  answers.done.WaitForNotification();
  EXPECT_TRUE(absl::IsResourceExhausted(answers.error)) << answers.error;
  EXPECT_EQ(engine.open(), 1);
  go_on.Notify();
}

// Regression: it was told to retry, forever.
TEST(Generation, MoreAnswersThanTheQueueHoldsAreRefusedByName) {
  const auto model = Model(/*max_queue=*/8);
  ModelServer models({});
  Answers answers;
  v1::GenerateRequest request = Request("abc", 5);
  request.set_n(9);
  const auto start = [&] {
    return StartGeneration(request, model, &models, nullptr, answers.Listener()).status();
  };
  EXPECT_EQ(start().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldOf(start()), "n");
  EXPECT_THAT(start().message(), HasSubstr("has 8 places"));
  request.set_n(2);
  request.set_best_of(9);
  EXPECT_EQ(FieldOf(start()), "best_of");
  request.set_best_of(8);
  Finish(request, model, &answers);
  EXPECT_TRUE(answers.error.ok()) << answers.error;
}

TEST(Generation, LogitsProcessorSizesAreBounded) {
  const auto model = Model();
  const auto error = [&](const std::function<void(v1::SamplingOptions*)>& change) {
    v1::GenerateRequest request = Request("abc", 1);
    change(request.mutable_sampling());
    return ToRequestOptions(request, *model, Prompt(), {}).status();
  };
  const auto repeated = [](v1::SamplingOptions* sampling) {
    for (int i = 0; i < 100000; ++i) sampling->add_allowed_token_ids(i % 5);
  };
  v1::GenerateRequest request = Request("abc", 1);
  repeated(request.mutable_sampling());
  const auto options = ToRequestOptions(request, *model, Prompt(), {});
  ASSERT_TRUE(options.ok());
  EXPECT_THAT(options->logits_processor->allowed, ElementsAre(0, 1, 2, 3, 4));
  const absl::Status unknown = error([](auto* s) {
    for (int i = 0; i < 100000; ++i) s->add_allowed_token_ids(i);
  });
  EXPECT_EQ(FieldOf(unknown), "allowed_token_ids");
  EXPECT_THAT(unknown.message(), HasSubstr("100000 different tokens, the vocabulary 20"));
  EXPECT_TRUE(error([](auto* s) { s->add_bad_words(std::string(kMaxBadWordBytes, 'a')); }).ok());
  const absl::Status one =
      error([](auto* s) { s->add_bad_words(std::string(kMaxBadWordBytes + 1, 'a')); });
  EXPECT_EQ(FieldOf(one), "bad_words");
  EXPECT_THAT(one.message(), HasSubstr("1025 bytes"));
  const absl::Status all = error([](auto* s) {
    for (int i = 0; i < 65; ++i) s->add_bad_words(std::string(kMaxBadWordBytes, 'a'));
  });
  EXPECT_EQ(FieldOf(all), "bad_words");
  EXPECT_THAT(all.message(), HasSubstr("66560 bytes together"));
  const absl::Status many = error([](auto* s) {
    for (int i = 0; i <= kMaxBadWords; ++i) s->add_bad_words("a");
  });
  EXPECT_EQ(FieldOf(many), "bad_words");
}

TEST(Generation, CancelEndsEveryAnswer) {
  const auto model = Model();
  Answers answers;
  v1::GenerateRequest request = Request("abc", 200);
  request.set_n(10);
  ModelServer models({});
  auto generation = StartGeneration(request, model, &models, nullptr, answers.Listener());
  ASSERT_TRUE(generation.ok());
  (*generation)->Cancel();
  answers.done.WaitForNotification();
  EXPECT_EQ(answers.reasons.size(), 10u);
  EXPECT_GT(std::count_if(answers.reasons.begin(), answers.reasons.end(),
                          [](const auto& entry) { return entry.second == "cancelled"; }),
            0);
  for (int i = 0; model->engine->open() > 0 && i < 2000; ++i) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(model->engine->open(), 0);
}

TEST(Generation, ErrorsThatCanBeKnownComeAtOnceAndNameTheField) {
  const auto model = Model();
  ModelServer models({});
  const auto error = [&](const std::function<void(v1::GenerateRequest*)>& change) {
    v1::GenerateRequest request = Request("abc", 5);
    change(&request);
    return std::string(StartGeneration(request, model, &models, nullptr,
                                       [](const auto&, bool) { FAIL() << "was started"; })
                           .status()
                           .message());
  };
  EXPECT_THAT(error([](auto* r) { r->set_n(-1); }), HasSubstr("n is -1"));
  EXPECT_THAT(error([](auto* r) { r->set_n(4), r->set_best_of(2); }), HasSubstr("best_of"));
  EXPECT_THAT(error([](auto* r) { r->mutable_structured_output()->set_regex("("); }),
              HasSubstr("regex"));
  EXPECT_THAT(error([](auto* r) { r->mutable_structured_output(); }),
              HasSubstr("structured_output"));
  EXPECT_THAT(error([](auto* r) { r->mutable_sampling()->add_bad_words(""); }),
              HasSubstr("bad_words"));
  EXPECT_THAT(error([](auto* r) { r->set_prompt_only(true); }), HasSubstr("echo"));
  EXPECT_THAT(error([](auto* r) { r->set_logprobs(-5); }), HasSubstr("logprobs"));
  const auto many_stops = [](auto* r) {
    for (int i = 0; i < 10000; ++i) r->add_stop("x");
  };
  EXPECT_THAT(error(many_stops), HasSubstr("stop has 10000 strings, expected at most 16"));
  EXPECT_THAT(error([](auto* r) { r->add_stop(""); }), HasSubstr("stop"));
  EXPECT_THAT(error([](auto* r) { r->set_truncate_prompt_tokens(-2); }),
              HasSubstr("truncate_prompt_tokens"));
}

TEST(ModelServer, AdmitsNothingWhileItDrains) {
  ModelServer models({});
  EXPECT_EQ(models.Find("m").status().code(), absl::StatusCode::kNotFound);
  models.Drain();
  EXPECT_EQ(models.Find("m").status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace espalier
