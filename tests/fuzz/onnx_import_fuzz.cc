// Fuzzes ONNX import: any untrusted bytes are a graph or an error. Random byte changes rarely leave
// a valid model, so half of the mutations change its fields.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ops/graph/graph.h"
#include "ops/onnx/cpu_evaluator.h"
#include "ops/onnx/import.h"
#include "ops/operators/register_all.h"
#include "third_party/onnx/onnx.pb.h"

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Random = std::mt19937_64;

size_t Below(Random& random, size_t n) { return n == 0 ? 0 : random() % n; }

void Collect(Message* message, std::vector<Message*>* all) {
  all->push_back(message);
  std::vector<const FieldDescriptor*> fields;
  const Reflection& reflection = *message->GetReflection();
  reflection.ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const int count = field->is_repeated() ? reflection.FieldSize(*message, field) : 0;
    for (int i = 0; i < count; ++i) {
      Collect(reflection.MutableRepeatedMessage(message, field, i), all);
    }
    if (!field->is_repeated()) Collect(reflection.MutableMessage(message, field), all);
  }
}

// Boundary values of sizes, axes and counts.
void SetInteger(Random& random, const FieldDescriptor* field, Message* message) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr int64_t kEdges[] = {0,         1,         2,         3,
                                -1,        -2,        1000,      1000003,
                                1 << 24,   1LL << 31, 1LL << 32, (1LL << 32) + 1,
                                1LL << 62, kMost,     -kMost - 1};
  const int64_t value = kEdges[Below(random, std::size(kEdges))];
  const Reflection& reflection = *message->GetReflection();
  const bool wide = field->cpp_type() == FieldDescriptor::CPPTYPE_INT64;
  const int32_t narrow = static_cast<int32_t>(value);
  const int count = field->is_repeated() ? reflection.FieldSize(*message, field) : 0;
  const int at = static_cast<int>(Below(random, count + 1));
  if (!field->is_repeated()) {
    wide ? reflection.SetInt64(message, field, value) : reflection.SetInt32(message, field, narrow);
  } else if (at == count) {
    wide ? reflection.AddInt64(message, field, value) : reflection.AddInt32(message, field, narrow);
  } else {
    wide ? reflection.SetRepeatedInt64(message, field, at, value)
         : reflection.SetRepeatedInt32(message, field, at, narrow);
  }
}

// Mutates one field: changes a number, adds or removes a repeated element, or clears it.
void Change(Random& random, Message* message) {
  std::vector<const FieldDescriptor*> fields;
  const Reflection& reflection = *message->GetReflection();
  reflection.ListFields(*message, &fields);
  if (fields.empty()) return;
  const FieldDescriptor* field = fields[Below(random, fields.size())];
  const bool integer = field->cpp_type() == FieldDescriptor::CPPTYPE_INT64 ||
                       field->cpp_type() == FieldDescriptor::CPPTYPE_INT32;
  const size_t kind = Below(random, 4);
  if (integer && kind < 3) return SetInteger(random, field, message);
  if (!field->is_repeated()) {
    if (kind == 3) reflection.ClearField(message, field);
    return;
  }
  const int count = reflection.FieldSize(*message, field);
  const int at = static_cast<int>(Below(random, count));
  if (kind == 0) return reflection.RemoveLast(message, field);
  if (kind == 1) return reflection.SwapElements(message, field, at, count - 1);
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    const std::string again = reflection.GetRepeatedString(*message, field, at);
    if (kind == 2) return reflection.AddString(message, field, again);
    reflection.SetRepeatedString(message, field, at, "");
  } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    Message* added = reflection.AddMessage(message, field);
    added->CopyFrom(reflection.GetRepeatedMessage(*message, field, at));
  }
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  espalier::onnx::ModelProto model;
  if (!model.ParseFromArray(data, static_cast<int>(size))) return size;
  Random random(seed);
  for (size_t n = 1 + Below(random, 3); n > 0; --n) {
    std::vector<Message*> messages;
    Collect(&model, &messages);
    Change(random, messages[Below(random, messages.size())]);
  }
  const std::string changed = model.SerializePartialAsString();
  if (changed.size() > max_size) return size;
  std::copy(changed.begin(), changed.end(), data);
  return changed.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace espalier;
  static const OpRegistry* const registry = [] {
    auto* built = new OpRegistry;
    RegisterAllOperators(*built);
    return built;
  }();
  ImportOptions options;
  options.evaluator = CpuEvaluator();
  options.folder = "/nonexistent";
  options.max_constant_bytes = 16 << 20;
  absl::StatusOr<Graph> graph =
      ImportOnnx(*registry, std::string(reinterpret_cast<const char*>(data), size), options);
  if (graph.ok()) (void)BindAndInfer(*registry, 3, &*graph);
  return 0;
}
