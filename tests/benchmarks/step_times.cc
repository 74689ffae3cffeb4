#include "tests/benchmarks/step_times.h"

#include "absl/strings/str_cat.h"
#include "tests/benchmarks/dummy_batch.h"
#include "tests/benchmarks/seconds.h"

namespace espalier {
namespace {

constexpr int kRowCounts[] = {1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128};
constexpr int kRepeats = 15;

absl::Status Time(ModelRunner& runner, int rows, std::vector<double>* milliseconds) {
  RunnerOutput logits;
  const RunnerBatch batch = DummyBatch(rows);
  const double start = Seconds();
  absl::Status status = runner.Step(batch, &logits);
  milliseconds->push_back((Seconds() - start) * 1e3);
  return status;
}

}  // namespace

absl::Status ReportStepTimes(const std::vector<std::pair<std::string, ModelRunner*>>& runners,
                             Report* report) {
  std::vector<std::string> columns = {"rows"};
  std::map<int, std::vector<double>> cells;
  for (const auto& [name, runner] : runners) {
    columns.push_back(absl::StrCat(name, ", repeated"));
    columns.push_back(absl::StrCat(name, ", mixed"));
    std::map<int, std::vector<double>> repeated, mixed;
    for (const int rows : kRowCounts) {
      for (int i = 0; i < kRepeats; ++i) {
        if (absl::Status s = Time(*runner, rows, &repeated[rows]); !s.ok()) return s;
      }
    }
    for (int i = 0; i < kRepeats; ++i) {
      for (const int rows : kRowCounts) {
        if (absl::Status s = Time(*runner, rows, &mixed[rows]); !s.ok()) return s;
      }
    }
    for (const int rows : kRowCounts) {
      cells[rows].push_back(Median(repeated[rows]));
      cells[rows].push_back(Median(mixed[rows]));
    }
  }
  report->Table("A step by its rows, ms", columns);
  for (const auto& [rows, values] : cells) {
    std::vector<Cell> row = {Number(rows, 0)};
    for (const double value : values) row.push_back(Number(value, 3));
    report->Row(row);
  }
  return absl::OkStatus();
}

}  // namespace espalier
