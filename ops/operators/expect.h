// Checks for OpDef::infer, with one wording for all operators:
//   linear: input 'weight' has shape [3, 4], expected [out, 128] because 'x' ends in 128
// Each returns OK or InvalidArgument; use with ESPALIER_RETURN_IF_ERROR, in an order in which no
// check reads a dimension that an earlier one has not established.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ops/schema/op_def.h"

#ifndef ESPALIER_RETURN_IF_ERROR
#define ESPALIER_RETURN_IF_ERROR(expression)                                \
  do {                                                                      \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)
#endif

namespace espalier {

// InvalidArgument "<op>: <message>".
absl::Status OpError(absl::string_view op, absl::string_view message);

// One input of the node under inference: `op` and `name` are for the message.
struct InputRef {
  absl::string_view op;
  absl::string_view name;
  const TensorType& type;
};

absl::Status ExpectDType(const InputRef& input, std::initializer_list<DType> allowed);
absl::Status ExpectFloat(const InputRef& input);    // f32, bf16, f16
absl::Status ExpectInteger(const InputRef& input);  // i32, i64

// The input has the element type of another one.
absl::Status ExpectSameDType(const InputRef& input, const InputRef& other);

// The input has type and shape of another one.
absl::Status ExpectSameType(const InputRef& input, const InputRef& other);

absl::Status ExpectRank(const InputRef& input, int rank);
absl::Status ExpectRankAtLeast(const InputRef& input, int rank);

// A dimension that is known (128) or free and only named ("out").
struct ExpectedDim {
  ExpectedDim(int64_t size) : size(size) {}
  ExpectedDim(const char* name) : name(name) {}
  int64_t size = -1;
  std::string name;
};

// The input has exactly these dimensions. `because` completes "... because <because>"; may be
// empty.
absl::Status ExpectShape(const InputRef& input, const std::vector<ExpectedDim>& expected,
                         absl::string_view because = "");

// `axis` counted from the end if negative, in [0, rank).
absl::StatusOr<int> NormalizeAxis(absl::string_view op, absl::string_view attribute, int64_t axis,
                                  int rank);

// numpy's broadcasting of two shapes; InvalidArgument names both.
absl::StatusOr<Dims> BroadcastDims(absl::string_view op, const Dims& a, const Dims& b);

// "linear: attribute 'groups' is 0, expected <expected>".
absl::Status AttributeError(absl::string_view op, absl::string_view attribute,
                            absl::string_view found, absl::string_view expected);

absl::Status ExpectPositive(absl::string_view op, absl::string_view attribute, int64_t value);

// A list attribute of exactly `size` values, each at least `least`.
absl::Status ExpectInts(absl::string_view op, absl::string_view attribute,
                        const std::vector<int64_t>& values, size_t size, int64_t least);

// Axes "sample", "dim1", "dim2", ... for dimensions 0 to count - 1 of `dims`, appended to
// rule->axes. Returns the map dimension -> axis.
std::vector<int> AddLeadingAxes(const Dims& dims, size_t count, SplitRule* rule);

// The bytes of all operands.
double OperandBytes(const NodeTypes& types);

}  // namespace espalier
