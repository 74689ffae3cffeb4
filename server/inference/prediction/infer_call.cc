#include "server/inference/prediction/infer_call.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace espalier {
namespace {

constexpr std::pair<DType, const char*> kDatatypes[] = {
    {DType::kBool, "BOOL"}, {DType::kU8, "UINT8"}, {DType::kI8, "INT8"},  {DType::kI32, "INT32"},
    {DType::kI64, "INT64"}, {DType::kF16, "FP16"}, {DType::kF32, "FP32"}, {DType::kBF16, "BF16"},
};
constexpr int64_t kMaxExamples = int64_t{1} << 40;

// "FP32[-1, 8, 8]"
std::string TypeText(const TensorType& example) {
  return absl::StrCat(
      DatatypeOf(example.dtype), "[-1",
      absl::StrJoin(example.dims, "",
                    [](std::string* out, int64_t dim) { absl::StrAppend(out, ", ", dim); }),
      "]");
}

std::string NamesOf(const std::vector<GraphTensorType>& tensors) {
  return absl::StrJoin(tensors, ", ", [](std::string* out, const GraphTensorType& tensor) {
    absl::StrAppend(out, "'", tensor.name, "' ", TypeText(tensor.example));
  });
}

absl::StatusOr<size_t> Find(const std::vector<GraphTensorType>& tensors, const char* what,
                            const std::string& name) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name == name) return i;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the model has no ", what, " '", name.substr(0, 100), "'; it has ", NamesOf(tensors)));
}

// REQUIRES: the tensor has the input's type and bytes.
absl::Status CheckIntegers(const GraphTensorType& wanted, const InferTensor& given) {
  const auto size = SizeOf(wanted.example.dtype);
  for (const AcceptedIntegers& accepted : wanted.accepted) {
    for (size_t i = 0; i < given.data.size() / size; ++i) {
      int64_t value = 0;
      if (wanted.example.dtype == DType::kI32) {
        int32_t narrow = 0;
        std::memcpy(&narrow, given.data.data() + i * size, size);
        value = narrow;
      } else {
        std::memcpy(&value, given.data.data() + i * size, size);
      }
      if (value >= accepted.low && value <= accepted.high) continue;
      const auto each = static_cast<size_t>(wanted.example.num_elements());
      return absl::InvalidArgumentError(absl::StrCat(
          "input '", given.name, "': example ", i / each,
          each == 1 ? "" : absl::StrCat(", element ", i % each), " is ", value, "; accepted are ",
          accepted.low, " to ", accepted.high, ", by ", accepted.reader));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckInput(const GraphTensorType& wanted, const InferTensor& given) {
  const bool fits =
      given.datatype == DatatypeOf(wanted.example.dtype) &&
      given.shape.size() == wanted.example.dims.size() + 1 &&
      std::equal(given.shape.begin() + 1, given.shape.end(), wanted.example.dims.begin());
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrCat("input '", given.name, "' is ", given.datatype.substr(0, 100), "[",
                     absl::StrJoin(given.shape, ", "), "]; the model takes ",
                     TypeText(wanted.example), ", where -1 counts the examples"));
  }
  if (given.shape[0] < 1 || given.shape[0] > kMaxExamples) {
    return absl::InvalidArgumentError(absl::StrCat("input '", given.name, "' has ", given.shape[0],
                                                   " examples; give at least one"));
  }
  int64_t bytes = 0;
  const bool overflows = __builtin_mul_overflow(given.shape[0], wanted.example.bytes(), &bytes);
  if (overflows || bytes != static_cast<int64_t>(given.data.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("input '", given.name, "': ", given.data.size(), " bytes were given; ",
                     given.datatype, "[", absl::StrJoin(given.shape, ", "), "] has ",
                     overflows ? "more than 2^63" : absl::StrCat(bytes)));
  }
  if (wanted.example.dtype == DType::kBool) {
    const bool good =
        std::all_of(given.data.begin(), given.data.end(), [](char c) { return c == 0 || c == 1; });
    if (!good) {
      return absl::InvalidArgumentError(
          absl::StrCat("input '", given.name, "' is BOOL and has bytes that are neither 0 nor 1"));
    }
  }
  return CheckIntegers(wanted, given);
}

}  // namespace

std::string DatatypeOf(DType dtype) {
  for (const auto& [known, name] : kDatatypes) {
    if (known == dtype) return name;
  }
  return "";
}

absl::StatusOr<DType> DTypeOfDatatype(const std::string& datatype) {
  std::vector<std::string> names;
  for (const auto& [dtype, name] : kDatatypes) {
    if (name == datatype) return dtype;
    names.push_back(name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("datatype '", datatype.substr(0, 100),
                   "' is none that graphs have: ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<CheckedCall> CheckCall(const GraphSignature& signature, InferCall call) {
  CheckedCall checked;
  checked.inputs.resize(signature.inputs.size());
  std::vector<bool> seen(signature.inputs.size(), false);
  std::string first;
  for (InferTensor& given : call.inputs) {
    const absl::StatusOr<size_t> input = Find(signature.inputs, "input", given.name);
    if (!input.ok()) return input.status();
    if (seen[*input]) {
      return absl::InvalidArgumentError(absl::StrCat("input '", given.name, "' is given twice"));
    }
    seen[*input] = true;
    if (absl::Status s = CheckInput(signature.inputs[*input], given); !s.ok()) return s;
    if (checked.examples > 0 && given.shape[0] != checked.examples) {
      return absl::InvalidArgumentError(
          absl::StrCat("input '", given.name, "' has ", given.shape[0], " examples, input '", first,
                       "' ", checked.examples, "; they must be as many"));
    }
    checked.examples = given.shape[0];
    first = given.name;
    checked.inputs[*input] = std::move(given.data);
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    if (seen[i]) continue;
    const GraphTensorType& missing = signature.inputs[i];
    return absl::InvalidArgumentError(
        absl::StrCat("input '", missing.name, "' is missing: ", TypeText(missing.example)));
  }
  for (const std::string& name : call.outputs) {
    const absl::StatusOr<size_t> output = Find(signature.outputs, "output", name);
    if (!output.ok()) return output.status();
    if (std::find(checked.outputs.begin(), checked.outputs.end(), *output) !=
        checked.outputs.end()) {
      return absl::InvalidArgumentError(absl::StrCat("output '", name, "' is asked for twice"));
    }
    checked.outputs.push_back(*output);
  }
  for (size_t o = 0; call.outputs.empty() && o < signature.outputs.size(); ++o) {
    checked.outputs.push_back(o);
  }
  return checked;
}

absl::Status UnknownParameter(const std::string& name) {
  return absl::InvalidArgumentError(absl::StrCat(
      "parameter '", name.substr(0, 100),
      "' is not known here; accepted for requests: timeout (microseconds), over HTTP "
      "also binary_data_output; for tensors over HTTP: binary_data_size, binary_data"));
}

std::vector<InferTensor> OutputsOf(const GraphSignature& signature,
                                   const std::vector<size_t>& wanted, int64_t examples,
                                   std::vector<std::string> values) {
  std::vector<InferTensor> outputs;
  for (const size_t o : wanted) {
    const GraphTensorType& type = signature.outputs[o];
    InferTensor tensor{type.name, DatatypeOf(type.example.dtype), {examples}, std::move(values[o])};
    tensor.shape.insert(tensor.shape.end(), type.example.dims.begin(), type.example.dims.end());
    outputs.push_back(std::move(tensor));
  }
  return outputs;
}

}  // namespace espalier
