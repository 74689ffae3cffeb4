// Schemas of arrays.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/grammar/json_schema_converter.h"

namespace espalier {
namespace {

Expression ItemSeparator() { return Sequence({Literal(","), RuleCall("json-space")}); }

}  // namespace

std::optional<JsonSchemaConverter::Items> JsonSchemaConverter::ItemsOf(const Json& schema,
                                                                       const std::string& place) {
  Items out;
  out.least = Count(schema, "minItems", 0, place);
  out.most = Count(schema, "maxItems", -1, place);
  // Up to draft 2019-09, "items" with a list had the meaning of "prefixItems".
  const bool old = schema.contains("items") && schema["items"].is_array();
  const char* const prefix_key = old ? "items" : "prefixItems";
  const char* const items_key = old ? "additionalItems" : "items";
  if (old && schema.contains("prefixItems")) {
    Fail(absl::StrCat(place, "/items"), "a list of items beside prefixItems is not supported");
  }
  if (!old && schema.contains("additionalItems")) {
    Fail(absl::StrCat(place, "/additionalItems"), "it means something beside a list of items only");
  }
  out.prefix = schema.value(prefix_key, Json::array());
  if (!out.prefix.is_array()) Fail(absl::StrCat(place, "/", prefix_key), "it must be a list");
  const int fixed = static_cast<int>(out.prefix.size());
  if (out.most >= 0 && (out.most < out.least || out.most < fixed)) {
    Fail(absl::StrCat(place, "/maxItems"), "it is less than the items that there must be");
  }
  out.rest = schema.value(items_key, Json(!schema.contains(prefix_key)));
  out.rest_place = absl::StrCat(place, "/", items_key);
  out.prefix_place = absl::StrCat(place, "/", prefix_key);
  if (out.rest == false && out.least > fixed) {
    Fail(absl::StrCat(place, "/minItems"), "there are fewer items");
  }
  out.least = std::max(out.least, fixed);
  return status_.ok() ? std::optional(std::move(out)) : std::nullopt;
}

Expression JsonSchemaConverter::Array(const Json& schema, const std::string& place, int depth) {
  RejectOtherKeywords(schema, place,
                      {"type", "items", "prefixItems", "additionalItems", "minItems", "maxItems",
                       "uniqueItems", "contains", "minContains", "maxContains"});
  const std::optional<Items> items = ItemsOf(schema, place);
  if (!items) return {};
  const bool unique = schema.contains("uniqueItems") && schema["uniqueItems"] != false &&
                      (items->most < 0 || items->most > 1);
  if (unique && schema.contains("contains")) {
    Fail(absl::StrCat(place, "/uniqueItems"), "it is not supported beside contains");
    return {};
  }
  if (unique) return Unique(*items, place);
  if (schema.contains("contains")) return Counted(schema, *items, place);
  std::vector<Expression> parts = {Literal("["), RuleCall("json-space")};
  const int fixed = static_cast<int>(items->prefix.size());
  for (int i = 0; i < fixed; ++i) {
    if (i > 0) parts.push_back(ItemSeparator());
    parts.push_back(Schema(items->prefix[i], absl::StrCat(items->prefix_place, "/", i), depth + 1));
    parts.push_back(RuleCall("json-space"));
  }
  const int least = items->least - fixed;
  const int most = items->most < 0 ? -1 : items->most - fixed;
  if (items->rest != false && most != 0 && status_.ok()) {
    const std::string item = NewRule(Schema(items->rest, items->rest_place, depth + 1));
    const Expression next = Sequence({ItemSeparator(), RuleCall(item), RuleCall("json-space")});
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
