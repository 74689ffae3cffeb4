// Arrays with "uniqueItems" or "contains". One rule for each state of the count.
#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/grammar/json_schema_converter.h"
#include "serving/grammar/json_schema_merge.h"

namespace espalier {
namespace {

constexpr int kMaxUnique = 10;  // values; each set of them is a state
constexpr int kMaxStates = 4'000;

// Item `i`, with the comma before it and the white space after it.
Expression Item(int i, Expression value) {
  std::vector<Expression> parts;
  if (i > 0) parts = {Literal(","), RuleCall("json-space")};
  parts.push_back(std::move(value));
  parts.push_back(RuleCall("json-space"));
  return Sequence(std::move(parts));
}

Expression Brackets(const std::string& inside) {
  return Sequence({Literal("["), RuleCall("json-space"), RuleCall(inside), Literal("]")});
}

}  // namespace

Expression JsonSchemaConverter::Unique(const Items& items, const std::string& place) {
  const std::string here = absl::StrCat(place, "/uniqueItems");
  const Json item = items.rest.is_object() ? Resolved(items.rest, items.rest_place) : items.rest;
  const std::optional<Json> values = FiniteValues(item);
  if (values) {
    RejectOtherKeywords(item, items.rest_place, {"const", "enum", "type", "not"});
    if (item.contains("not") && !ExcludesValues(item)) {
      Fail(here, "it is supported for items of listed values only");
    }
  }
  const int count = values ? static_cast<int>(values->size()) : 0;
  if (!values || !items.prefix.empty() || count > kMaxUnique) {
    Fail(here, absl::StrCat("it is supported where \"items\" is an enum of at most ", kMaxUnique,
                            " values, a constant, boolean or null; leave it out"));
  }
  const int most = items.most < 0 ? count : std::min(items.most, count);
  if (items.least > most) Fail(here, "there are fewer different items than there must be");
  if (!status_.ok()) return {};
  // By the set of values so far: what may follow. Supersets have larger numbers.
  std::vector<std::string> follows(size_t{1} << count);
  for (size_t set = follows.size(); set-- > 0;) {
    const int come = std::popcount(set);
    if (come > most) continue;
    std::vector<Expression> ways;
    if (come >= items.least) ways.push_back(Literal(""));
    for (int v = 0; v < count && come < most; ++v) {
      const size_t with = set | size_t{1} << v;
      if (with == set) continue;
      ways.push_back(Sequence({Item(come, Literal(JsonText((*values)[static_cast<size_t>(v)]))),
                               RuleCall(follows[with])}));
    }
    follows[set] = NewRule(Choice(std::move(ways)));
  }
  return status_.ok() ? Brackets(follows[0]) : Expression();
}

Expression JsonSchemaConverter::Counted(const Json& schema, const Items& items,
                                        const std::string& place) {
  const std::string here = absl::StrCat(place, "/contains");
  const Json& kind = schema["contains"];
  const int least = Count(schema, "minContains", 1, place);
  const int most = Count(schema, "maxContains", -1, place);
  if (most >= 0 && most < least) {
    Fail(absl::StrCat(place, "/maxContains"), "it is less than minContains");
  }
  // Items that do not match; unset if matches are unbounded, since then any item may come.
  std::optional<std::vector<Json>> others;
  if (most >= 0) others = Negated(kind, here);
  if (!status_.ok()) return {};
  // Rules of the items at one index, matching and others; empty: impossible.
  struct Place {
    std::string match, other;
  };
  const auto rule = [&](const std::vector<Json>& schemas, const std::string& at) {
    std::vector<Expression> ways;
    for (const Json& one : schemas) ways.push_back(SharedRule(one, at));
    return ways.empty() || !status_.ok() ? std::string() : NewRule(Choice(std::move(ways)));
  };
  const auto place_of = [&](const Json& item, const std::string& at) {
    const auto with = [&](const std::vector<Json>& more) {
      std::vector<Json> all;
      for (const Json& one : more) {
        if (auto both = TryMerged(item, one, at)) all.push_back(*std::move(both));
      }
      return rule(all, at);
    };
    Place out;
    out.match = with({kind});
    out.other = others ? with(*others) : rule({item}, at);
    return out;
  };
  const int fixed = static_cast<int>(items.prefix.size());
  std::vector<Place> places;
  for (int i = 0; i < fixed && status_.ok(); ++i) {
    places.push_back(
        place_of(items.prefix[static_cast<size_t>(i)], absl::StrCat(items.prefix_place, "/", i)));
  }
  if (items.rest != false && status_.ok()) places.push_back(place_of(items.rest, items.rest_place));
  const bool open = items.rest != false && items.most < 0;
  // Items are counted up to `last`, matches up to `top`.
  const int last = items.rest == false ? fixed
                   : items.most >= 0   ? items.most
                                       : std::max({1, items.least, fixed});
  const int top = most >= 0 ? most : least;
  if (static_cast<int64_t>(last + 1) * (top + 1) > kMaxStates) {
    Fail(here, "it and the array's bounds are too large together");
  }
  if (!status_.ok()) return {};
  // by the number of matches so far
  std::vector<std::string> follows(static_cast<size_t>(top) + 1);
  for (int i = last; i >= 0; --i) {
    std::vector<std::string> now(follows.size());
    for (int come = top; come >= 0 && status_.ok(); --come) {
      std::vector<Expression> ways;
      if (i >= items.least && come >= least) ways.push_back(Literal(""));
      const auto at = [](std::vector<std::string>& of, int n) -> std::string& {
        return of[static_cast<size_t>(n)];
      };
      const auto then = [&](const std::string& item, const std::string& behind) {
        if (item.empty() || behind.empty()) return;
        ways.push_back(Sequence({Item(i, RuleCall(item)), RuleCall(behind)}));
      };
      if (i < last) {
        const Place& here_is = places[static_cast<size_t>(std::min(i, fixed))];
        if (come < top) then(here_is.match, at(follows, come + 1));
        then(here_is.other, at(follows, come));
      } else if (open && come < top) {
        then(places.back().match, at(now, come + 1));
      }
      if (ways.empty()) continue;
      Expression rest = Choice(std::move(ways));
      if (i == last && open && !places.back().other.empty()) {
        rest = Sequence({Repeat(Item(i, RuleCall(places.back().other)), 0), std::move(rest)});
      }
      at(now, come) = NewRule(std::move(rest));
    }
    follows = std::move(now);
  }
  if (follows[0].empty()) Fail(here, "no array has as many such items");
  return status_.ok() ? Brackets(follows[0]) : Expression();
}

}  // namespace espalier
