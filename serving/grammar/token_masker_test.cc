// Compares masks with their definition, and generated answers with the grammar: every answer
// matches it, and the distribution is the masked and renormalized one, whatever trees are drafted.
#include "serving/grammar/token_masker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <random>
#include <set>

#include "serving/engine/engine_test_util.h"
#include "serving/grammar/lazy_automaton.h"
#include "serving/grammar/structured_output.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const Automaton> AutomatonOf(const StructuredOutput& output) {
  absl::StatusOr<Grammar> grammar = GrammarOf(output);
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  auto automaton = BuildAutomaton(*grammar);
  EXPECT_TRUE(automaton.ok()) << automaton.status();
  return *automaton;
}

std::shared_ptr<TokenMasker> MaskerOf(const StructuredOutput& output, const Tokenizer& tokenizer) {
  return *TokenMasker::Create(AutomatonOf(output), std::make_shared<TokenTrie>(tokenizer),
                              tokenizer.eos());
}

// Tokens with the given words as texts; the last one is the end of sequence.
class WordTokenizer : public LetterTokenizer {
 public:
  explicit WordTokenizer(std::vector<std::string> words)
      : LetterTokenizer(static_cast<int>(words.size()) + 1, {static_cast<int>(words.size())}),
        words_(std::move(words)) {}
  std::string TokenBytes(int token) const override {
    return token >= 0 && token < static_cast<int>(words_.size()) ? words_[token] : "";
  }

 private:
  std::vector<std::string> words_;
};

bool Fits(LazyAutomaton& table, absl::string_view text) {
  int state = *table.Start();
  for (size_t i = 0; i < text.size() && state != LazyAutomaton::kDead; ++i) {
    state = *table.Next(state, static_cast<uint8_t>(text[i]));
  }
  return state != LazyAutomaton::kDead;
}

absl::Status Mask(TokenMasker& masker, const TokenConstraint::StateRef& place,
                  absl::Span<float> logits) {
  const absl::StatusOr<TokenBitmaskRef> permitted = masker.AllowedTokens(place);
  ApplyLogitEdits(
      {}, {.permitted = permitted.ok() ? *permitted : std::make_shared<const TokenBitmask>()},
      logits);
  return permitted.status();
}

TEST(TokenMasker, AllowsExactlyTheTokensWhoseBytesFit) {
  std::mt19937 random(5);
  std::vector<std::string> words = {"a",    "b",        "ab",   "abc", "\"",     "{\"",
                                    "\":",  "1",        "12",   ",",   "}",      "\xC3",
                                    "\xA9", "\xC3\xA9", "true", " ",   "\"a\":", "]["};
  for (int i = 0; i < 200; ++i) {
    std::string word(1 + random() % 4, 0);
    for (char& c : word) c = "ab\"{}[]:,1 t\xC3\xA9"[random() % 14];
    words.push_back(word);
  }
  const WordTokenizer tokenizer(words);
  for (const StructuredOutput& output :
       {StructuredOutput{.kind = StructuredOutput::kJsonObject},
        StructuredOutput{.kind = StructuredOutput::kRegex, .text = "(a|b|\xC3\xA9){2,}(12?)+"},
        StructuredOutput{.kind = StructuredOutput::kGbnf,
        .text = "root ::= \"a\" root \"b\" | \"1\""}}) {
    const auto masker = MaskerOf(output, tokenizer);
    LazyAutomaton table(AutomatonOf(output));
    for (int trial = 0; trial < 30; ++trial) {
      TokenConstraint::StateRef place = masker->Start();
      std::string text;
      for (int step = 0; step < 12; ++step) {
        std::vector<float> logits(tokenizer.vocabulary() + 3, 0);
        const absl::Status masked = Mask(*masker, place, absl::MakeSpan(logits));
        std::vector<int> allowed;
        for (int token = 0; token < tokenizer.vocabulary() - 1; ++token) {
          const bool fits = Fits(table, text + words[token]);
          ASSERT_EQ(logits[token] == 0, fits) << "'" << words[token] << "' after '" << text << "'";
          if (fits) allowed.push_back(token);
        }
        for (size_t token = words.size() + 1; token < logits.size(); ++token) {
          EXPECT_EQ(logits[token], -INFINITY) << "beyond the vocabulary";
        }
        // Random words may not suffice to continue.
        EXPECT_EQ(masked.ok(), !allowed.empty() || logits[tokenizer.vocabulary() - 1] == 0);
        if (allowed.empty()) break;
        const int token = allowed[random() % allowed.size()];
        place = *masker->After(place, token);
        text += words[token];
        if (masker->Complete(place)) break;
      }
    }
  }
}

