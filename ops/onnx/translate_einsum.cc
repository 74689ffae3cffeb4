// Einsum, two operands at a time: each pair is one matrix product.
#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "ops/onnx/translator.h"

namespace espalier::onnx_import {
namespace {

// A value whose dimensions are labeled with letters.
struct Term {
  ValueId value = kNoValue;
  std::string labels;
};

bool Has(const std::string& labels, char c) { return labels.find(c) != std::string::npos; }

// Sums over the labels that are not in `keep`.
Term Without(Translator& t, Term term, const std::string& keep) {
  std::vector<int64_t> axes;
  std::string left;
  for (size_t i = 0; i < term.labels.size(); ++i) {
    if (Has(keep, term.labels[i])) {
      left += term.labels[i];
    } else {
      axes.push_back(static_cast<int64_t>(i));
    }
  }
  if (axes.empty()) return term;
  return {t.Reduce("reduce_sum", term.value, axes, false), left};
}

ValueId Arrange(Translator& t, const Term& term, const std::string& labels) {
  std::vector<int64_t> perm;
  for (char c : labels) perm.push_back(static_cast<int64_t>(term.labels.find(c)));
  return t.Transpose(term.value, perm);
}

// Sums over labels that occur in one operand only and not in `keep`.
Term Multiply(Translator& t, Term a, Term b, const std::string& keep) {
  a = Without(t, a, keep + b.labels);
  b = Without(t, b, keep + a.labels);
  if (!t.ok()) return a;
  std::map<char, int64_t> size;
  for (const Term* term : {&a, &b}) {
    for (size_t i = 0; i < term->labels.size(); ++i) {
      int64_t& known = size.emplace(term->labels[i], 1).first->second;
      const int64_t here = t.DimsOf(term->value)[i];
      if (known != here && known != 1 && here != 1) {
        t.Fail(absl::StrCat("label '", std::string(1, term->labels[i]), "' has the sizes ", known,
                            " and ", here));
        return a;
      }
      known = std::max(known, here);
    }
  }
  std::string batch, left, right, sum;
  for (char c : a.labels) {
    const bool both = Has(b.labels, c);
    (both ? Has(keep, c) ? batch : sum : left) += c;
  }
  for (char c : b.labels) {
    if (!Has(a.labels, c)) right += c;
  }
  const auto matrix = [&](const Term& term, const std::string& rows, const std::string& columns) {
    const ValueId v = Arrange(t, term, batch + rows + columns);
    Dims dims;
    for (size_t i = 0; i < batch.size(); ++i) dims.push_back(t.DimsOf(v)[i]);
    size_t at = batch.size();
    for (const std::string& part : {rows, columns}) {
      int64_t product = 1;
      for (size_t i = 0; i < part.size(); ++i, ++at) product *= t.DimsOf(v)[at];
      dims.push_back(product);
    }
    return t.Reshape(v, dims);
  };
  const ValueId product = t.Emit("matmul", {matrix(a, left, sum), matrix(b, sum, right)});
  Dims dims;
  for (char c : batch + left + right) dims.push_back(size[c]);
  return {t.Reshape(product, dims), batch + left + right};
}

void Einsum(Translator& t) {
  std::string equation = t.String("equation", "");
  equation.erase(std::remove(equation.begin(), equation.end(), ' '), equation.end());
  if (equation.find("...") != std::string::npos)
    return t.Refuse("'...' in the equation is not taken");
  const std::vector<std::string> sides = absl::StrSplit(equation, "->");
  const std::vector<std::string> operands = absl::StrSplit(sides[0], ',');
  if (sides.size() > 2 || static_cast<int>(operands.size()) != t.NumInputs()) {
    return t.Fail(
        absl::StrCat("attribute 'equation' is '", equation, "' for ", t.NumInputs(), " inputs"));
  }
  std::map<char, int> uses;
  std::vector<Term> terms;
  for (size_t i = 0; i < operands.size(); ++i) {
    terms.push_back({t.Required(static_cast<int>(i)), operands[i]});
    if (!t.ok()) return;
    if (t.RankOf(terms.back().value) != static_cast<int>(operands[i].size())) {
      return t.Fail(absl::StrCat("input ", i, " has shape ", ToString(t.DimsOf(terms.back().value)),
                                 ", the equation calls it '", operands[i], "'"));
    }
    for (char c : operands[i]) {
      if (std::count(operands[i].begin(), operands[i].end(), c) > 1) {
        return t.Refuse("diagonals (a label twice in one operand) are not taken");
      }
      ++uses[c];
    }
  }
  std::string result = sides.size() == 2 ? sides[1] : "";
  if (sides.size() == 1) {
    for (const auto& [c, n] : uses) result += n == 1 ? std::string(1, c) : "";
  }
  for (char c : result) {
    if (uses.count(c) == 0 || std::count(result.begin(), result.end(), c) > 1) {
      return t.Fail(absl::StrCat("attribute 'equation' is '", equation, "'"));
    }
  }
  Term all = terms[0];
  for (size_t i = 1; i < terms.size() && t.ok(); ++i) {
    std::string keep = result;
    for (size_t j = i + 1; j < terms.size(); ++j) keep += terms[j].labels;
    all = Multiply(t, all, terms[i], keep);
  }
  all = Without(t, all, result);
  if (t.ok()) t.Return(Arrange(t, all, result));
}

}  // namespace

void RegisterEinsumTranslations(TranslationTable& table) { table["Einsum"] = Einsum; }

}  // namespace espalier::onnx_import
