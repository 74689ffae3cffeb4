// Human-readable numbers and operators, shared by the text table, the HTML page and the plan diff.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "espalier/v1/plan.pb.h"

namespace espalier {

// "12.3 GiB", "512 B"; "unknown" if it is not a finite number.
std::string ReadableBytes(double bytes);

// "1.25 s", "12.34 ms", "5.0 us"; "unknown" if it is not a finite number.
std::string ReadableSeconds(double seconds);

// With a sign, for differences: "+12.3 GiB", "-4.0 us".
std::string SignedBytes(double bytes);
std::string SignedSeconds(double seconds);

// "12,345".
std::string ReadableCount(int64_t count);

// "83 %", "0.4 %", of a fraction; "unknown" if it is not a finite number.
std::string ReadablePercent(double fraction);

// Peak of the device that needs most; 0 if there is no device.
int64_t PeakBytes(const v1::Prediction& prediction);

// {0, 1, 2, 5} -> "0-2,5". Keeps the order, which assigns shards to devices.
std::string NumberRanges(const std::vector<int>& numbers);

// Splits a dotted name at its first component that is a number of at most six digits without
// leading zeros: "layers.3.mlp" -> {"layers.", 3, ".mlp"}; without one: {name, -1, ""}.
struct NumberedName {
  std::string prefix;
  int number = -1;
  std::string suffix;

  std::string Pattern() const { return number < 0 ? prefix : prefix + "*" + suffix; }
};
NumberedName SplitNumber(const std::string& name);

// "out×2 sample×4", or "whole".
std::string SplitText(const v1::OperatorPlan& op);

// "all-to-all".
std::string KindText(v1::ParallelOperator::Kind kind);

// "CPU", "CUDA".
std::string KindText(v1::Device::Kind kind);

// A pipeline stage: consecutive operators on devices that no other stage uses.
struct StageRow {
  std::vector<int> devices;    // ascending
  std::vector<int> operators;  // indices into Plan.operators
  double seconds = 0;          // sum of predicted_seconds
};
std::vector<StageRow> StageRows(const v1::Plan& plan);  // a single row: no pipeline

// Totals of a device's offload (Plan.memory_plans).
struct FitTotal {
  int swaps = 0, recomputed = 0;
  double copied_bytes = 0, host_bytes = 0, added_seconds = 0;
};
FitTotal FitOf(const v1::MemoryPlan& memory);
// over all devices; added_seconds is the largest of any device
FitTotal FitOf(const v1::Plan& plan);

// Operators that differ only in the layer number of their name.
struct OperatorRow {
  NumberedName name;         // of the first one
  std::vector<int> numbers;  // ascending; empty if the name has none
  std::string op;
  std::string split;
  std::vector<int> devices;
  double seconds = 0;          // sum of predicted_seconds
  std::vector<int> operators;  // indices into Plan.operators

  std::string Name() const;  // "layers.0-7.mlp"
  std::string Devices() const { return NumberRanges(devices); }
  int count() const { return static_cast<int>(operators.size()); }
};
std::vector<OperatorRow> GroupOperators(const v1::Plan& plan);  // by first appearance

// Totals per step of the layout conversions of one kind and degree.
struct KindTotal {
  int edges = 0;
  double bytes = 0;
};
std::map<std::string, KindTotal> TotalByKind(const v1::Plan& plan);  // key "combine ×4"
std::string KindAndDegree(const v1::ParallelOperator& op);           // "combine ×4"

}  // namespace espalier