// Files may declare ordinary words to be ends of sequence.
class SpelledEosTokenizer : public WordTokenizer {
 public:
  using WordTokenizer::WordTokenizer;
  std::string TokenBytes(int token) const override {
    return token + 1 == vocabulary() ? "</s>" : WordTokenizer::TokenBytes(token);
  }
  bool IsSpecial(int) const override { return false; }
};

TEST(TokenMasker, EosTokensHaveNoTextWhateverTheirSpelling) {
  const SpelledEosTokenizer tokenizer({"a", "</s>", "\""});
  const int end = tokenizer.eos()[0];
  const auto masker = MaskerOf({.kind = StructuredOutput::kRegex, .text = "\"[^\"]*\""}, tokenizer);
  auto place = *masker->After(masker->Start(), 2);
  EXPECT_TRUE(Contains(**masker->AllowedTokens(place), 0));
  EXPECT_TRUE(Contains(**masker->AllowedTokens(place), 1)) << "these bytes are a text";
  EXPECT_FALSE(Contains(**masker->AllowedTokens(place), end)) << "the text is not whole";
  place = *masker->After(place, 2);
  EXPECT_TRUE(Contains(**masker->AllowedTokens(place), end));
}

// Models whose files do not name the end of a turn need stop tokens.
TEST(TokenMasker, StopTokensAreAllowedWhereTheAnswerMayEnd) {
  const WordTokenizer tokenizer({"a", "b", "stop"});
  const int end = tokenizer.eos()[0];
  auto logits_processor = std::make_shared<LogitsProcessorOptions>();
  logits_processor->constraint =
      MaskerOf({.kind = StructuredOutput::kRegex, .text = "(ab)*"}, tokenizer);
  LogitsProcessor answer(logits_processor, {}, {end, 2});
  for (const bool whole : {true, false, true}) {
    const RowLogitEdits edits = *answer.EditsAfter({});
    EXPECT_EQ(answer.EditsAfter({})->permitted, edits.permitted) << "one set for all such rows";
    EXPECT_EQ(Contains(*edits.permitted, 2), whole);
    EXPECT_EQ(Contains(*edits.permitted, end), whole);
    EXPECT_EQ(Contains(*edits.permitted, 0), whole);
    EXPECT_EQ(Contains(*edits.permitted, 1), !whole);
    ASSERT_TRUE(answer.Append(whole ? 0 : 1).ok());
  }
}

// When an epoch's memory is exhausted, an old position keeps its meaning in the new epoch.
TEST(TokenMasker, CacheEvictionChangesNoMask) {
  const WordTokenizer tokenizer({"(", ")", "x", "(("});
  const StructuredOutput output{.kind = StructuredOutput::kGbnf,
                                .text = "root ::= \"(\" root \")\" | \"x\" | \"(\" root"};
  const auto automaton = AutomatonOf(output);
  LazyAutomaton one(automaton);
  int state = *one.Start();
  for (const char c : std::string("((((((x)))")) state = *one.Next(state, static_cast<uint8_t>(c));
  LazyAutomaton other(automaton);
  const int there = *other.Import(one, state);
  for (const std::string rest : {"", ")", "))", ")))", "))))", "x"}) {
    int a = state, b = there;
    for (const char c : rest) {
      a = a < 0 ? a : *one.Next(a, static_cast<uint8_t>(c));
      b = b < 0 ? b : *other.Next(b, static_cast<uint8_t>(c));
    }
    EXPECT_EQ(a < 0, b < 0) << rest;
    if (a >= 0) {
      EXPECT_EQ(one.accepting(a), other.accepting(b)) << rest;
    }
  }
}

