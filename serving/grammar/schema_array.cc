// Arrays.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/grammar/schema_builder.h"

namespace espalier {
namespace {

Expression Comma() { return Sequence({Literal(","), RuleCall("json-space")}); }

}  // namespace

Expression SchemaBuilder::Array(const Json& schema, const std::string& place, int depth) {
  Only(schema, place,
       {"type", "items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"});
  if (schema.contains("uniqueItems") && schema["uniqueItems"] != false) {
    Fail(absl::StrCat(place, "/uniqueItems"), "this keyword is not supported; leave it out");
  }
  int least = Count(schema, "minItems", 0, place);
  int most = Count(schema, "maxItems", -1, place);
  std::vector<Expression> parts = {Literal("["), RuleCall("json-space")};
  // Up to draft 2019-09 a list of items stood for what "prefixItems" is now.
  const bool old = schema.contains("items") && schema["items"].is_array();
  const char* const prefix_key = old ? "items" : "prefixItems";
  const char* const items_key = old ? "additionalItems" : "items";
  if (old && schema.contains("prefixItems")) {
    Fail(absl::StrCat(place, "/items"), "a list of items beside prefixItems is not supported");
  }
  if (!old && schema.contains("additionalItems")) {
    Fail(absl::StrCat(place, "/additionalItems"), "it means something beside a list of items only");
  }
  const Json prefix = schema.value(prefix_key, Json::array());
  if (!prefix.is_array()) Fail(absl::StrCat(place, "/", prefix_key), "it must be a list");
  const int fixed = static_cast<int>(prefix.size());
  if (most >= 0 && (most < least || most < fixed)) {
    Fail(absl::StrCat(place, "/maxItems"), "it is less than the items that there must be");
  }
  if (!status_.ok()) return {};
  for (int i = 0; i < fixed; ++i) {
    if (i > 0) parts.push_back(Comma());
    parts.push_back(Schema(prefix[i], absl::StrCat(place, "/", prefix_key, "/", i), depth + 1));
    parts.push_back(RuleCall("json-space"));
  }
  least = std::max(0, least - fixed);
  if (most >= 0) most -= fixed;
  const bool closed =
      schema.contains(items_key) ? schema[items_key] == false : schema.contains(prefix_key);
  if (closed && least > 0) Fail(absl::StrCat(place, "/minItems"), "there are fewer items");
  if (!closed && most != 0 && status_.ok()) {
    const Json items = schema.contains(items_key) ? schema[items_key] : Json(true);
    const std::string item = NewRule(Schema(items, absl::StrCat(place, "/", items_key), depth + 1));
    const Expression next = Sequence({Comma(), RuleCall(item), RuleCall("json-space")});
    if (fixed > 0) {
      parts.push_back(Repeat(next, least, most));
    } else {
      Expression all = Sequence({RuleCall(item), RuleCall("json-space"),
                                 Repeat(next, std::max(0, least - 1), most < 0 ? -1 : most - 1)});
      parts.push_back(least > 0 ? std::move(all) : Optional(std::move(all)));
    }
  }
  parts.push_back(Literal("]"));
  return Sequence(std::move(parts));
}

}  // namespace espalier
