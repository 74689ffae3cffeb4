#include "server/recordings/diff_runs.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/sha256.h"

namespace espalier {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::TextFormat;

constexpr size_t kMostShown = 120;  // characters of a value
constexpr char kAbsent[] = "not set";
constexpr char kUnknown[] = "not recorded";

std::string Shortened(std::string text) {
  if (text.size() <= kMostShown) return text;
  return absl::StrCat(text.substr(0, kMostShown), "...");
}

class Differences {
 public:
  explicit Differences(v1::DiffRunsReply* reply) : reply_(*reply) {}

  void Add(const std::string& field, std::string a, std::string b) {
    v1::RunDifference& difference = *reply_.add_differences();
    difference.set_field(field);
    difference.set_a(Shortened(std::move(a)));
    difference.set_b(Shortened(std::move(b)));
  }
  void Compare(const std::string& field, const std::string& a, const std::string& b) {
    if (a != b) Add(field, a, b);
  }
  // Empty texts are of what was not recorded.
  void CompareKnown(const std::string& field, const std::string& a, const std::string& b) {
    if (a != b) Add(field, a.empty() ? kUnknown : a, b.empty() ? kUnknown : b);
  }

  // All fields of two messages of the same type, which may be unset.
  void CompareFields(const std::string& prefix, const Message& a, const Message& b) {
    const google::protobuf::Descriptor* type = a.GetDescriptor();
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor* field = type->field(i);
      const std::string name = absl::StrCat(prefix, ".", std::string(field->name()));
      if (field->is_map()) {
        CompareMaps(name, a, b, field);
      } else if (field->is_repeated()) {
        CompareLists(name, a, b, field);
      } else {
        CompareOne(name, a, b, field);
      }
    }
  }

 private:
  static std::string Text(const Message& message, const FieldDescriptor* field, int index) {
    std::string text;
    TextFormat::PrintFieldValueToString(message, field, index, &text);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      const google::protobuf::Reflection* reflection = message.GetReflection();
      const Message& value = index < 0 ? reflection->GetMessage(message, field)
                                       : reflection->GetRepeatedMessage(message, field, index);
      text = value.ShortDebugString();
    }
    return text;
  }

  void CompareOne(const std::string& name, const Message& a, const Message& b,
                  const FieldDescriptor* field) {
    const google::protobuf::Reflection* reflection = a.GetReflection();
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      // An unset message has the same fields at their defaults.
      if (reflection->HasField(a, field) || b.GetReflection()->HasField(b, field)) {
        CompareFields(name, reflection->GetMessage(a, field),
                      b.GetReflection()->GetMessage(b, field));
      }
      return;
    }
    const auto text = [&](const Message& message) {
      return field->has_presence() && !message.GetReflection()->HasField(message, field)
                 ? std::string(kAbsent)
                 : Text(message, field, -1);
    };
    Compare(name, text(a), text(b));
  }

  void CompareLists(const std::string& name, const Message& a, const Message& b,
                    const FieldDescriptor* field) {
    const auto list = [&](const Message& message) {
      std::vector<std::string> items;
      for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
        items.push_back(Text(message, field, i));
      }
      return absl::StrCat("[", absl::StrJoin(items, ", "), "]");
    };
    Compare(name, list(a), list(b));
  }

  void CompareMaps(const std::string& name, const Message& a, const Message& b,
                   const FieldDescriptor* field) {
    const auto entries = [&](const Message& message) {
      std::map<std::string, std::string> found;
      for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
        const Message& entry = message.GetReflection()->GetRepeatedMessage(message, field, i);
        found[Text(entry, entry.GetDescriptor()->map_key(), -1)] =
            Text(entry, entry.GetDescriptor()->map_value(), -1);
      }
      return found;
    };
    const auto in_a = entries(a), in_b = entries(b);
    std::set<std::string> keys;
    for (const auto& [key, value] : in_a) keys.insert(key);
    for (const auto& [key, value] : in_b) keys.insert(key);
    for (const std::string& key : keys) {
      const auto found_a = in_a.find(key), found_b = in_b.find(key);
      Compare(absl::StrCat(name, "[", key, "]"), found_a == in_a.end() ? kAbsent : found_a->second,
              found_b == in_b.end() ? kAbsent : found_b->second);
    }
  }

  v1::DiffRunsReply& reply_;
};