// Cached masks cost nothing, so an expensive grammar may become cheap.
TEST(TokenMasker, CostlyFollowsTheAverageMaskWork) {
  std::vector<std::string> words;
  for (int i = 0; i < 81; ++i) {
    words.push_back({static_cast<char>('a' + i % 3), static_cast<char>('a' + i / 3 % 3),
                     static_cast<char>('a' + i / 9 % 3), static_cast<char>('a' + i / 27)});
  }
  const WordTokenizer tokenizer(words);
  // Consecutive palindromes: each letter so far may be the middle of one.
  const std::string palindromes =
      "root ::= x | x root\n"
      "x ::= [abc] | \"a\" x \"a\" | \"b\" x \"b\" | \"c\" x \"c\"";
  for (const std::string& text : {std::string("root ::= [abc]+"), palindromes}) {
    const auto masker = MaskerOf({.kind = StructuredOutput::kGbnf, .text = text}, tokenizer);
    TokenConstraint::StateRef place = masker->Start();
    bool ever = false;
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(masker->AllowedTokens(place).ok());
      ever = ever || masker->Costly();
      const auto next = masker->After(place, i * 13);
      ASSERT_TRUE(next.ok()) << next.status();
      place = *next;
    }
    EXPECT_EQ(ever, text == palindromes);
    for (int i = 0; i < 200; ++i) ASSERT_TRUE(masker->AllowedTokens(masker->Start()).ok());
    EXPECT_FALSE(masker->Costly());
  }
}

// 128,000 words like those of vocabularies, some of them long.
std::vector<std::string> ManyWords() {
  std::mt19937 random(1);
  std::vector<std::string> words;
  for (int i = 0; i < 128; ++i) words.emplace_back(1, static_cast<char>(i));
  for (int length = 2; length <= 128; length *= 2) words.emplace_back(length, ' ');
  while (words.size() < 128'000) {
    std::string word(1 + random() % 10, 0);
    for (char& c : word) {
      c = random() % 16 != 0 ? static_cast<char>('a' + std::min(random() % 26, random() % 26))
                             : "\"{}[]:,1\n \xC3\xA9"[random() % 12];
    }
    words.push_back(std::move(word));
  }
  return words;
}

// All positions of a counted text are equivalent until its end is near, so most share one trie
// walk.
TEST(TokenMasker, CountedRepetitionsShareMasks) {
  const std::vector<std::string> words = ManyWords();
  const WordTokenizer tokenizer(words);
  const auto trie = std::make_shared<TokenTrie>(tokenizer);
  const StructuredOutput forms[] = {
      {.kind = StructuredOutput::kJsonSchema,
       .text = R"({"type":"string","minLength":30,"maxLength":60})"},
      {.kind = StructuredOutput::kRegex, .text = "([b-z]{2,40}a){5,9}x{0,70}"},
      {.kind = StructuredOutput::kRegex, .text = "(a|[b-z]?){12,}[0-9]"},
      {.kind = StructuredOutput::kJsonSchema,
       .text = R"({"type":"array","items":{"type":"string","maxLength":3},"maxItems":40})"}};
  std::mt19937 random(9);
  for (const StructuredOutput& form : forms) {
    const auto automaton = AutomatonOf(form);
    const auto masker = *TokenMasker::Create(automaton, trie, tokenizer.eos());
    LazyAutomaton table(automaton);
    for (int trial = 0; trial < 8; ++trial) {
      TokenConstraint::StateRef place = masker->Start();
      int state = *table.Start();
      for (int step = 0; step < 70 && !masker->Complete(place); ++step) {
        const absl::StatusOr<TokenBitmaskRef> mask = masker->AllowedTokens(place);
        ASSERT_TRUE(mask.ok()) << mask.status();
        const auto has = [&](int token) {
          const size_t word = static_cast<size_t>(token) / 64;
          return word < (*mask)->size() && ((**mask)[word] >> token % 64 & 1) != 0;
        };
        int chosen = -1;
        for (int i = 0; i < 2000; ++i) {
          const int token = static_cast<int>(i < 200 ? i : random() % words.size());
          int after = state;
          for (size_t c = 0; c < words[token].size() && after != LazyAutomaton::kDead; ++c) {
            after = *table.Next(after, static_cast<uint8_t>(words[token][c]));
          }
          ASSERT_EQ(has(token), after != LazyAutomaton::kDead)
              << "'" << words[token] << "' at step " << step << " of " << form.text;
          const bool longer = chosen >= 0 && words[token].size() > words[chosen].size();
          if (has(token) && (chosen < 0 || (!longer && random() % 4 == 0))) chosen = token;
        }
        EXPECT_EQ(has(tokenizer.eos()[0]), table.accepting(state));
        if (chosen < 0) break;
        for (const char c : words[chosen]) state = *table.Next(state, static_cast<uint8_t>(c));
        place = *masker->After(place, chosen);
      }
    }
  }
}

