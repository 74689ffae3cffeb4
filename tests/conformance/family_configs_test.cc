// config.json as transformers 5 writes it, with renamed fields, means the model that older versions
// wrote. families_transformers5.json holds the configurations of families.json's cases, whose
// logits transformers 5 computes alike; make_family_golden.py makes it.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "models/model.h"
#include "models/serving_builder.h"
#include "ops/graph/graph_proto.h"
#include "ops/operators/register_all.h"
#include "tests/conformance/family_model.h"

namespace espalier {
namespace {

using nlohmann::json;

json Newer() {
  std::ifstream file("tests/conformance/families_transformers5.json");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// The graph with all numbers that the configuration gives, and the model's limits.
std::string Meaning(const json& config, int max_positions) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  const absl::StatusOr<LanguageModel> model = ReadModel(config.dump());
  if (!model.ok()) return std::string(model.status().message());
  ServingShape shape{.max_rows = 32,
                     .max_output_rows = 32,
                     .kv_slots = 96,
                     .max_sequences = 2,
                     .max_context_slots = 64,
                     .max_ancestor_slots = 256,
                     .max_positions = max_positions};
  absl::StatusOr<ServingModel> serving = BuildServing(registry, *model, shape);
  if (!serving.ok()) return std::string(serving.status().message());
  v1::Graph graph = ToProto(serving->graph);
  graph.clear_metadata();  // holds the configuration's text
  return graph.DebugString() + std::to_string(model->facts.max_positions) + " " +
         std::to_string(model->facts.vocab_size);
}

TEST(FamilyConfigsTest, Transformers5WritesTheSameModels) {
  const json newer = Newer();
  int compared = 0;
  for (const FamilyCase& c : ReadFamilyCases("tests/conformance/families.json")) {
    SCOPED_TRACE(c.name());
    ASSERT_TRUE(newer.contains(c.name()));
    const int positions = c["max_positions"].get<int>();
    const std::string meaning = Meaning(c["config"], positions);
    EXPECT_GT(meaning.size(), 1000u) << meaning;
    EXPECT_EQ(Meaning(newer[c.name()], positions), meaning);
    ++compared;
  }
  EXPECT_EQ(compared, static_cast<int>(newer.size()));
}

// No number of the configuration is without effect: one that is not read is refused.
TEST(FamilyConfigsTest, FieldsOfOtherModelsAreRefused) {
  const json newer = Newer();
  for (const auto& [name, config] : newer.items()) {
    json changed = config;
    changed["logits_scaling"] = 8.0;  // Granite's
    EXPECT_NE(Meaning(changed, 0).find("\"logits_scaling\" is 8.0; accepted: null"),
              std::string::npos)
        << name;
  }
}

}  // namespace
}  // namespace espalier
