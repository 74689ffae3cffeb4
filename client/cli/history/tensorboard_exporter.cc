#include "client/cli/history/tensorboard_exporter.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/history/record_file.h"
#include "client/cli/history/row_values.h"

namespace espalier {
namespace {

constexpr char kEventFile[] = "events.out.tfevents.0.espalier";

// A name of a run as one name of a folder; no two names give the same.
std::string FolderName(absl::string_view name) {
  std::string out;
  for (const char c : name) {
    const bool dots = out.empty() && c == '.';  // "..", hidden folders
    if (c == '/' || c == '%' || c == '\\' || dots || absl::ascii_iscntrl(c)) {
      absl::StrAppendFormat(&out, "%%%02X", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out;
}

tensorboard::HistogramProto ToTensorboard(const v1::Histogram& histogram) {
  tensorboard::HistogramProto out;
  const int ranges = histogram.counts_size();
  const double width = (histogram.high() - histogram.low()) / ranges;
  out.set_min(histogram.low());
  out.set_max(histogram.high());
  for (int i = 0; i < ranges; ++i) {
    const auto count = static_cast<double>(histogram.counts(i));
    const double end = i + 1 == ranges ? histogram.high() : histogram.low() + (i + 1) * width;
    const double middle = histogram.low() + (i + 0.5) * width;
    out.add_bucket_limit(end);
    out.add_bucket(count);
    out.set_num(out.num() + count);
    // The elements themselves are not known.
    out.set_sum(out.sum() + count * middle);
    out.set_sum_squares(out.sum_squares() + count * middle * middle);
  }
  return out;
}

}  // namespace

absl::StatusOr<TensorboardExporter::Run*> TensorboardExporter::RunAt(const std::string& name) {
  Run& run = runs_[name];
  if (run.file != nullptr) return &run;
  const std::string folder = JoinPath(folder_, name);
  if (absl::Status s = files_.CreateDirectories(folder); !s.ok()) return s;
  auto file = OutputFile::Create(files_, JoinPath(folder, kEventFile));
  if (!file.ok()) return file.status();
  run.file = *std::move(file);
  tensorboard::Event first;
  first.set_file_version("brain.Event:2");
  if (absl::Status s = run.file->Write(FrameRecord(first.SerializeAsString())); !s.ok()) return s;
  return &run;
}

absl::StatusOr<TensorboardExporter::Run*> TensorboardExporter::RunFor(const v1::HistoryRow& row,
                                                                      const std::string& tag) {
  // TensorBoard expects the steps of a tag to ascend.
  const std::string own = FolderName(RunOf(row));
  const std::string second =
      row.source() == v1::HistoryRow::REPLAY ? FolderName(row.replay_id()) : SourceOf(row);
  for (const std::string& name : {own, JoinPath(own, second)}) {
    auto run = RunAt(name);
    if (!run.ok()) return run.status();
    const auto [last, is_new] = (*run)->last_steps.try_emplace(tag, row.step());
    if (is_new || last->second < row.step()) {
      last->second = row.step();
      return *run;
    }
  }
  return nullptr;
}

absl::Status TensorboardExporter::Write(const v1::HistoryRow& row,
                                        tensorboard::Summary::Value value) {
  auto run = RunFor(row, value.tag());
  if (!run.ok()) return run.status();
  if (*run == nullptr) {
    ++left_out_;
    return absl::OkStatus();
  }
  tensorboard::Event event;
  event.set_wall_time(static_cast<double>(row.unix_ms()) / 1e3);
  event.set_step(row.step());
  *event.mutable_summary()->add_value() = std::move(value);
  return (*run)->file->Write(FrameRecord(event.SerializeAsString()));
}

absl::Status TensorboardExporter::Add(const v1::HistoryRow& row) {
  if (!series_.empty()) {
    const v1::HistoryRow& other = series_.back();
    const bool same = other.job_id() == row.job_id() && other.source() == row.source() &&
                      other.name() == row.name() && other.reduction() == row.reduction();
    absl::Status status = same ? absl::OkStatus() : WriteSeries();
    if (!status.ok()) return status;
  }
  series_.push_back(row);
  return absl::OkStatus();
}

absl::Status TensorboardExporter::WriteSeries() {
  std::stable_sort(
      series_.begin(), series_.end(),
      [](const v1::HistoryRow& a, const v1::HistoryRow& b) { return a.step() < b.step(); });
  for (const v1::HistoryRow& row : series_) {
    if (absl::Status s = WriteRow(row); !s.ok()) return s;
  }
  series_.clear();
  return absl::OkStatus();
}

absl::Status TensorboardExporter::WriteRow(const v1::HistoryRow& row) {
  tensorboard::Summary::Value value;
  if (row.value().has_histogram() && std::isfinite(row.value().histogram().low()) &&
      std::isfinite(row.value().histogram().high())) {
    value.set_tag(LabelOf(row));
    *value.mutable_histo() = ToTensorboard(row.value().histogram());
    return Write(row, std::move(value));
  }
  const std::vector<LabelledNumber> numbers = NumbersOf(row);
  if (numbers.empty()) ++left_out_;
  for (const LabelledNumber& number : numbers) {
    value.set_tag(number.label);
    value.set_simple_value(static_cast<float>(number.value));
    if (absl::Status s = Write(row, value); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status TensorboardExporter::Finish() {
  if (absl::Status s = WriteSeries(); !s.ok()) return s;
  if (absl::Status s = files_.CreateDirectories(folder_); !s.ok()) return s;
  for (auto& [name, run] : runs_) {
    if (absl::Status s = run.file->Finish(); !s.ok()) return s;
  }
  return absl::OkStatus();
}

std::vector<std::string> TensorboardExporter::Notes() const {
  std::vector<std::string> notes = {absl::StrCat("show it: tensorboard --logdir=", folder_)};
  if (left_out_ > 0) {
    notes.push_back(absl::StrCat(left_out_,
                                 " rows are left out: TensorBoard shows numbers and histograms, "
                                 "not tensors, and each step of a tag once"));
  }
  return notes;
}

}  // namespace espalier
