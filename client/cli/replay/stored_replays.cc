#include "client/cli/replay/stored_replays.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/delete_each.h"
#include "client/cli/proto_json.h"
#include "client/cli/replay/replay_view.h"
#include "client/cli/time_text.h"
#include "client/terminal/table.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

// Experiments that a short list of runs names.
constexpr size_t kExperimentsNamed = 2;

// "1-3,5" for 1, 2, 3 and 5.
std::string RangesOf(const std::set<int64_t>& versions) {
  std::vector<std::string> ranges;
  for (auto it = versions.begin(); it != versions.end();) {
    const int64_t first = *it;
    int64_t last = first;
    for (++it; it != versions.end() && *it == last + 1; ++it) last = *it;
    ranges.push_back(first == last ? absl::StrCat(first) : absl::StrCat(first, "-", last));
  }
  return absl::StrJoin(ranges, ",");
}

// Steps or checkpoints of all segments: those that are done, and all.
std::pair<int64_t, int64_t> StepsOfAll(const v1::ReplayInfo& replay) {
  int64_t done = 0, total = 0;
  for (const v1::ReplaySegment& segment : replay.segments()) {
    const int64_t steps = StepsOf(segment);
    done += segment.state() == v1::REPLAY_SUCCEEDED ? steps : segment.steps_done();
    total += steps;
  }
  return {done, total};
}

std::string DescribeQuestion(const v1::ReplaySpec& spec) {
  std::vector<std::string> parts(spec.log().begin(), spec.log().end());
  for (const v1::ReplayGraph& graph : spec.graphs()) {
    parts.push_back(absl::StrCat("graph ", graph.name()));
  }
  std::string text = parts.empty() ? "only whether the losses repeat" : absl::StrJoin(parts, ", ");
  const char* what = spec.at_checkpoints() ? "checkpoints" : "steps";
  if (spec.first_step() == 0 && spec.end_step() == 0) {
    absl::StrAppend(&text, "; all ", what);
  } else {
    absl::StrAppend(&text, "; ", what, " ", spec.first_step(), ":",
                    spec.end_step() == 0 ? "" : absl::StrCat(spec.end_step()));
  }
  if (spec.every() > 1) absl::StrAppend(&text, ", every ", spec.every());
  if (spec.segments() > 0) {
    absl::StrAppend(&text, ", part ", spec.segment(), " of ", spec.segments());
  }
  if (spec.evaluate_holdout()) absl::StrAppend(&text, ", evaluating what the job kept apart");
  if (spec.has_evaluate()) absl::StrAppend(&text, ", evaluating ", spec.evaluate().uri());
  if (spec.any_plan()) absl::StrAppend(&text, ", by any plan");
  if (spec.max_workers() > 0) absl::StrAppend(&text, ", at most ", spec.max_workers(), " at once");
  return Printable(text);
}

std::string DescribeCheck(const v1::ReplaySegment& segment) {
  const v1::ReplayComparison& comparison = segment.comparison();
  if (segment.kind() != v1::ReplaySegment::TRAINING || comparison.compared() == 0) return "";
  return absl::StrCat(comparison.compared(), comparison.bits() ? ", to the bit" : ", in tolerance");
}

std::string NameOfSegmentKind(v1::ReplaySegment::Kind kind) {
  return absl::AsciiStrToLower(v1::ReplaySegment::Kind_Name(kind));
}

Table SegmentsTable(const v1::ReplayInfo& replay) {
  std::map<std::string, std::string> runs;  // by job
  for (int i = 0; i < std::min(replay.runs_size(), replay.job_ids_size()); ++i) {
    runs[replay.job_ids(i)] = replay.runs(i);
  }
  Table table({{"run", Align::kLeft, true},
               {"kind"},
               {.title = "from checkpoint", .align = Align::kRight, .optional = true},
               {"logged", Align::kRight},
               {"state"},
               {"done", Align::kRight},
               {.title = "losses compared", .optional = true},
               {.title = "workers", .shrink = true, .optional = true}});
  for (const v1::ReplaySegment& segment : replay.segments()) {
    const auto run = runs.find(segment.job_id());
    const int64_t steps = StepsOf(segment);
    const bool over = segment.state() == v1::REPLAY_SUCCEEDED;
    table.Row({Printable(run == runs.end() ? segment.job_id() : run->second),
               NameOfSegmentKind(segment.kind()),
               segment.kind() == v1::ReplaySegment::TRAINING
                   ? absl::StrCat(segment.checkpoint_step())
                   : "",
               absl::StrCat(segment.first_step(), ":", segment.end_step()),
               ReplayStateName(segment.state()),
               absl::StrCat(over ? steps : segment.steps_done(), "/", steps),
               DescribeCheck(segment), Printable(absl::StrJoin(segment.workers(), ", "))});
  }
  return table;
}

}  // namespace

