// espalier profile: exports the cluster's measurements as a file for planning on other
// coordinators.
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cli/plan_view.h"
#include "client/terminal/table.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

using nlohmann::json;

absl::StatusOr<std::string> Fetch(Context& context) {
  auto client = context.client();
  if (!client.ok()) return client.status();
  auto reply = (*client)->Profile();
  if (!reply.ok()) return reply.status();
  return reply->json();
}

absl::Status Export(Context& context, const std::vector<std::string>& arguments) {
  auto text = Fetch(context);
  if (!text.ok()) return text.status();
  if (arguments.size() < 2) {
    context.out() << *text << std::flush;
    return absl::OkStatus();
  }
  if (absl::Status s = WriteFile(arguments[1], *text); !s.ok()) return s;
  if (context.json()) {
    nlohmann::ordered_json written;
    written["written"] = arguments[1];
    written["bytes"] = text->size();
    context.Document(written);
  }
  return absl::OkStatus();
}

double NumberIn(const json& entry, const char* field) {
  const auto found = entry.is_object() ? entry.find(field) : entry.end();
  return entry.is_object() && found != entry.end() && found->is_number() ? found->get<double>() : 0;
}

std::string TextIn(const json& entry, const char* field) {
  const auto found = entry.is_object() ? entry.find(field) : entry.end();
  return entry.is_object() && found != entry.end() && found->is_string() ? found->get<std::string>()
                                                                         : "";
}

// Returns a list field, or an empty list.
json ListIn(const json& object, const char* field) {
  const auto found = object.is_object() ? object.find(field) : object.end();
  return object.is_object() && found != object.end() && found->is_array() ? *found : json::array();
}

absl::Status ShowProfile(Context& context, const std::vector<std::string>& arguments) {
  std::string text;
  if (arguments.size() < 2) {
    auto fetched = Fetch(context);
    if (!fetched.ok()) return fetched.status();
    text = *std::move(fetched);
  } else {
    auto read = ReadFile(arguments[1]);
    if (!read.ok()) return read.status();
    text = *std::move(read);
  }
  const json profile = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!profile.is_object() || NumberIn(profile, "espalier_profile") != 1) {
    return UsageError("not a profile of version 1; `espalier profile export FILE` writes one");
  }
  if (context.json()) {
    context.out() << text << std::flush;
    return absl::OkStatus();
  }
  std::map<std::string, int> shapes;
  for (const json& entry : ListIn(profile.value("operators", json::object()), "entries")) {
    const std::string key = TextIn(entry, "key");
    const size_t at = key.rfind(" on ");
    ++shapes[at == std::string::npos ? key : key.substr(at + 4)];
  }
  Table operators({{"device"}, {"operator shapes measured", Align::kRight}});
  for (const auto& [device, count] : shapes) {
    operators.Row({Printable(device), absl::StrCat(count)});
  }
  context.out() << operators.Render(context.terminal());
  Table talk({{"between"},
              {"what"},
              {"ranks", Align::kRight},
              {"bytes", Align::kRight},
              {"us", Align::kRight}});
  for (const json& entry : ListIn(profile, "communication")) {
    const std::string between = Printable(TextIn(entry, "between"));
    for (const json& m : ListIn(entry, "messages")) {
      talk.Row({between, "message", "2", absl::StrFormat("%.0f", NumberIn(m, "bytes")),
                absl::StrFormat(
                    "%.1f", 1e6 * (NumberIn(m, "send_seconds") + NumberIn(m, "receive_seconds")))});
    }
    for (const json& c : ListIn(entry, "collectives")) {
      talk.Row({between, Printable(TextIn(c, "kind")),
                absl::StrFormat("%.0f", NumberIn(c, "ranks")),
                absl::StrFormat("%.0f", NumberIn(c, "bytes")),
                absl::StrFormat("%.1f", 1e6 * NumberIn(c, "seconds"))});
    }
  }
  context.out() << "\n" << talk.Render(context.terminal()) << std::flush;
  return absl::OkStatus();
}

absl::Status RunProfile(Context& context) {
  if (absl::Status s = CheckArguments(context, 1, 2, "export or show, and a file"); !s.ok()) {
    return s;
  }
  const std::vector<std::string>& arguments = context.flags().positional();
  if (arguments[0] == "export") return Export(context, arguments);
  if (arguments[0] == "show") return ShowProfile(context, arguments);
  return UsageError(
      absl::StrCat("profile: \"", Printable(arguments[0]), "\"; accepted: export, show"));
}

}  // namespace

Command ProfileCommand() {
  Command c;
  c.name = "profile";
  c.summary = "export or show what workers have measured: operators, messages, collectives";
  c.usage = "profile export|show [FILE]";
  c.description =
      "Planning measures operators, and the first job of several workers measures messages and "
      "collectives. The file lets another coordinator plan with these measurements: plan "
      "--profile=FILE.";
  c.examples = {{"export to a file", "espalier profile export ours.json"},
                {"show a file", "espalier profile show ours.json"},
                {"plan with it", "espalier plan --model=llama:llm --profile=ours.json"}};
  c.run = RunProfile;
  return c;
}

}  // namespace espalier
