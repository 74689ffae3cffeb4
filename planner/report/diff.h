// What `espalier plan diff` says: in what one plan differs from another.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "espalier/v1/plan.pb.h"

namespace espalier {

// An operator that is in one plan only, or whose choice differs. Of the plan that lacks it the
// fields are empty.
struct OperatorChange {
  enum Kind { kOnlyInA, kOnlyInB, kChanged };
  struct Side {
    std::string op;
    std::string split;  // "sample×4", "whole"
    std::vector<int> devices;
    double seconds = 0;  // predicted, forward and backward
    bool operator==(const Side&) const = default;
  };
  Kind kind = kChanged;
  std::string node;
  Side a, b;
  bool operator==(const OperatorChange&) const = default;
};

// A device, by its index in the plans. Empty text: the plan has no device of that index.
struct DeviceChange {
  int index = 0;
  std::string a, b;  // "CUDA NVIDIA H200, 139.8 GiB, 5e+13 FLOP/s, 4.2e+12 B/s"
  bool operator==(const DeviceChange&) const = default;
};

// Changes of layout of one kind and degree, on edges (tensor and consumer) that one plan has and
// the other has not, and on those that both have but that move other amounts.
struct ParallelChange {
  std::string kind;          // "combine ×4"
  int removed = 0;           // edges of A only
  int added = 0;             // edges of B only
  int altered = 0;           // edges of both
  double removed_bytes = 0;  // per step
  double added_bytes = 0;
  double altered_bytes = 0;  // those of B less those of A
  bool operator==(const ParallelChange&) const = default;
};

// A predicted number of both plans, whether it differs or not.
struct NumberPair {
  enum Unit { kSeconds, kBytes };
  std::string name;  // "step"
  Unit unit = kSeconds;
  double a = 0, b = 0;
  bool operator==(const NumberPair&) const = default;
};

// What is compared as it is written: seeds have more digits than a double.
struct TextPair {
  std::string name;
  std::string a, b;
  bool operator==(const TextPair&) const = default;
};

// The alternative of that name, where a plan lists it.
struct AlternativeChange {
  struct Side {
    double step_seconds = 0;
    bool fits = true;  // false: refused, for whatever reason
    bool operator==(const Side&) const = default;
  };
  std::string name;
  std::optional<Side> a, b;
  bool operator==(const AlternativeChange&) const = default;
};

struct PlanDiff {
  std::vector<TextPair> identity;  // graph, format: only what differs
  std::vector<TextPair> step;      // stages, micro-batches, ZeRO, swaps ...: only what differs
  int64_t batch_a = 0, batch_b = 0;
  std::vector<DeviceChange> devices;      // only what differs, by index
  std::vector<OperatorChange> operators;  // only what differs, in the order of A, then of B
  int operators_a = 0, operators_b = 0;
  // Operators that are split and placed alike in both, but predicted to take another time.
  int retimed = 0;
  double retimed_seconds = 0;                   // sum of the differences, B less A
  std::vector<ParallelChange> parallel;         // only what differs
  std::vector<NumberPair> prediction;           // all of them
  std::vector<AlternativeChange> alternatives;  // only what differs
  std::vector<TextPair> search;                 // settings and outcome: only what differs

  bool equal() const;  // nothing differs
};

// Plans may be of different graphs. How long the searches took is not compared: it is another one
// each time.
PlanDiff DiffPlans(const v1::Plan& a, const v1::Plan& b);

// A text table like that of RenderPlan; one line if the plans are equal. Repeated layers that
// change in the same way share a line. The names tell the plans apart: files, jobs.
std::string RenderPlanDiff(const PlanDiff& diff, absl::string_view name_a,
                           absl::string_view name_b);

// The same as JSON, indented, with the names of the fields above. Text that is no UTF-8 gets
// U+FFFD, numbers that JSON cannot write are null.
std::string PlanDiffToJson(const PlanDiff& diff, absl::string_view name_a,
                           absl::string_view name_b);

}  // namespace espalier
