#include "serving/grammar/json_schema.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "serving/grammar/json_text.h"
#include "serving/grammar/schema_builder.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 256;  // of the text; a schema nests less deep, see SchemaBuilder
constexpr size_t kMaxSchemaBytes = 1 << 20;
// Finding a key takes as long as its object has keys.
constexpr size_t kMaxKeys = 2048;
constexpr size_t kMaxKeysInAll = 50'000;

}  // namespace

absl::StatusOr<Grammar> ParseJsonSchema(absl::string_view schema) {
  if (schema.size() > kMaxSchemaBytes) {
    return absl::InvalidArgumentError("json_schema: it is larger than 1 MiB");
  }
  // The parser needs no stack, but those who walk the value do.
  bool deep = false, wide = false;
  size_t keys = 0;
  std::vector<size_t> open;  // keys so far of the objects around
  const auto watch = [&](int depth, Json::parse_event_t event, Json&) {
    if (event == Json::parse_event_t::object_start) open.push_back(0);
    if (event == Json::parse_event_t::object_end && !open.empty()) open.pop_back();
    if (event == Json::parse_event_t::key && !open.empty()) {
      wide = wide || ++open.back() > kMaxKeys || ++keys > kMaxKeysInAll;
    }
    deep = deep || depth > kMaxDepth;
    return !deep && !wide;
  };
  const Json root = Json::parse(schema.begin(), schema.end(), watch, /*allow_exceptions=*/false);
  if (deep) return absl::InvalidArgumentError("json_schema: it nests too deep");
  if (wide) {
    return absl::InvalidArgumentError(absl::StrCat("json_schema: it has more than ", kMaxKeys,
                                                   " keys in one object, or ", kMaxKeysInAll,
                                                   " in all"));
  }
  if (root.is_discarded()) return absl::InvalidArgumentError("json_schema: it is not valid JSON");
  return SchemaBuilder(root).Build();
}

Grammar JsonObjectGrammar() {
  Grammar grammar;
  AddJsonRules(&grammar);
  grammar.root = "json-object";
  return grammar;
}

}  // namespace espalier
