// The cases on which CUDA kernels are compared with CPU kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/kernel/kernel.h"

namespace espalier::gpu_check {

// How an input is filled.
struct Content {
  enum Kind { kUniform, kPositive, kIntegers, kBits, kGiven, kPacked } kind = kUniform;
  int64_t below = 0;           // kIntegers: in [0, below); kPacked: bits
  std::vector<int64_t> given;  // kGiven: these values; kPacked: inputs of the matrix
};

struct CaseInput {
  TensorType type;  // kInvalid: absent
  Content content;
};

struct Case {
  std::string op;
  std::string name;  // what the case covers; may be empty
  Attributes attributes;
  std::vector<CaseInput> inputs;
  int64_t sum_length = 1;  // terms of the longest sum behind one element
  double slack = 1;        // factor on the tolerance
  // A narrow type in which a library computes results that are stored in f32.
  DType rounded_to = DType::kInvalid;
  bool training = true;
  bool gradient = true;  // if the operator has one
  // Makes the tensors shards of larger ones.
  std::function<void(KernelSpec*)> place;
};

// Returns all cases, for the element types that each operator takes.
std::vector<Case> AllCases();

}  // namespace espalier::gpu_check
