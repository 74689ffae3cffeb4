#include "ops/operators/expect.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace espalier {
namespace {

std::string Prefix(const InputRef& input) {
  return absl::StrCat(input.op, ": input '", input.name, "' has ");
}

std::string Shape(const Dims& dims) { return ToString(dims); }

}  // namespace

absl::Status OpError(absl::string_view op, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(op, ": ", message));
}

absl::Status ExpectDType(const InputRef& input, std::initializer_list<DType> allowed) {
  std::vector<const char*> names;
  for (DType type : allowed) {
    if (input.type.dtype == type) return absl::OkStatus();
    names.push_back(Name(type));
  }
  return absl::InvalidArgumentError(absl::StrCat(Prefix(input), "type ", Name(input.type.dtype),
                                                 ", expected ", absl::StrJoin(names, " or ")));
}

absl::Status ExpectFloat(const InputRef& input) {
  return ExpectDType(input, {DType::kF32, DType::kBF16, DType::kF16});
}

absl::Status ExpectInteger(const InputRef& input) {
  return ExpectDType(input, {DType::kI32, DType::kI64});
}

absl::Status ExpectSameDType(const InputRef& input, const InputRef& other) {
  if (input.type.dtype == other.type.dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Prefix(input), "type ", Name(input.type.dtype),
                                                 ", expected ", Name(other.type.dtype),
                                                 " like input '", other.name, "'"));
}

absl::Status ExpectSameType(const InputRef& input, const InputRef& other) {
  if (absl::Status status = ExpectSameDType(input, other); !status.ok()) return status;
  if (input.type.dims == other.type.dims) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Prefix(input), "shape ", Shape(input.type.dims),
                                                 ", expected ", Shape(other.type.dims),
                                                 " like input '", other.name, "'"));
}

absl::Status ExpectRank(const InputRef& input, int rank) {
  if (static_cast<int>(input.type.dims.size()) == rank) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Prefix(input), "shape ", Shape(input.type.dims),
                                                 ", expected ", rank, " dimensions"));
}

absl::Status ExpectRankAtLeast(const InputRef& input, int rank) {
  if (static_cast<int>(input.type.dims.size()) >= rank) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Prefix(input), "shape ", Shape(input.type.dims),
                                                 ", expected at least ", rank,
                                                 rank == 1 ? " dimension" : " dimensions"));
}

absl::Status ExpectShape(const InputRef& input, const std::vector<ExpectedDim>& expected,
                         absl::string_view because) {
  const Dims& dims = input.type.dims;
  bool match = dims.size() == expected.size();
  for (size_t i = 0; match && i < dims.size(); ++i) {
    match = expected[i].size < 0 || expected[i].size == dims[i];
  }
  if (match) return absl::OkStatus();
  const std::string wanted =
      absl::StrJoin(expected, ", ", [](std::string* out, const ExpectedDim& dim) {
        absl::StrAppend(out, dim.size < 0 ? dim.name : std::to_string(dim.size));
      });
  return absl::InvalidArgumentError(absl::StrCat(Prefix(input), "shape ", Shape(dims),
                                                 ", expected [", wanted, "]",
                                                 because.empty() ? "" : " because ", because));
}

absl::StatusOr<int> NormalizeAxis(absl::string_view op, absl::string_view attribute, int64_t axis,
                                  int rank) {
  if (rank == 0) {
    return AttributeError(op, attribute, std::to_string(axis),
                          "an input with at least one dimension, found a scalar");
  }
  if (axis < -rank || axis >= rank) {
    return AttributeError(op, attribute, std::to_string(axis),
                          absl::StrCat("a value from ", -rank, " to ", rank - 1,
                                       " because the input has ", rank, " dimensions"));
  }
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

absl::StatusOr<Dims> BroadcastDims(absl::string_view op, const Dims& a, const Dims& b) {
  Dims out(std::max(a.size(), b.size()));
  for (size_t i = 0; i < out.size(); ++i) {  // from the last dimension on
    const int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1) {
      return OpError(op, absl::StrCat("shapes ", Shape(a), " and ", Shape(b),
                                      " do not broadcast: counted from the end, dimension ", i,
                                      " is ", x, " and ", y, ", expected equal sizes or 1"));
    }
    out[out.size() - 1 - i] = x == 1 ? y : x;
  }
  return out;
}

absl::Status AttributeError(absl::string_view op, absl::string_view attribute,
                            absl::string_view found, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": attribute '", attribute, "' is ", found, ", expected ", expected));
}

absl::Status ExpectPositive(absl::string_view op, absl::string_view attribute, int64_t value) {
  if (value > 0) return absl::OkStatus();
  return AttributeError(op, attribute, std::to_string(value), "a positive integer");
}

absl::Status ExpectInts(absl::string_view op, absl::string_view attribute,
                        const std::vector<int64_t>& values, size_t size, int64_t least) {
  bool good = values.size() == size;
  for (int64_t value : values) good = good && value >= least;
  if (good) return absl::OkStatus();
  return AttributeError(op, attribute, ToString(Dims(values)),
                        absl::StrCat(size, " integers of at least ", least));
}

std::vector<int> AddLeadingAxes(const Dims& dims, size_t count, SplitRule* rule) {
  std::vector<int> map(count);
  for (size_t d = 0; d < count; ++d) {
    map[d] = static_cast<int>(rule->axes.size());
    rule->axes.push_back({d == 0 ? "sample" : absl::StrCat("dim", d),
                          d == 0 ? AxisKind::kSample : AxisKind::kAttribute, dims[d]});
  }
  return map;
}

double OperandBytes(const NodeTypes& types) {
  double bytes = 0;
  for (const TensorType& type : types.inputs) {
    if (type.dtype != DType::kInvalid) bytes += static_cast<double>(type.bytes());
  }
  for (const TensorType& type : types.outputs) bytes += static_cast<double>(type.bytes());
  return bytes;
}

}  // namespace espalier
