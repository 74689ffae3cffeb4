// Test helpers that compile a grammar and match texts against it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "serving/grammar/lazy_automaton.h"
#include "serving/grammar/structured_output.h"

namespace espalier {

// A compiled grammar, or the error.
struct GrammarMatcher {
  explicit GrammarMatcher(const StructuredOutput& output) {
    absl::StatusOr<Grammar> grammar = GrammarOf(output);
    status = grammar.status();
    if (!status.ok()) return;
    auto automaton = BuildAutomaton(*grammar);
    status = automaton.status();
    if (status.ok()) table = std::make_unique<LazyAutomaton>(*automaton);
  }

  bool Accepts(absl::string_view text) {
    EXPECT_TRUE(status.ok()) << status;
    int state = *table->Start();
    for (size_t i = 0; i < text.size() && state != LazyAutomaton::kDead; ++i) {
      state = *table->Next(state, static_cast<uint8_t>(text[i]));
    }
    return state != LazyAutomaton::kDead && table->accepting(state);
  }

  // Returns a random text of the grammar: any byte that may follow, with some chance of stopping
  // where the text may end. Returns "" if it grows too long.
  std::string Random(std::mt19937& random) {
    std::string text;
    int state = *table->Start();
    for (int length = 0; length < 4000; ++length) {
      if (table->accepting(state) && (table->complete(state) || random() % 3 == 0)) return text;
      std::vector<std::pair<int, uint8_t>> ways;
      for (int byte = 0; byte < 256; ++byte) {
        const int next = *table->Next(state, static_cast<uint8_t>(byte));
        if (next != LazyAutomaton::kDead) ways.emplace_back(next, static_cast<uint8_t>(byte));
      }
      EXPECT_FALSE(ways.empty()) << "a dead end after: " << text;
      if (ways.empty()) return "";
      // Prefer brackets and quotes to the hundreds of other bytes.
      std::vector<std::pair<int, uint8_t>> closing;
      for (const auto& way : ways) {
        if (way.second == '"' || way.second == '}' || way.second == ']') closing.push_back(way);
      }
      const auto& from = !closing.empty() && random() % 3 == 0 ? closing : ways;
      const auto& way = from[random() % from.size()];
      text.push_back(static_cast<char>(way.second));
      state = way.first;
    }
    return "";
  }

  absl::Status status;
  std::unique_ptr<LazyAutomaton> table;
};

inline GrammarMatcher Regex(const std::string& text) {
  return GrammarMatcher({.kind = StructuredOutput::kRegex, .text = text});
}
inline GrammarMatcher Schema(const std::string& text) {
  return GrammarMatcher({.kind = StructuredOutput::kJsonSchema, .text = text});
}
inline GrammarMatcher Gbnf(const std::string& text) {
  return GrammarMatcher({.kind = StructuredOutput::kGbnf, .text = text});
}

}  // namespace espalier
