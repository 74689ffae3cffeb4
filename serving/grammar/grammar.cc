#include "serving/grammar/grammar.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

CodePoints Merged(CodePoints points) {
  std::sort(points.begin(), points.end());
  CodePoints out;
  for (const auto& [low, high] : points) {
    if (!out.empty() && low <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, high);
    } else {
      out.emplace_back(low, high);
    }
  }
  return out;
}

}  // namespace

Expression Literal(absl::string_view bytes) {
  return {.kind = Expression::kLiteral, .text = std::string(bytes)};
}

Expression OneOf(CodePoints points) {
  static const CodePoints kScalars = {{0, 0xD7FF}, {0xE000, kLastCodePoint}};
  return {.kind = Expression::kClass, .points = Intersect(Merged(std::move(points)), kScalars)};
}

Expression Sequence(std::vector<Expression> parts) {
  if (parts.size() == 1) return std::move(parts[0]);
  return {.kind = Expression::kSequence, .parts = std::move(parts)};
}

Expression Choice(std::vector<Expression> parts) {
  if (parts.size() == 1) return std::move(parts[0]);
  return {.kind = Expression::kChoice, .parts = std::move(parts)};
}

Expression Repeat(Expression part, int least, int most) {
  Expression out{.kind = Expression::kRepeat, .least = least, .most = most};
  out.parts.push_back(std::move(part));
  return out;
}

Expression Optional(Expression part) { return Repeat(std::move(part), 0, 1); }

Expression RuleCall(absl::string_view name) {
  return {.kind = Expression::kRule, .text = std::string(name)};
}

absl::Status GrammarBudget::ChargeParts(int64_t count) {
  parts -= count;
  if (parts >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("all together is made of more than ",
                                                 GrammarBudget().parts,
                                                 " alternatives and characters; make it smaller"));
}

int64_t CountParts(const Expression& e) {
  int64_t count = 1;
  for (const Expression& part : e.parts) count += CountParts(part);
  return count;
}

CodePoints Complement(CodePoints points) {
  CodePoints out;
  uint32_t next = 0;
  for (const auto& [low, high] : Merged(std::move(points))) {
    if (low > next) out.emplace_back(next, low - 1);
    next = high + 1;
  }
  if (next <= kLastCodePoint) out.emplace_back(next, kLastCodePoint);
  return out;
}

CodePoints Intersect(const CodePoints& a, const CodePoints& b) {
  CodePoints out;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const uint32_t low = std::max(a[i].first, b[j].first);
    const uint32_t high = std::min(a[i].second, b[j].second);
    if (low <= high) out.emplace_back(low, high);
    if (a[i].second < b[j].second) {
      ++i;
    } else {
      ++j;
    }
  }
  return out;
}

Expression ShortWhitespace() {
  constexpr int kMost = 4;
  return Repeat(OneOf({{' ', ' '}, {'\n', '\n'}, {'\r', '\r'}, {'\t', '\t'}}), 0, kMost);
}

namespace {

void Rename(const std::string& prefix, bool share_json, Expression* e) {
  if (e->kind == Expression::kRule && !(share_json && absl::StartsWith(e->text, "json-"))) {
    e->text = prefix + e->text;
  }
  for (Expression& part : e->parts) Rename(prefix, share_json, &part);
}

}  // namespace

Expression ImportRules(Grammar other, const std::string& prefix, bool share_json,
                       Grammar* grammar) {
  for (auto& [name, rule] : other.rules) {
    Rename(prefix, share_json, &rule);
    const bool shared = share_json && absl::StartsWith(name, "json-");
    grammar->rules.try_emplace(shared ? name : prefix + name, std::move(rule));
  }
  return RuleCall(prefix + other.root);
}

void AppendUtf8(uint32_t point, std::string* out) {
  const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (point < 0x80) {
    put(point);
  } else if (point < 0x800) {
    put(0xC0 | point >> 6);
    put(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    put(0xE0 | point >> 12);
    put(0x80 | (point >> 6 & 0x3F));
    put(0x80 | (point & 0x3F));
  } else {
    put(0xF0 | point >> 18);
    put(0x80 | (point >> 12 & 0x3F));
    put(0x80 | (point >> 6 & 0x3F));
    put(0x80 | (point & 0x3F));
  }
}

uint32_t TakeUtf8(absl::string_view text, size_t* at) {
  const uint8_t lead = static_cast<uint8_t>(text[(*at)++]);
  if (lead < 0x80) return lead;
  const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  uint32_t point = lead & (0x3F >> more);
  for (int i = 0; i < more && *at < text.size(); ++i) {
    point = point << 6 | (static_cast<uint8_t>(text[(*at)++]) & 0x3F);
  }
  return point;
}

}  // namespace espalier