TEST(TokenMasker, LongCountedTextsStayCheap) {
  const WordTokenizer tokenizer(ManyWords());
  const auto masker = MaskerOf(
      {.kind = StructuredOutput::kJsonSchema, .text = R"({"type":"string","maxLength":500})"},
      tokenizer);
  TokenConstraint::StateRef place = *masker->After(masker->Start(), '"');
  int costly = 0;
  std::set<TokenBitmaskRef> masks;
  for (int i = 0; i < 450; ++i) {
    const absl::StatusOr<TokenBitmaskRef> mask = masker->AllowedTokens(place);
    ASSERT_TRUE(mask.ok()) << mask.status();
    masks.insert(*mask);
    costly += masker->Costly() ? 1 : 0;
    place = *masker->After(place, 'a');
  }
  EXPECT_LT(costly, 16);
  // One mask until the longest token, of 128 characters, no longer fits.
  EXPECT_LT(masks.size(), 90U);
}

TEST(TokenMasker, WideObjectsAndEnumsHaveMasks) {
  std::vector<std::string> words = ManyWords();
  words.insert(words.end(), {"{\"", "name", "name_1", "_", "name_19", "99"});
  const WordTokenizer tokenizer(words);
  const auto trie = std::make_shared<TokenTrie>(tokenizer);
  std::string properties, values;
  for (int i = 0; i < 2000; ++i) {
    const std::string name = (i > 0 ? ",\"name_" : "\"name_") + std::to_string(i * 7 % 2000) + "\"";
    properties += name + ":{\"type\":\"integer\"}";
    values += name;
  }
  for (const std::string& schema :
       {"{\"properties\":{" + properties + "}}",
        "{\"properties\":{\"a\":{\"enum\":[" + values + "]}}}",
        "{\"properties\":{\"a\":{\"type\":\"integer\"}},\"additionalProperties\":{\"enum\":[" +
            values + "]}}"}) {
    const auto masker =
        TokenMasker::Create(AutomatonOf({.kind = StructuredOutput::kJsonSchema, .text = schema}),
                            trie, tokenizer.eos());
    ASSERT_TRUE(masker.ok()) << masker.status();
    LazyAutomaton table(AutomatonOf({.kind = StructuredOutput::kJsonSchema, .text = schema}));
    std::mt19937 random(3);
    std::string text;
    TokenConstraint::StateRef place = (*masker)->Start();
    for (int step = 0; step < 25; ++step) {
      const absl::StatusOr<TokenBitmaskRef> mask = (*masker)->AllowedTokens(place);
      ASSERT_TRUE(mask.ok()) << mask.status() << " after " << text;
      std::vector<int> allowed;
      for (int token = 0; token < static_cast<int>(words.size()); ++token) {
        const size_t word = static_cast<size_t>(token) / 64;
        if (word < (*mask)->size() && ((**mask)[word] >> token % 64 & 1) != 0 &&
            words[token].find_first_of(" \n}") == std::string::npos) {
          allowed.push_back(token);
        }
      }
      if (allowed.empty()) break;
      const int token = allowed[random() % allowed.size()];
      text += words[token];
      ASSERT_TRUE(Fits(table, text)) << text;
      place = *(*masker)->After(place, token);
    }
    EXPECT_GT(text.size(), 10U) << text;
  }
}

