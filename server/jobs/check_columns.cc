#include "server/jobs/check_columns.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "server/jobs/index_ranges.h"

namespace espalier {

absl::Status CheckColumns(const OpRegistry& registry, const Graph& graph,
                          const std::map<std::string, std::string>& columns,
                          const Dataset& dataset) {
  const std::map<std::string, std::vector<InputRange>> ranges = IndexRanges(registry, graph);
  for (const Value& value : graph.values()) {
    if (value.kind != ValueKind::kInput) continue;
    const std::string input = absl::StrCat("graph input '", value.name, "': ");
    absl::StatusOr<const Column*> column = dataset.Find(columns.at(value.name));
    if (!column.ok()) {
      const bool may_be_parameter =
          IsFloat(value.type.dtype) && value.name.find('*') == std::string::npos;
      return absl::InvalidArgumentError(absl::StrCat(
          input, column.status().message(), "; name its column in `columns`",
          may_be_parameter ? absl::StrCat("; if it is a parameter that the file has no values of, "
                                          "name '*' and '",
                                          value.name, "' in `train_only`")
                           : ""));
    }
    const TensorType& example = (*column)->example;
    const Dims& dims = value.type.dims;
    if (dims.empty() || Dims(dims.begin() + 1, dims.end()) != example.dims) {
      const bool sequences =
          graph.metadata.count("config") > 0 && dims.size() == 2 && example.dims.size() == 1;
      return absl::InvalidArgumentError(
          absl::StrCat(input, "it is ", ToString(value.type), ", but an example of column '",
                       (*column)->name, "' is ", ToString(example),
                       "; they must agree but for the first dimension and dimensions of size 1",
                       sequences ? absl::StrCat("; a model made with a sequence length of ",
                                                example.dims[0], " takes these examples")
                                 : ""));
    }
    absl::Status status = Dataset::CheckConversion(**column, value.type.dtype);
    if (status.ok()) status = dataset.CheckFinite(**column);
    if (const auto found = ranges.find(value.name); status.ok() && found != ranges.end()) {
      status = CheckRanges(dataset, **column, found->second);
    }
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(input, status.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckExamples(const Dataset& dataset, const Column& column, const TensorType& wanted) {
  if (column.example.dims != wanted.dims) {
    return absl::InvalidArgumentError(absl::StrCat("column '", column.name, "': an example is ",
                                                   ToString(column.example), ", the model wants ",
                                                   ToString(wanted)));
  }
  absl::Status status = Dataset::CheckConversion(column, wanted.dtype);
  if (status.ok()) status = dataset.CheckFinite(column);
  // A float type holds every value.
  const bool may_not_fit = column.example.dtype != wanted.dtype && !IsFloat(wanted.dtype);
  if (!status.ok() || !may_not_fit) return status;
  std::vector<char> converted(static_cast<size_t>(wanted.bytes()));
  for (int64_t i = 0; i < dataset.examples() && status.ok(); ++i) {
    status = dataset.Read(column, i, Dims(wanted.dims.size(), 0), wanted.dims, wanted.dtype,
                          converted.data());
  }
  return status.ok() ? status : absl::InvalidArgumentError(status.message());
}

}  // namespace espalier
