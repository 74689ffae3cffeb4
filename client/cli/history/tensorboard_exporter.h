// Histories as TensorBoard's event files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "client/cli/history/event.pb.h"
#include "client/cli/history/exporter.h"
#include "client/cli/history/output_file.h"

namespace espalier {

// Writes a folder per run, "lm@3", with one event file, which replaces that of an earlier export.
// Tags are labels (LabelOf). Numbers are rounded to f32; tensors and rows of many elements are left
// out. What was answered for a step that the tag has already is in a folder of its own,
// "lm@3/REPLAY".
class TensorboardExporter : public HistoryExporter {
 public:
  // `files` must outlive this object.
  TensorboardExporter(FileSystem* files, std::string folder)
      : files_(*files), folder_(std::move(folder)) {}
  absl::Status Add(const v1::HistoryRow& row) override;
  absl::Status Finish() override;
  std::vector<std::string> Notes() const override;

 private:
  struct Run {
    std::unique_ptr<OutputFile> file;
    std::map<std::string, int64_t> last_steps;  // by tag
  };
  // Writes the rows that are gathered, by step.
  absl::Status WriteSeries();
  absl::StatusOr<Run*> RunAt(const std::string& name);
  // The run that takes a value of this tag and row.
  absl::StatusOr<Run*> RunFor(const v1::HistoryRow& row, const std::string& tag);
  absl::Status Write(const v1::HistoryRow& row, tensorboard::Summary::Value value);
  absl::Status WriteRow(const v1::HistoryRow& row);

  FileSystem& files_;
  const std::string folder_;
  std::map<std::string, Run> runs_;     // by folder within folder_
  std::vector<v1::HistoryRow> series_;  // rows of one run and label, of several replays
  int64_t left_out_ = 0;
};

}  // namespace espalier