// Errors are cached like masks.
TEST(TokenMasker, HostileGrammarsFailQuicklyAndOnce) {
  const WordTokenizer tokenizer(ManyWords());
  const auto masker = MaskerOf(
      {.kind = StructuredOutput::kGbnf,
       .text = "root ::= [ -`] root \"\\x02\" | [a-m] root \"\\x03\" | [n-z] root \"\\x04\" | "
               "\"\\x01\""},
      tokenizer);
  const auto timed = [&] {
    const auto began = std::chrono::steady_clock::now();
    EXPECT_THAT(std::string(masker->AllowedTokens(masker->Start()).status().message()),
                HasSubstr("too long"));
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began)
        .count();
  };
  EXPECT_LT(timed(), 500);  // usually about 15
  EXPECT_LT(timed(), 1);
}

// Before anything is generated.
TEST(TokenMasker, TooAmbiguousGrammarsAreRefusedOnCreation) {
  const WordTokenizer tokenizer({"a", "b"});
  std::string ways, rules;
  for (int i = 0; i < 5000; ++i) {
    ways += " | w" + std::to_string(i);
    rules += "\nw" + std::to_string(i) + " ::= [ab] \"" + std::to_string(i) + "\"";
  }
  const auto masker =
      TokenMasker::Create(AutomatonOf({.kind = StructuredOutput::kGbnf,
                                       .text = "root ::= \"a\" \"b\" (\"c\"" + ways + ")" + rules}),
                          std::make_shared<TokenTrie>(tokenizer), tokenizer.eos());
  EXPECT_EQ(masker.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(masker.status().message()), HasSubstr("ambiguous"));
}

TEST(TokenMasker, VocabularyThatCannotContinueIsAnError) {
  const WordTokenizer tokenizer({"a", "b"});
  const auto masker = MaskerOf({.kind = StructuredOutput::kRegex, .text = "ac"}, tokenizer);
  const auto place = *masker->After(masker->Start(), 0);
  EXPECT_THAT(std::string(masker->AllowedTokens(place).status().message()),
              HasSubstr("vocabulary"));
  EXPECT_FALSE(masker->After(place, 1).ok());
  EXPECT_FALSE(masker->After(place, 77).ok());
}

constexpr int kVocabulary = 5;  // a to d, and the end of sequence
constexpr int kEos = 4;

FakeModel Llm() { return HashModel(1, kVocabulary, 2); }

std::shared_ptr<const LogitsProcessorOptions> Under(std::shared_ptr<TokenMasker> masker) {
  return std::make_shared<LogitsProcessorOptions>(
      LogitsProcessorOptions{.constraint = std::move(masker)});
}

// The distribution of answers by definition: for each prefix, the model's distribution over the
// tokens that can follow, renormalized.
void AddDistribution(const std::vector<std::string>& language, std::vector<int> path,
                     std::string answer, double probability, std::map<std::string, double>* law) {
  std::vector<float> logits = Llm()(path);
  double mass = 0;
  std::vector<double> p(kVocabulary, 0);
  bool any_letter = false;
  for (int token = 0; token < kVocabulary; ++token) {
    const std::string next = token == kEos ? answer : answer + static_cast<char>('a' + token);
    bool allowed = false;
    for (const std::string& text : language) {
      allowed = allowed || (token == kEos ? text == next : text.compare(0, next.size(), next) == 0);
    }
    any_letter = any_letter || (allowed && token != kEos);
    if (allowed) mass += p[token] = std::exp(static_cast<double>(logits[token]));
  }
  if (!any_letter) {  // nothing can follow: the answer ends without an end of sequence
    (*law)[answer] += probability;
    return;
  }
  for (int token = 0; token < kVocabulary; ++token) {
    if (p[token] == 0) continue;
    if (token == kEos) {
      (*law)[answer + "."] += probability * p[token] / mass;
      continue;
    }
    std::vector<int> longer = path;
    longer.push_back(token);
    AddDistribution(language, longer, answer + static_cast<char>('a' + token),
                    probability * p[token] / mass, law);
  }
}

