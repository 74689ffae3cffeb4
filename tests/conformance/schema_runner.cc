// JSON schemas as grammars for tests/conformance/json_schema_test.py: {"schema": "JSON text",
// "texts": [...], "random": count, "seed": number} -> {"accepted": [...], "random": [...]} or
// {"error": "..."}.
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "serving/grammar/json_schema.h"
#include "serving/grammar/lazy_automaton.h"
#include "tests/conformance/serve.h"

namespace espalier::conformance {
namespace {

constexpr int kLongest = 3000;

absl::StatusOr<bool> Accepts(LazyAutomaton& table, const std::string& text) {
  absl::StatusOr<int> state = table.Start();
  for (const char c : text) {
    if (!state.ok() || *state == LazyAutomaton::kDead) break;
    state = table.Next(*state, static_cast<uint8_t>(c));
  }
  if (!state.ok()) return state.status();
  return *state != LazyAutomaton::kDead && table.accepting(*state);
}

// Returns a random text of the grammar, preferring closing characters. Empty if it grew too long.
absl::StatusOr<std::string> RandomText(LazyAutomaton& table, std::mt19937& random) {
  std::string text;
  absl::StatusOr<int> state = table.Start();
  while (state.ok() && text.size() < kLongest) {
    if (table.accepting(*state) && (table.complete(*state) || random() % 3 == 0)) return text;
    std::vector<std::pair<uint8_t, int>> ways, closing;
    for (int byte = 0; byte < 256; ++byte) {
      const absl::StatusOr<int> next = table.Next(*state, static_cast<uint8_t>(byte));
      if (!next.ok()) return next.status();
      if (*next == LazyAutomaton::kDead) continue;
      ways.emplace_back(static_cast<uint8_t>(byte), *next);
      if (byte == '"' || byte == '}' || byte == ']') closing.push_back(ways.back());
    }
    if (ways.empty()) return absl::InternalError("a dead end after " + text);
    const auto& from = !closing.empty() && random() % 3 == 0 ? closing : ways;
    const auto& [byte, next] = from[random() % from.size()];
    text.push_back(static_cast<char>(byte));
    state = next;
  }
  if (!state.ok()) return state.status();
  return std::string();
}

json Answer(const json& request) {
  const absl::StatusOr<Grammar> grammar = ParseJsonSchema(request.at("schema").get<std::string>());
  if (!grammar.ok()) return {{"error", grammar.status().ToString()}};
  const auto automaton = BuildAutomaton(*grammar);
  if (!automaton.ok()) return {{"error", automaton.status().ToString()}};
  LazyAutomaton table(*automaton);
  json accepted = json::array(), texts = json::array();
  for (const json& text : request.at("texts")) {
    const absl::StatusOr<bool> answer = Accepts(table, text.get<std::string>());
    if (!answer.ok()) return {{"error", answer.status().ToString()}};
    accepted.push_back(*answer);
  }
  std::mt19937 random(request.at("seed").get<uint32_t>());
  for (int i = 0; i < request.at("random").get<int>(); ++i) {
    const absl::StatusOr<std::string> text = RandomText(table, random);
    if (!text.ok()) return {{"error", text.status().ToString()}};
    if (!text->empty()) texts.push_back(*text);
  }
  return {{"accepted", accepted}, {"random", texts}};
}

}  // namespace
}  // namespace espalier::conformance

int main() { espalier::conformance::Serve(espalier::conformance::Answer); }
