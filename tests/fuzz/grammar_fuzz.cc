// Fuzzes grammars: any untrusted text compiles or fails within its cost limits. The first byte
// selects the notation. Then walks the accepted grammar and checks that it has no dead ends: every
// state accepts or continues.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "serving/grammar/lazy_automaton.h"
#include "serving/grammar/structured_output.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace espalier;
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const StructuredOutput::Kind kinds[] = {StructuredOutput::kRegex, StructuredOutput::kJsonSchema,
                                          StructuredOutput::kGbnf, StructuredOutput::kChoice,
                                          StructuredOutput::kStructuralTag};
  StructuredOutput output{.kind = kinds[data[0] % 5], .text = text};
  if (output.kind == StructuredOutput::kStructuralTag) {
    // A schema, its trigger, and the style of its values.
    const ValueSyntax syntaxes[] = {ValueSyntax::kJson, ValueSyntax::kPython,
                                    ValueSyntax::kUnquoted};
    const std::string mark = text.substr(0, data[0] / 15 % 8);
    output.structural_tag.triggers = {mark};
    output.structural_tag.sections = {{.open = mark,
                                       .items = {{.kind = TagItem::kFields,
                                                  .fields = {{.begin = "a=",
                                                              .schema = text.substr(mark.size()),
                                                              .syntax = syntaxes[data[0] / 5 % 3],
                                                              .end = ";"}}}}}};
  }
  if (output.kind == StructuredOutput::kChoice) {
    output.choices = {text, text.substr(0, size / 2)};
    if (data[0] / 64 == 1) output.kind = StructuredOutput::kXgrammarStructuralTag;
  }
  if (data[0] >= 128) {
    StructuredOutput either{.kind = StructuredOutput::kStructuralTag};
    either.structural_tag = {
        .layout = StructuralTag::kTagsOnly,
        .sections = {{.open = "<", .items = {{.schema = "{}"}}, .close = ">"}}};
    either.alternatives = {std::move(output)};
    output = std::move(either);
  }
  const absl::StatusOr<Grammar> grammar = GrammarOf(output);
  if (!grammar.ok()) {
    if (grammar.status().message().empty()) std::abort();
    return 0;
  }
  const auto automaton = BuildAutomaton(*grammar);
  if (!automaton.ok()) return 0;
  LazyAutomaton table(*automaton);
  absl::StatusOr<int> state = table.Start();
  uint32_t chance = 1;
  for (int i = 0; i < 40 && state.ok() && *state != LazyAutomaton::kDead; ++i) {
    int ways = 0, next = LazyAutomaton::kDead;
    for (int byte = 0; byte < 256 && table.work() < 1'000'000; ++byte) {
      const absl::StatusOr<int> after = table.Next(*state, static_cast<uint8_t>(byte));
      if (!after.ok()) return 0;
      if (*after == LazyAutomaton::kDead) continue;
      chance = chance * 1664525 + 1013904223;
      if (chance % static_cast<uint32_t>(++ways) == 0) next = *after;
    }
    if (table.work() >= 1'000'000) return 0;
    // Grammars of many rules may reach the limit of call depth.
    const bool shallow = grammar->rules.size() * 40 < LazyAutomaton::kMaxDepth;
    if (ways == 0 && !table.accepting(*state) && shallow) std::abort();
    state = next;
  }
  return 0;
}