TEST(StructuredGeneration, SamplesTheMaskedDistributionUnderEveryTree) {
  const std::vector<std::string> language = {"ab", "abc", "acd", "b", "cab", "cabd", "cad"};
  const LetterTokenizer tokenizer(kVocabulary, {kEos});
  const auto masker = MaskerOf({.kind = StructuredOutput::kChoice, .choices = language}, tokenizer);
  const std::vector<int> prompt = {2, 0, 1};
  std::map<std::string, double> law;
  AddDistribution(language, prompt, "", 1, &law);
  const FakeModel near = AgreeingModel(Llm(), HashModel(2, kVocabulary, 2), 0.7, 7);
  for (const char* expansion : {"", "2,2", "3,1,1"}) {
    EngineHarness harness(kVocabulary, {kEos});
    harness.SetLlm(Llm());
    if (*expansion != 0) {
      harness.AddSsm(near);
      harness.AddSsm(HashModel(3, kVocabulary, 2));
    }
    ASSERT_TRUE(harness.Start({.max_requests = 32}, expansion).ok());
    constexpr int kDraws = 40000;
    std::map<std::string, int> counts;
    std::map<RequestId, std::string> open;
    int64_t accepted = 0;
    for (int submitted = 0, finished = 0; finished < kDraws;) {
      for (; submitted < kDraws && submitted < finished + 64; ++submitted) {
        SamplingParameters sampling{.temperature = 1, .seed = static_cast<uint64_t>(submitted)};
        ASSERT_TRUE(
            harness.engine()
                .Submit(prompt,
                        {.max_tokens = 20, .sampling = sampling, .logits_processor = Under(masker)})
                .ok());
      }
      ASSERT_TRUE(harness.engine().Step().ok());
      for (const RequestEvent& event : harness.engine().TakeEvents()) {
        for (const int token : event.tokens) {
          open[event.id] += token == kEos ? '.' : static_cast<char>('a' + token);
        }
        if (!event.finished) continue;
        ASSERT_EQ(event.reason, FinishReason::kStop) << event.error;
        ++counts[open[event.id]];
        ++finished;
        accepted += event.usage.accepted_tokens;
      }
    }
    if (*expansion != 0) {
      EXPECT_GT(accepted, kDraws / 10);
    }
    double chi = 0;
    for (const auto& [answer, probability] : law) {
      const double expected = probability * kDraws;
      chi += (counts[answer] - expected) * (counts[answer] - expected) / expected;
      counts.erase(answer);
    }
    EXPECT_TRUE(counts.empty()) << counts.begin()->first << " is not of the language";
    const double freedom = static_cast<double>(law.size()) - 1;
    const double a = 2 / (9 * freedom);
    EXPECT_LT(chi, freedom * std::pow(1 - a + 4.753 * std::sqrt(a), 3)) << expansion;
  }
}

// Every answer of a random model matches the grammar, also with token trees, and the greedy answer
// is the one without trees.
TEST(StructuredGeneration, GreedyAnswersMatchTheGrammarWithAndWithoutTrees) {
  const LetterTokenizer tokenizer(kVocabulary, {kEos});
  const StructuredOutput output{.kind = StructuredOutput::kGbnf,
                                .text = "root ::= \"a\" root \"b\" | \"c\" [cd]{1,5} | \"d\""};
  const auto masker = MaskerOf(output, tokenizer);
  LazyAutomaton table(AutomatonOf(output));
  std::vector<std::string> answers;
  for (const char* expansion : {"", "2,2,1", "1,1,1,1,1,1"}) {
    EngineHarness harness(kVocabulary, {kEos});
    harness.SetLlm(HashModel(11, kVocabulary));
    if (*expansion != 0) {
      harness.AddSsm(AgreeingModel(HashModel(11, kVocabulary), HashModel(4, kVocabulary), 0.9, 5));
    }
    ASSERT_TRUE(harness.Start({}, expansion).ok());
    std::vector<RequestId> ids;
    for (const auto& prompt : RandomPrompts(100, 10, kVocabulary, 3)) {
      ids.push_back(
          *harness.engine().Submit(prompt, {.max_tokens = 200, .logits_processor = Under(masker)}));
    }
    harness.RunToEnd();
    for (size_t i = 0; i < ids.size(); ++i) {
      const Answer& answer = harness.answer(ids[i]);
      std::string text;
      for (const int token : answer.tokens) {
        if (token != kEos) text += static_cast<char>('a' + token);
      }
      if (answer.reason == FinishReason::kStop) {
        int state = *table.Start();
        for (const char c : text) {
          ASSERT_NE(state, LazyAutomaton::kDead);
          state = *table.Next(state, static_cast<uint8_t>(c));
        }
        ASSERT_NE(state, LazyAutomaton::kDead) << text;
        EXPECT_TRUE(table.accepting(state)) << text;
      } else {
        EXPECT_EQ(answer.reason, FinishReason::kLength) << answer.error;
        EXPECT_TRUE(Fits(table, text)) << text;
      }
      if (*expansion == 0) {
        answers.push_back(text);
      } else {
        EXPECT_EQ(text, answers[i]) << expansion;
      }
    }
  }
}

