#include "ops/onnx/recurrent_activations.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/kernel/recurrent.h"

namespace espalier::onnx_import {
namespace {

using recurrent::kFunctions;
using recurrent::kNumFunctions;

struct Spelling {
  const char* name;
  bool alpha, beta;  // whether the function has it
};
// By recurrent::Function.
constexpr Spelling kSpellings[] = {
    {"Tanh", false, false},     {"Sigmoid", false, false},   {"Relu", false, false},
    {"Affine", true, true},     {"LeakyRelu", true, false},  {"ThresholdedRelu", true, false},
    {"ScaledTanh", true, true}, {"HardSigmoid", true, true}, {"Elu", true, false},
    {"Softsign", false, false}, {"Softplus", false, false}};
static_assert(std::size(kSpellings) == kNumFunctions);

// Index by Function; kNumFunctions: none.
int FunctionOf(const std::string& name) {
  int f = 0;
  while (f < kNumFunctions &&
         absl::AsciiStrToLower(name) != absl::AsciiStrToLower(kSpellings[f].name) &&
         name != kFunctions[f].name) {
    ++f;
  }
  return f;
}

// One number per function: the next of `given` if the function has one.
absl::Status AssignParameters(const char* attribute, const std::vector<int>& functions,
                              const std::vector<double>& given, bool Spelling::*has,
                              float recurrent::FunctionInfo::*fallback, std::vector<double>* all) {
  if (given.empty()) return absl::OkStatus();
  size_t next = 0;
  for (int f : functions) {
    const bool takes = kSpellings[f].*has;
    if (takes && next == given.size()) next = given.size() + 1;
    all->push_back(takes && next < given.size() ? given[next++] : kFunctions[f].*fallback);
  }
  if (next == given.size()) return absl::OkStatus();
  const auto takers =
      std::count_if(functions.begin(), functions.end(), [&](int f) { return kSpellings[f].*has; });
  return absl::InvalidArgumentError(absl::StrCat("attribute '", attribute, "' has ", given.size(),
                                                 " numbers, expected ", takers,
                                                 ", one for each of 'activations' that takes one"));
}

}  // namespace

absl::StatusOr<RecurrentActivations> ReadActivations(const std::vector<std::string>& names,
                                                     const std::vector<double>& alpha,
                                                     const std::vector<double>& beta) {
  RecurrentActivations read;
  std::vector<int> functions;
  std::vector<std::string> ours;
  for (const std::string& name : names) {
    functions.push_back(FunctionOf(name));
    if (functions.back() == kNumFunctions) {
      std::vector<std::string> known;
      for (const Spelling& spelling : kSpellings) known.push_back(spelling.name);
      return absl::InvalidArgumentError(absl::StrCat("attribute 'activations' names '", name,
                                                     "', expected ", absl::StrJoin(known, ", ")));
    }
    ours.push_back(kFunctions[functions.back()].name);
  }
  read.names = absl::StrJoin(ours, ",");
  absl::Status status = AssignParameters("activation_alpha", functions, alpha, &Spelling::alpha,
                                         &recurrent::FunctionInfo::alpha, &read.alpha);
  status.Update(AssignParameters("activation_beta", functions, beta, &Spelling::beta,
                                 &recurrent::FunctionInfo::beta, &read.beta));
  if (!status.ok()) return status;
  return read;
}

OnnxActivations WriteActivations(const RecurrentActivations& activations) {
  OnnxActivations written;
  const std::vector<std::string> names = recurrent::SplitNames(activations.names);
  for (size_t i = 0; i < names.size(); ++i) {
    const int f = FunctionOf(names[i]);
    written.names.push_back(f == kNumFunctions ? names[i] : kSpellings[f].name);
    if (f == kNumFunctions) continue;
    if (kSpellings[f].alpha && i < activations.alpha.size()) {
      written.alpha.push_back(activations.alpha[i]);
    }
    if (kSpellings[f].beta && i < activations.beta.size()) {
      written.beta.push_back(activations.beta[i]);
    }
  }
  return written;
}

}  // namespace espalier::onnx_import