std::string RunsInShort(const v1::ReplayInfo& replay) {
  std::map<std::string, std::set<int64_t>> versions;  // by experiment
  for (const std::string& run : replay.runs()) {
    const size_t at = run.rfind('@');
    int64_t version = 0;
    if (at == std::string::npos || !absl::SimpleAtoi(run.substr(at + 1), &version)) {
      versions[run];
    } else {
      versions[run.substr(0, at)].insert(version);
    }
  }
  // An older coordinator does not say.
  if (versions.empty()) return replay.spec().run();
  std::vector<std::string> parts;
  for (const auto& [experiment, numbers] : versions) {
    if (parts.size() == kExperimentsNamed && versions.size() > kExperimentsNamed + 1) {
      parts.push_back(absl::StrCat(versions.size() - kExperimentsNamed, " more experiments"));
      break;
    }
    parts.push_back(numbers.empty() ? experiment
                                    : absl::StrCat(experiment, "@", RangesOf(numbers)));
  }
  return absl::StrJoin(parts, " and ");
}

absl::Status ListStoredReplays(Context& context, Client* client, const std::string& run) {
  const auto replays = client->ListReplays(run);
  if (!replays.ok()) return replays.status();
  if (context.json()) {
    nlohmann::ordered_json json;
    json["replays"] = nlohmann::ordered_json::array();
    for (const v1::ReplayInfo& replay : *replays) json["replays"].push_back(ToJson(replay));
    context.Document(json);
    return absl::OkStatus();
  }
  Table table({{"replay"},
               {"run", Align::kLeft, true},
               {"state"},
               {"steps", Align::kRight},
               {"answers", Align::kRight},
               {absl::StrCat("started, ", LocalZone(absl::ToUnixMillis(absl::Now())))},
               {.title = "owner", .optional = true}});
  for (const v1::ReplayInfo& replay : *replays) {
    const auto [done, total] = StepsOfAll(replay);
    table.Row({Printable(replay.id()), Printable(RunsInShort(replay)),
               ReplayStateName(replay.state()), absl::StrCat(done, "/", total),
               absl::StrCat(replay.rows()), LocalTime(replay.created_unix_ms()),
               Printable(replay.owner())});
  }
  context.out() << (table.empty() ? "no replays yet\n" : table.Render(context.terminal()))
                << std::flush;
  return absl::OkStatus();
}

absl::Status ShowStoredReplay(Context& context, Client* client, const std::string& id) {
  const absl::StatusOr<v1::ReplayInfo> replay = client->GetReplay(id);
  if (!replay.ok()) return replay.status();
  if (context.json()) {
    context.Document(ToJson(*replay));
    return absl::OkStatus();
  }
  std::ostream& out = context.out();
  const auto [done, total] = StepsOfAll(*replay);
  out << context.style().Bold(Printable(replay->id())) << " of " << Printable(RunsInShort(*replay))
      << ": " << ReplayStateName(replay->state()) << ", " << done << " of " << total
      << (replay->spec().at_checkpoints() ? " checkpoints, " : " steps, ") << replay->rows()
      << (replay->rows() == 1 ? " answer\n" : " answers\n")
      << "asked: " << DescribeQuestion(replay->spec()) << "\n"
      << "started " << LocalTime(replay->created_unix_ms());
  if (replay->finished_unix_ms() > 0) {
    const auto took = static_cast<double>(replay->finished_unix_ms() - replay->created_unix_ms());
    out << ", took " << FormatSeconds(took / 1000, context.terminal().unicode);
  }
  if (!replay->owner().empty()) out << ", of " << Printable(replay->owner());
  out << "\n" << RenderComparison(*replay);
  for (const std::string& note : replay->notes()) out << Printable(note) << "\n";
  if (replay->has_difference()) out << DescribeDifference(*replay) << "\n";
  if (!replay->error().empty()) out << "failed: " << Printable(replay->error()) << "\n";
  const Table segments = SegmentsTable(*replay);
  if (!segments.empty()) out << segments.Render(context.terminal());
  out << std::flush;
  return absl::OkStatus();
}

absl::Status CancelStoredReplay(Context& context, Client* client, const std::string& id) {
  const absl::StatusOr<v1::ReplayInfo> replay = client->CancelReplay(id);
  if (!replay.ok()) return replay.status();
  if (context.json()) {
    context.Document(ToJson(*replay));
  } else {
    context.out() << Printable(replay->id()) << " is " << ReplayStateName(replay->state()) << "\n"
                  << std::flush;
  }
  return absl::OkStatus();
}

absl::Status DeleteStoredReplays(Context& context, Client* client,
                                 const std::vector<std::string>& ids) {
  return DeleteEach(context, "", ids,
                    [client](const std::string& id) -> absl::StatusOr<std::string> {
                      if (absl::Status s = client->DeleteReplay(id); !s.ok()) return s;
                      return id;
                    });
}

}  // namespace espalier