TEST(StructuredGeneration, EmptyLanguageEndsAtOnce) {
  const LetterTokenizer tokenizer(kVocabulary, {kEos});
  for (const StructuredOutput& output :
       {StructuredOutput{.kind = StructuredOutput::kRegex, .text = "^$"},
        StructuredOutput{.kind = StructuredOutput::kGbnf, .text = "root ::= \"\""}}) {
    for (const char* expansion : {"", "2,2"}) {
      EngineHarness harness(kVocabulary, {kEos});
      harness.SetLlm(Llm());
      if (*expansion != 0) harness.AddSsm(HashModel(3, kVocabulary, 2));
      ASSERT_TRUE(harness.Start({}, expansion).ok());
      std::vector<RequestId> ids;
      for (uint64_t seed = 0; seed < 20; ++seed) {
        const RequestOptions options{.max_tokens = 9,
                                     .sampling = {.temperature = 1, .seed = seed},
                                     .logits_processor = Under(MaskerOf(output, tokenizer))};
        ids.push_back(*harness.engine().Submit({0, 1, 2}, options));
      }
      harness.RunToEnd();
      for (const RequestId id : ids) {
        EXPECT_EQ(harness.answer(id).reason, FinishReason::kStop) << harness.answer(id).error;
        for (const int token : harness.answer(id).tokens) EXPECT_EQ(token, kEos);
      }
    }
  }
}

// Drafted and accepted tokens of 40 answers whose tokens the grammar mostly determines.
std::pair<int64_t, int64_t> DraftedAndAccepted(const FakeModel* ssm, double temperature,
                                               bool ngram) {
  const LetterTokenizer tokenizer(kVocabulary, {kEos});
  const auto masker =
      MaskerOf({.kind = StructuredOutput::kRegex, .text = "(abcd){6}[ab]{2}(dcba){6}"}, tokenizer);
  EngineHarness harness(kVocabulary, {kEos});
  harness.SetLlm(Llm());
  if (ssm != nullptr) harness.AddSsm(*ssm);
  EngineOptions options;
  options.speculation.ngram = {.depth = ngram ? 4 : 0, .branches = 2};
  EXPECT_TRUE(harness.Start(options, ssm != nullptr ? "1,1,1,1" : "").ok());
  uint64_t seed = 0;
  for (const auto& prompt : RandomPrompts(40, 10, kVocabulary, 6)) {
    EXPECT_TRUE(harness.engine()
                    .Submit(prompt, {.max_tokens = 100,
                                     .sampling = {.temperature = temperature, .seed = ++seed},
                                     .logits_processor = Under(masker)})
                    .ok());
  }
  harness.RunToEnd();
  const EngineStatistics statistics = harness.engine().statistics();
  return {statistics.drafted_tokens, statistics.accepted_tokens};
}

// Where the grammar leaves one token, every model drafts it, however unlikely it is to the model.
TEST(StructuredGeneration, DraftsFollowTheGrammarForAnySsm) {
  const FakeModel contrary = DisagreeingModel(Llm());
  for (const double temperature : {0.0, 1.0}) {
    const auto [drafted, accepted] = DraftedAndAccepted(&contrary, temperature, false);
    // The model chooses only two of the 51 tokens.
    EXPECT_GT(drafted, 40 * 30);
    EXPECT_GT(accepted, drafted * 8 / 10) << temperature;
  }
}

// The text reverses after its middle: its earlier n-grams are then not allowed.
TEST(StructuredGeneration, NgramDraftsFollowTheGrammar) {
  const auto [drafted, accepted] = DraftedAndAccepted(nullptr, 0, true);
  EXPECT_GT(accepted, 40 * 20);
  EXPECT_GT(accepted, drafted * 9 / 10);
}

}  // namespace
}  // namespace espalier