template <typename Get>
std::string OfRanks(const v1::RecordedAttempt& attempt, const Get& get) {
  std::vector<std::string> values;
  for (const v1::RecordedAttempt::Rank& rank : attempt.ranks()) values.push_back(get(rank));
  // Mostly all ranks have the same.
  if (!values.empty() && std::all_of(values.begin(), values.end(),
                                     [&](const auto& value) { return value == values[0]; })) {
    values.resize(1);
  }
  return absl::StrJoin(values, ", ");
}

void CompareAttempts(const v1::Recording& a, const v1::Recording& b, Differences* differences) {
  const auto first_steps = [](const v1::Recording& recording) {
    return absl::StrJoin(recording.attempts(), ", ", [](std::string* out, const auto& attempt) {
      absl::StrAppend(out, attempt.first_step());
    });
  };
  differences->CompareKnown("first steps of attempts", first_steps(a), first_steps(b));
  for (int i = 0; i < std::min(a.attempts_size(), b.attempts_size()); ++i) {
    const v1::RecordedAttempt& in_a = a.attempts(i);
    const v1::RecordedAttempt& in_b = b.attempts(i);
    const std::string prefix = i == 0 ? "" : absl::StrCat("attempt ", i + 1, ": ");
    const auto compare = [&](const char* what, const auto& get) {
      differences->CompareKnown(absl::StrCat(prefix, what), get(in_a), get(in_b));
    };
    compare("plan", [](const auto& attempt) { return DescribePlan(attempt.plan()); });
    compare("ranks", [](const auto& attempt) { return absl::StrCat(attempt.ranks_size()); });
    compare("program version", [](const auto& attempt) { return attempt.program_version(); });
    compare("workers' program version", [](const auto& attempt) {
      return OfRanks(attempt, [](const auto& rank) { return rank.program_version(); });
    });
    compare("instruction set", [](const auto& attempt) {
      return OfRanks(attempt, [](const auto& rank) { return rank.instruction_set(); });
    });
    compare("threads", [](const auto& attempt) {
      return OfRanks(attempt, [](const auto& rank) { return absl::StrCat(rank.threads()); });
    });
    compare("devices", [](const auto& attempt) {
      return OfRanks(attempt, [](const auto& rank) { return rank.device_model(); });
    });
  }
}

void CompareLosses(const std::vector<RecordedLoss>& a, const std::vector<RecordedLoss>& b,
                   Differences* differences, v1::DiffRunsReply* reply) {
  reply->set_first_different_step(-1);
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i].step != b[j].step) {
      a[i].step < b[j].step ? ++i : ++j;
      continue;
    }
    reply->set_common_steps(reply->common_steps() + 1);
    if (reply->first_different_step() < 0 && !SameBits(a[i].loss, b[j].loss)) {
      reply->set_first_different_step(a[i].step);
      const auto exact = [](double loss) { return absl::StrFormat("%.17g", loss); };
      differences->Add("first different loss", exact(a[i].loss), exact(b[j].loss));
    }
    ++i;
    ++j;
  }
}

v1::TrainingSpec WithoutModel(const v1::Recording& recording) {
  v1::TrainingSpec spec = recording.job().spec();
  spec.clear_graph();
  spec.mutable_search()->clear_imported();
  return spec;
}

}  // namespace

std::string DescribePlan(const v1::Plan& plan) {
  v1::Plan placed = plan;
  placed.clear_prediction();
  placed.clear_alternatives();
  placed.clear_search();
  placed.clear_memory_plans();
  placed.clear_parallel_operators();
  placed.clear_machine();
  for (v1::OperatorPlan& node : *placed.mutable_operators()) node.clear_predicted_seconds();
  placed.clear_devices();
  // Text, as maps have no order in the wire format.
  std::string text;
  TextFormat::PrintToString(placed, &text);
  return absl::StrCat(plan.operators_size(), " operators on ", plan.devices_size(),
                      plan.devices_size() == 1 ? " device" : " devices", ", ",
                      Sha256Hex(text).substr(0, 12));
}

v1::DiffRunsReply DiffRuns(const ComparedRun& a, const ComparedRun& b) {
  v1::DiffRunsReply reply;
  Differences differences(&reply);
  differences.CompareFields("spec", WithoutModel(a.recording), WithoutModel(b.recording));
  differences.CompareKnown("graph", a.recording.graph_sha256(), b.recording.graph_sha256());
  differences.CompareKnown("dataset", a.recording.dataset_sha256(), b.recording.dataset_sha256());
  differences.CompareKnown("validation dataset", a.recording.validation_sha256(),
                           b.recording.validation_sha256());
  CompareAttempts(a.recording, b.recording, &differences);
  CompareLosses(a.losses, b.losses, &differences, &reply);
  return reply;
}

}  // namespace espalier
