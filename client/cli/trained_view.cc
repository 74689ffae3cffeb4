#include "client/cli/trained_view.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/terminal/table.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

std::string CountedTensors(int64_t tensors, int64_t elements) {
  return absl::StrCat(tensors, tensors == 1 ? " tensor, " : " tensors, ",
                      FormatCount(static_cast<double>(elements)),
                      elements == 1 ? " element" : " elements");
}

}  // namespace

std::string DescribeTrained(const v1::TrainedParameters& trained) {
  if (trained.tensors() == 0 && trained.other_tensors() == 0) return "";
  std::string text = absl::StrCat("trains ", CountedTensors(trained.tensors(), trained.elements()));
  if (trained.other_tensors() == 0) return text;
  absl::StrAppend(&text, "; ", CountedTensors(trained.other_tensors(), trained.other_elements()),
                  trained.other_tensors() == 1 ? ", is not trained" : ", are not trained");
  return text;
}

std::string RenderParameterUses(const google::protobuf::RepeatedPtrField<v1::ParameterUse>& uses,
                                const Terminal& terminal) {
  Table table({{"parameter"}, {"type"}, {"trained"}, {"because", Align::kLeft, true}});
  for (const v1::ParameterUse& use : uses) {
    const std::string dtype = absl::AsciiStrToLower(v1::DataType_Name(use.type().dtype()));
    table.Row({Printable(use.name()),
               absl::StrCat(dtype, "[", absl::StrJoin(use.type().dims(), ", "), "]"),
               use.trained() ? "yes" : "no", Printable(use.reason())});
  }
  return table.Render(terminal);
}

}  // namespace espalier
