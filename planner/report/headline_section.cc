// The summary at the top of the page.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "planner/report/format.h"
#include "planner/report/markup.h"
#include "planner/report/sections.h"

namespace espalier {
namespace {

constexpr size_t kMaxDeviceKinds = 6;

std::string Card(absl::string_view title, absl::string_view value, absl::string_view more) {
  return absl::StrCat("<div class=\"card\"><div class=\"what\">", Escaped(title),
                      "</div><div class=\"value\">", EscapedShort(value, 160),
                      "</div><div class=\"more\">", EscapedShort(more, 320), "</div></div>\n");
}

std::string StepCard(const v1::Plan& plan) {
  const double seconds = plan.prediction().step_seconds();
  std::string more;
  if (seconds > 0) {
    more = absl::StrFormat("%.4g samples per second",
                           static_cast<double>(plan.batch_size()) / seconds);
  }
  return Card("Predicted step", ReadableSeconds(seconds), more);
}

std::string MemoryCard(const v1::Plan& plan) {
  const auto& peaks = plan.prediction().peak_bytes();
  if (peaks.empty()) return Card("Peak memory", "unknown", "");
  const int device = static_cast<int>(std::max_element(peaks.begin(), peaks.end()) - peaks.begin());
  std::string more = absl::StrCat("of device ", device, ", the fullest");
  if (plan.zero_stage() > 0) absl::StrAppend(&more, "; ZeRO stage ", plan.zero_stage());
  if (device < plan.devices_size() && plan.devices(device).memory_bytes() > 0) {
    const double limit = static_cast<double>(plan.devices(device).memory_bytes());
    absl::StrAppend(&more, "; ", ReadablePercent(static_cast<double>(peaks[device]) / limit),
                    " of its ", ReadableBytes(limit));
  }
  return Card("Peak memory", ReadableBytes(static_cast<double>(peaks[device])), more);
}

std::string MovedCard(const v1::Plan& plan) {
  const v1::Prediction& prediction = plan.prediction();
  return Card("Moved between devices", ReadableBytes(prediction.bytes_moved()),
              absl::StrCat("per step; the busiest device computes ",
                           ReadableSeconds(prediction.compute_seconds()), ", communicates ",
                           ReadableSeconds(prediction.communication_seconds())));
}

std::string DevicesCard(const v1::Plan& plan) {
  std::map<std::tuple<std::string, std::string, int64_t>, int> count;
  std::vector<decltype(count)::key_type> order;
  for (const v1::Device& device : plan.devices()) {
    decltype(count)::key_type key{KindText(device.kind()),
                                  device.model().empty() ? KindText(device.kind()) : device.model(),
                                  device.memory_bytes()};
    if (++count[key] == 1) order.push_back(std::move(key));
  }
  std::vector<std::string> devices, details;
  for (size_t i = 0; i < std::min(order.size(), kMaxDeviceKinds); ++i) {
    const auto& [kind, model, memory] = order[i];
    devices.push_back(absl::StrCat(count[order[i]], " × ", model));
    details.push_back(
        memory > 0 ? absl::StrCat(kind, ", ", ReadableBytes(static_cast<double>(memory))) : kind);
  }
  if (order.size() > kMaxDeviceKinds) devices.push_back("others");
  if (devices.empty()) devices.push_back("none");
  return Card("Devices", absl::StrJoin(devices, ", "),
              details.empty() ? "" : absl::StrCat(absl::StrJoin(details, "; "), " each"));
}

std::string SearchCard(const v1::Plan& plan) {
  const v1::SearchSummary& search = plan.search();
  if (search.budget() <= 0) return Card("Search", "none", "the strategy was given");
  return Card("Search", absl::StrCat(ReadableCount(search.proposals()), " proposals"),
              absl::StrFormat(
                  "%s accepted, in %s; budget %s, %s, seed %d", ReadableCount(search.accepted()),
                  ReadableSeconds(search.seconds()), ReadableCount(search.budget()),
                  search.alpha() > 0 ? absl::StrFormat("alpha %g", search.alpha()) : "annealed",
                  search.seed()));
}

}  // namespace

std::string HeadlineSection(const v1::Plan& plan, const Graph& graph) {
  const std::string name = graph.name.empty() ? "graph without a name" : graph.name;
  return absl::StrCat("<header>\n<div class=\"brand\">Espalier plan</div>\n<h1>",
                      EscapedShort(name, 120), "</h1>\n<p class=\"sub\">batch of ",
                      ReadableCount(plan.batch_size()), " on ", plan.devices_size(),
                      plan.devices_size() == 1 ? " device, " : " devices, ",
                      ReadableCount(plan.operators_size()), " operators, graph <code>",
                      EscapedShort(plan.graph_fingerprint().substr(0, 12), 12),
                      "</code></p>\n<div class=\"cards\">\n", StepCard(plan), MemoryCard(plan),
                      MovedCard(plan), DevicesCard(plan), SearchCard(plan), "</div>\n</header>\n");
}

}  // namespace espalier
